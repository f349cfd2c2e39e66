"""Streams of servers and proxies that keep to no standard: nothing raises, nothing is made up."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from longctx.measure.client.connection import Failure
from longctx.measure.client.response_stream import StreamRecord, body_message

USAGE = {"prompt_tokens": 1024, "completion_tokens": 3}


def event(text: Any = "a", ends: str | None = None, made: int | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": ends}]}
    return content if made is None else content | {"usage": USAGE | {"completion_tokens": made}}


def received(*events: Any) -> StreamRecord:
    """Take events that arrive a second apart; strings are sent as they are."""
    found = StreamRecord()
    for at, content in enumerate(events):
        found.add(content if isinstance(content, str) else json.dumps(content), float(at))
    return found


def tokens(found: StreamRecord) -> list[int | None]:
    return [chunk.tokens for chunk in found.chunks()]


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
        before.add(json.dumps(content), 9.0)
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
     {"message": "boom", "code": 500}, {"error": {"detail": {"message": "boom"}}, "choices": [{"text": "a"}]}],
)  # fmt: skip
def test_every_form_of_an_error_keeps_the_server_s_words(content: dict[str, Any]) -> None:
    with pytest.raises(Failure, match=r"^boom$") as failure:
        received(event(made=1), content)
    assert failure.value.reason == "error_event"


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
            found.add(json.dumps(content), float(at))
    assert all(chunk.tokens is None or chunk.tokens > 0 for chunk in found.chunks())
    counts = (found.usage.get("prompt_tokens"), found.usage.get("completion_tokens"), found.usage.get("cached_tokens"))
    assert all(count is None or (type(count) is int and count >= 0) for count in counts)


def test_an_empty_event_before_the_first_text_is_no_first_token() -> None:
    """Some servers greet before they prefill, and hold a token's text back: as many events as tokens prove nothing."""
    greeted = received(event(""), event(), event(), {"choices": [], "usage": USAGE})
    assert tokens(greeted) == [None, None]
    assert greeted.chunks()[0].elapsed_s == 1.0


def test_counts_that_run_backwards_count_once() -> None:
    assert tokens(received(event(made=2), event(made=1), event(made=3))) == [2, 1]


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"", ""), (b"<html>\xff</html>", "<html>\ufffd</html>"), (b'{"detail": [1]}', "[1]"), (b'"why"', "why"),
     (b'{"error": {"message": "why"}}', "why"), (b'{"error": NaN}', "NaN"), (b"[" * 100_000, "[" * 100_000)],
)  # fmt: skip
def test_a_body_of_any_kind_has_a_message(raw: bytes, message: str) -> None:
    assert body_message(raw) == message
