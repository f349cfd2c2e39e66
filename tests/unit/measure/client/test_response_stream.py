"""Streams of servers and proxies that keep to no standard: nothing raises, nothing is made up."""

import contextlib
import gzip
import json
import re
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from longctx.measure.client.connection import Failure
from longctx.measure.client.response_stream import StreamRecord, body_message
from longctx.measure.client.sse import ServerSentEvent
from longctx.measure.client.token_times import chunks as token_chunks

USAGE = {"prompt_tokens": 1024, "completion_tokens": 3}


def event(text: Any = "a", ends: str | None = None, made: int | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": ends}]}
    return content if made is None else content | {"usage": USAGE | {"completion_tokens": made}}


def received(*events: Any) -> StreamRecord:
    """Take events that arrive a second apart; strings are sent as they are."""
    found = StreamRecord()
    for at, content in enumerate(events):
        found.add(ServerSentEvent(content if isinstance(content, str) else json.dumps(content)), float(at))
    return found


def tokens(found: StreamRecord) -> list[int | None]:
    return [chunk.tokens for chunk in token_chunks(found.events, found.usage.get("completion_tokens"))]


NOTHING = [None, False, 7, "x", [], [1], {}]


@pytest.mark.parametrize("value", NOTHING)
def test_a_field_of_another_type_is_a_missing_one(value: Any) -> None:
    before = received(*(event(made=n) for n in (1, 2, 3)))
    for content in (
        {"choices": [], "usage": value},
        {"choices": value, "usage": None},
        {"choices": [value], "usage": {}},
        {"choices": [], "usage": {"prompt_tokens_details": value}},
        {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": str(value)}}},
    ):
        before.add(ServerSentEvent(json.dumps(content)), 9.0)
    assert before.usage == {"prompt_tokens": 1024, "completion_tokens": 3}
    assert tokens(before) == [1, 1, 1]


@pytest.mark.parametrize("value", [None, "3", True, -1, 2.5, 10**30, [3]])
def test_a_count_that_is_none_takes_nothing_back(value: Any) -> None:
    last = {"choices": [], "usage": {"prompt_tokens": value, "completion_tokens": value}}
    found = received(*(event(made=n) for n in (1, 2, 3)), last)
    assert (found.usage.get("prompt_tokens"), found.usage.get("completion_tokens")) == (1024, 3)
    assert "completion_tokens" not in received(last).usage


def test_a_whole_number_written_as_a_fraction_is_a_count() -> None:
    found = received({"choices": [], "usage": {"prompt_tokens": 1024.0, "completion_tokens": 3.0}})
    assert repr((found.usage.get("prompt_tokens"), found.usage.get("completion_tokens"))) == "(1024, 3)"


@pytest.mark.parametrize("text", ['{"choices": [{"text": "\\ud83d"}]}', '{"choices": [{"text": "a", "score": NaN}]}'])
def test_half_a_character_and_nan_are_no_errors(text: str) -> None:
    assert tokens(received(text, event(), event(ends="length"), {"usage": USAGE})) == [1, 1, 1]


@pytest.mark.parametrize("place", range(5))
def test_the_usage_counts_wherever_it_stands(place: int) -> None:
    events: list[Any] = [event(), event(), event(), event("", "length")]
    events.insert(place, {"choices": [], "usage": USAGE})
    found = received(*events)
    assert (found.usage.get("prompt_tokens"), found.usage.get("completion_tokens")) == (1024, 3)
    assert tokens(found) == [1, 1, 1]


@pytest.mark.parametrize(
    "content",
    [{"error": "boom"}, {"error": {"message": "boom"}}, {"object": "error", "message": "boom"}, {"detail": "boom"},
     {"message": "boom", "code": 500}, {"error": {"detail": {"message": "boom"}}, "choices": [{"text": "a"}]},
     {"choices": [], "message": "boom"}, {"choices": None, "usage": None, "detail": "boom"}, {"errors": "boom"},
     {"error_code": 50001, "msg": "boom", "choices": []}, {"type": "error", "error_message": "boom"},
     {"choices": [{"text": "", "finish_reason": "error", "error": {"message": "boom"}}]},
     {"error": "boom", "error_type": "generation"}, {"choices": [], "code": 500, "reason": "boom"},
     {"choices": [{"text": "", "finish_reason": "error", "message": "boom"}]},
     {"choices": [], "status": "failed", "message": "boom", "usage": {"prompt_tokens": 0, "completion_tokens": 0}}],
)  # fmt: skip
def test_every_form_of_an_error_keeps_the_server_s_words(content: dict[str, Any]) -> None:
    with pytest.raises(Failure, match=r"^boom$") as failure:
        received(event(made=1), content)
    assert failure.value.reason == "error_event"


@pytest.mark.parametrize(
    "data", ['{"choices": [], "message": "boom"}', '{"code": 500, "error": "boom"}', "boom", '"boom"']
)
def test_an_event_named_error_is_one_whatever_it_holds(data: str) -> None:
    with pytest.raises(Failure, match=r"^boom$"):
        StreamRecord().add(ServerSentEvent(data, "error"), 1.0)


@pytest.mark.parametrize("data", ["", '{"code": 500}', "{}"])
def test_an_event_named_error_without_a_message_is_one_too(data: str) -> None:
    with pytest.raises(Failure):
        StreamRecord().add(ServerSentEvent(data, "error"), 1.0)


@pytest.mark.parametrize(
    "event",
    [("",), (" ",), ("{}",), ('{"type": "ping"}',), ("still here", "ping"), ("", "heartbeat"), ('{"choices": []}',),
     ('{"choices": [], "usage": null, "message": null}',), ('{"choices": [{"text": "", "finish_reason": null}]}',)],
)  # fmt: skip
def test_a_sign_of_life_is_neither_a_token_nor_an_error(event: tuple[str, ...]) -> None:
    assert StreamRecord().add(ServerSentEvent(*event), 1.0) is False


def test_what_shows_a_token() -> None:
    """Text wherever a server puts it, ids of tokens, or a count that grew; nothing else."""
    role = {"choices": [{"delta": {"role": "assistant", "content": "", "refusal": None, "tool_calls": []}}]}
    shows = [
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"role": "assistant", "content": "a"}}]},
        {"choices": [{"delta": {"reasoning_content": "a", "content": None}}]},
        {"choices": [{"delta": {"reasoning": " "}}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]},
        {"choices": [{"message": {"content": "a"}}]},
        {"choices": [{"text": "", "token_ids": [7]}]},
        event("", made=3),
    ]
    hides = [
        role,
        {"choices": [{"delta": {}}]},
        {"choices": [{"delta": {"content": [{"type": "text", "text": ""}], "role": "assistant"}}]},
        {"choices": [{"text": "", "token_ids": []}]},
        event("", made=2),
        event("", "length"),
        event(None),
    ]
    for content, shown in [(one, True) for one in shows] + [(one, False) for one in hides]:
        found = received(event(made=2))
        assert found.add(ServerSentEvent(json.dumps(content)), 9.0) is shown, content
    assert received(role | {"usage": USAGE}).events[0].only_role


