"""Which event carried the first token, and how many: only what the events prove."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from longctx.measure.client.request import Answer
from longctx.measure.client.token_times import Event, chunks
from longctx.measure.client.ttft_itl import client_decode_tok_s, client_ttft_s
from longctx.measure.row.verdict import CacheExpectation, Observation, Verdict, measured_values, reach_verdict
from longctx.serve.metrics import Window

MADE = 16
# Greeted at once, the first token after 2.5 s, then one each 0.5 s.
GREETING_S, FIRST_S, ITL_S = 0.004, 2.5, 0.5
TIMES = [FIRST_S + k * ITL_S for k in range(MADE)]


def text(at: float, **fields: Any) -> Event:
    return Event(at, True, **fields)


def empty(at: float, **fields: Any) -> Event:
    return Event(at, False, **fields)


def role(at: float = GREETING_S, **fields: Any) -> Event:
    return Event(at, False, only_role=True, **fields)


def judged(events: list[Event], made: int = MADE, window: Window | None = None) -> tuple[Verdict, dict[str, Any]]:
    """Return the verdict on a request for `made` tokens whose stream had these events, and its values."""
    found, texts = chunks(events, made), sum(event.shows_token for event in events)
    answer = Answer(
        "ok", datetime(2026, 11, 30, tzinfo=UTC), chunks=found, text_events=texts, prompt_tokens=1024,
        completion_tokens=made, cached_tokens=0, ttft_s=client_ttft_s(found, texts), e2e_s=events[-1].elapsed_s,
    )  # fmt: skip
    observation = Observation(
        CacheExpectation.COLD, 1024, MADE, answer, window or Window(void="no server metrics"), [], caching=False
    )
    verdict = reach_verdict(observation)
    return verdict, measured_values(observation, verdict)


def counted(events: list[Event]) -> list[Event]:
    """Give the events the running count of texts, as `continuous_usage_stats` does."""
    total, result = 0, []
    for event in events:
        total += event.shows_token
        result.append(Event(event.elapsed_s, event.shows_token, event.only_role, event.ids, total))
    return result


PLAIN = [text(at) for at in TIMES]
ENDING = empty(TIMES[-1])
EXACT = {
    "text alone": PLAIN,
    "an ending event": [*PLAIN, ENDING],
    "role first": [role(), *PLAIN],
    "role twice, an empty one, ending": [role(), role(0.01), empty(0.02), *PLAIN, ENDING],
    "a sign of life each second": [*(empty(float(at)) for at in range(1, 3)), *PLAIN],
    "signs of life between tokens": sorted([*PLAIN, *map(empty, (3.1, 4.2, 6.3))], key=lambda event: event.elapsed_s),
    "counts": counted(PLAIN),
    "counts, role first": counted([role(), *PLAIN, ENDING]),
    "counts that are final from the start": [text(at, count=MADE) for at in TIMES],
    "a greeting that counts all tokens": [empty(GREETING_S, count=MADE), *(text(at, count=MADE) for at in TIMES)],
    "a greeting with the first token's count": [
        empty(GREETING_S, count=1), *(text(at, count=number + 1) for number, at in enumerate(TIMES)),
    ],
    "ids": [text(at, ids=1) for at in TIMES],
    "ids, role first": [role(), *(text(at, ids=1) for at in TIMES), empty(TIMES[-1], ids=0)],
    "counts only now and then": [text(at, count=k + 1 if k % 4 == 3 else None) for k, at in enumerate(TIMES)],
    "counts that are 0 until the end": [text(at, count=0) for at in TIMES],
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_what_the_events_prove_is_exact(name: str) -> None:
    verdict, values = judged(EXACT[name])
    assert verdict.reasons == ("no_metrics",)
    assert values["ttft_s"] == FIRST_S
    assert values["decode_tok_s"] == pytest.approx(1 / ITL_S)
    assert values["itl_p50_s"] == pytest.approx(ITL_S)


UNSEEN = {
    "role, then empty texts that count as many": [role(), *map(empty, TIMES)],
    "role, 15 empty texts and an ending one": [role(), *map(empty, TIMES[1:]), ENDING],
    "a greeting, then empty texts": [empty(GREETING_S), *map(empty, TIMES)],
    "empty texts alone": [*map(empty, TIMES), ENDING],
    "signs of life alone": [empty(float(at)) for at in range(10)],
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_first_token_that_no_event_shows_has_no_time(name: str) -> None:
    verdict, values = judged(UNSEEN[name])
    assert verdict.reasons == ("no_metrics", "first_token_unseen")
    assert verdict.status == "ok"
    assert (values["ttft_s"], values["decode_tok_s"], values["itl_p50_s"]) == (None, None, None)
    assert str(verdict.detail).startswith("no server metrics: prefill is null and decode is null; no event has text")


FOURS = [TIMES[at] for at in (3, 7, 11, 15)]
LATE = {
    "four tokens in each": list(map(text, FOURS)),
    "four tokens in each, by ids": [text(at, ids=4) for at in FOURS],
    "four tokens in each, by counts": [text(at, count=4 * number) for number, at in enumerate(FOURS, 1)],
    "four tokens in each, role first": [role(), *map(text, FOURS), empty(FOURS[-1])],
    "four in each, and signs of life that make it 16": sorted(
        [*map(text, FOURS), *(empty(4.4 + 0.4 * k) for k in range(12))], key=lambda event: event.elapsed_s
    ),
    "the first four together": [text(TIMES[3]), *map(text, TIMES[4:])],
    "the first text empty": [empty(TIMES[0]), *map(text, TIMES[1:])],
    "the first text empty after a greeting": [empty(GREETING_S), empty(TIMES[0]), *map(text, TIMES[1:])],
    "the first text held back": list(map(text, TIMES[1:])),
    "all in one": [text(TIMES[-1])],
    "all in one read": [text(TIMES[-1])] * MADE,
    "a role that counts a token": [
        role(count=1), *(text(at, count=number) for number, at in enumerate(TIMES[1:], 2)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_a_first_token_that_came_earlier_is_told(name: str) -> None:
    verdict, values = judged(LATE[name])
    assert verdict.reasons == ("no_metrics", "first_token_late")
    assert values["ttft_s"] > FIRST_S
    if name != "a role that counts a token":
        assert values["itl_p50_s"] is None


def test_the_server_s_rate_says_how_late_a_first_token_may_be() -> None:
    """With its clock, or against a long prefill, three tokens are nothing."""
    fast = Window(prefill_s=3.9, decode_s=0.15, requests=1, generation_tokens=MADE)
    verdict, _ = judged(LATE["four tokens in each, by ids"], window=fast)
    assert "first_token_late" not in verdict.reasons
    hours = [Event(at + 40_000.0, True) for at in FOURS]
    assert judged(hours)[0].reasons == ("no_metrics",)


def test_a_first_chunk_of_unknown_size_holds_what_the_others_leave() -> None:
    verdict, _ = judged(LATE["four tokens in each"])
    # 13 of 16 at most, and then three in 6 s.
    assert "the first chunk carried up to 13 tokens: TTFT is late by up to 24.000 s" in str(verdict.detail)
    verdict, _ = judged(LATE["all in one"])
    assert "the first chunk carried 16 tokens: TTFT is late by an unknown time" in str(verdict.detail)


@pytest.mark.parametrize(
    "events",
    [
        [text(0.5 * k) for k in range(20)],
        [role(), *(text(0.5 * k) for k in range(1, 18))],
        [text(0.5 * k, count=min(k, MADE)) for k in range(1, 21)],
        [text(0.5 * k, ids=1) for k in range(1, 18)],
        [text(0.5 * k, ids=5) for k in range(1, 5)],
        [*PLAIN, text(11.0, count=MADE)],
    ],
)
def test_more_text_than_tokens_is_a_contradiction(events: list[Event]) -> None:
    verdict, values = judged(events)
    assert (verdict.status, verdict.reasons, values) == ("failed", ("count_mismatch",), {})


def test_more_text_than_a_count_that_is_too_small_is_a_contradiction_too() -> None:
    assert judged(PLAIN, made=5)[0].reasons == ("count_mismatch",)


def test_a_token_whose_text_is_held_back_counts_where_the_usage_says_so() -> None:
    """vLLM sends an event for the first bytes of a character that has no text yet."""
    held = [empty(TIMES[0], count=1), *(text(at, count=number) for number, at in enumerate(TIMES[1:], 2))]
    verdict, values = judged(held)
    assert (verdict.reasons, values["ttft_s"]) == (("no_metrics",), FIRST_S)


def test_text_held_back_to_the_end_takes_nothing_back() -> None:
    flushed = [*(text(at, count=number) for number, at in enumerate(TIMES[:-1], 1)), empty(TIMES[-1], count=MADE)]
    flushed.append(text(TIMES[-1] + 0.1, count=MADE))
    found = chunks(flushed, MADE)
    assert [chunk.total for chunk in found][-1] == MADE
    assert client_decode_tok_s(found) == pytest.approx(1 / ITL_S)


def test_counts_that_run_backwards_prove_nothing_by_themselves() -> None:
    backwards = [text(1.0, count=2), text(2.0, count=1), text(3.0, count=3)]
    assert [chunk.tokens for chunk in chunks(backwards, 3)] == [1, 1, 1], "three texts, three tokens"
    assert [chunk.tokens for chunk in chunks(backwards, 4)] == [None, None, None]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Event], float]:
    """Return a stream of MADE tokens in any form that keeps to the truth, and when its first chunk came.

    Tokens come one by one or together, with their text or with it held back; around them greetings, a role, signs of
    life and an ending event; with usage in each event, in some or in the last only; with ids or without.
    """
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=MADE).filter(lambda sizes: sum(sizes) <= MADE))
    sizes += [1] * (MADE - sum(sizes))
    counts, ids = draw(st.sampled_from(["each", "some", "last"])), draw(st.booleans())
    beats = draw(st.lists(st.floats(0.1, 12.0), max_size=20))
    timed: list[tuple[float, int, int, bool]] = [(at, 1, 0, False) for at in beats]  # arrival, order, tokens, text
    done = 0
    for size in sizes:
        done += size
        timed.append((TIMES[done - 1], 0, size, draw(st.booleans()) or draw(st.booleans())))
    if draw(st.booleans()):
        timed.append((TIMES[-1], 2, 0, False))
    greetings = [draw(st.sampled_from([role, empty]))(GREETING_S) for _ in range(draw(st.integers(0, 2)))]
    events, total = list(greetings), 0
    for at, _, size, visible in sorted(timed):
        total += size
        told = counts == "each" or (counts == "some" and draw(st.booleans()))
        shows = (visible and size > 0) or (ids and size > 0)
        events.append(Event(at, shows, ids=size if ids else None, count=total if told else None))
    return events, TIMES[sizes[0] - 1]


@settings(max_examples=500)
@given(streams())
def test_no_number_of_any_stream_is_wrong_without_a_mark(stream: tuple[list[Event], float]) -> None:
    events, first_chunk_s = stream
    verdict, values = judged(events)
    assert verdict.status == "ok"
    ttft_s = values["ttft_s"]
    if ttft_s is None:
        assert "first_token_unseen" in verdict.reasons
    else:
        assert ttft_s >= first_chunk_s, "before the first token was there"
        late = ttft_s - FIRST_S > max(0.02, 0.15 * ttft_s)
        assert late <= ("first_token_late" in verdict.reasons)
    assert values["decode_tok_s"] in (None, pytest.approx(1 / ITL_S))
    assert values["itl_p50_s"] in (None, pytest.approx(ITL_S))