def test_an_event_nested_too_deep_is_no_text() -> None:
    deep = '{"choices": [{"text": ' + "[" * 900 + '"a"' + "]" * 900 + "}]}"
    with contextlib.suppress(RecursionError):  # which the request turns into a failure
        assert StreamRecord().add(ServerSentEvent(deep), 1.0) in (True, False)


NAMES = ("choices", "usage", "error", "text", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens")
LEAVES = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3)
JSON = st.recursive(
    LEAVES, lambda part: st.lists(part, max_size=2) | st.dictionaries(st.sampled_from(NAMES), part, max_size=4)
)


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3), max_size=6))
def test_no_event_raises_anything_but_a_failure(events: list[dict[str, Any]]) -> None:
    found = StreamRecord()
    with contextlib.suppress(Failure):
        for at, content in enumerate(events):
            found.add(ServerSentEvent(json.dumps(content)), float(at))
    chunks = token_chunks(found.events, found.usage.get("completion_tokens"))
    assert all(chunk.tokens is None or chunk.tokens > 0 for chunk in chunks)
    counts = (found.usage.get("prompt_tokens"), found.usage.get("completion_tokens"), found.usage.get("cached_tokens"))
    assert all(count is None or (type(count) is int and count >= 0) for count in counts)


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"", ""), (b"<html>\xff</html>", "<html>\ufffd</html>"), (b'{"detail": [1]}', "[1]"), (b'"why"', "why"),
     (b'{"error": {"message": "why"}}', "why"), (b'{"error": NaN}', "NaN"), (b"[" * 100_000, "[" * 100_000)],
)  # fmt: skip
def test_a_body_of_any_kind_has_a_message(raw: bytes, message: str) -> None:
    assert body_message(raw) == message


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress), ("", gzip.compress), (" GZIP", gzip.compress), ("deflate", zlib.compress)],
)
def test_a_body_that_was_compressed_unasked_is_unpacked_and_says_so(encoding: str, packed: Any) -> None:
    kind = "deflate" if encoding == "deflate" else "gzip"
    noted = f"why (sent as {kind}, though uncompressed text was asked for)"
    assert body_message(packed(b'{"error": {"message": "why"}}'), encoding) == noted


def test_a_compressed_body_that_cannot_be_read_names_its_kind_and_size() -> None:
    assert body_message(b"\x28\xb5\x2f\xfd", "zstd").startswith("4 bytes that cannot be read (sent as zstd")
    assert body_message(b"\x1f\x8b\x08").startswith("3 bytes that cannot be read (sent as gzip")
    assert len(body_message(gzip.compress(b"x" * (1 << 24)))) < 1 << 21, "a bomb is not unpacked whole"
    assert body_message(gzip.compress(b"first words" * 1000)[:60]).startswith("first words"), "it may have been cut"


@pytest.mark.parametrize(
    ("body", "encoding"),
    [(b"PK\x03\x04\x14\x00\x00\x00", ""), (b"\x28\xb5\x2f\xfd\x00\x01\x02\x03\x04", ""),
     (gzip.compress(gzip.compress(b"two times")), "gzip"), ("bad".encode("utf-32"), "")],
)  # fmt: skip
def test_a_body_that_is_no_text_is_counted_and_not_shown(body: bytes, encoding: str) -> None:
    assert re.fullmatch(r"\d+ bytes that are no text( \(sent as gzip.*\))?", body_message(body, encoding))


def test_a_text_with_some_control_characters_stays_one() -> None:
    assert body_message(b"\x1b[31mno such model\x1b[0m\x07") == "\x1b[31mno such model\x1b[0m\x07"
