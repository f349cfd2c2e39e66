"""Warm-up: which requests are sent, when they count as steady, and when it gives up."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from longctx.measure.warmup import CHUNK_TOKENS, SECOND_CHUNK_TOKENS, SMALL_TOKENS, agrees, warm_up

JIT = "jit"
FAILED = "failed"


def run(times: Sequence[float | str], **options: Any) -> tuple[bool, list[tuple[int, int]]]:
    """Warm up against a server whose small requests take `times`; return the verdict and each (index, tokens) sent."""
    sent: list[tuple[int, int]] = []
    small = iter(times)
    defaults = {"chunk_tokens": 2048, "longest": 100_000, "maximum": 6, "long_first": True}

    def send(index: int, count: int) -> Any:
        sent.append((index, count))
        value: float | str = 30.0 if count > SMALL_TOKENS else next(small)
        seconds = value if isinstance(value, float) else 1.0
        return SimpleNamespace(
            status="failed" if value == FAILED else "ok", jit_events=int(value == JIT), e2e_s=seconds
        )

    steady = warm_up(send, **(defaults | options))
    return steady, sent


def test_a_full_chunk_and_more_comes_first_then_three_small_ones() -> None:
    steady, sent = run([0.5, 0.5, 0.5])
    assert steady
    assert sent == [(6, 2048 + SECOND_CHUNK_TOKENS), (0, 256), (1, 256), (2, 256)]


def test_it_goes_on_until_two_in_a_row_agree() -> None:
    steady, sent = run([24.0, 5.0, 0.9, 0.2, 0.21])
    assert steady
    assert len(sent) == 6


def test_agreement_before_the_third_request_does_not_end_it() -> None:
    assert len(run([0.5, 0.5, 9.0, 0.5, 0.5])[1]) == 1 + 5


def test_a_request_that_compiled_something_agrees_with_nothing() -> None:
    steady, sent = run([1.0, 1.0, JIT, 1.0, 1.0])
    assert steady
    assert len(sent) == 6


def test_it_gives_up_at_the_maximum() -> None:
    steady, sent = run([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    assert not steady
    assert len(sent) == 7


@pytest.mark.parametrize(("times", "requests"), [([FAILED], 2), ([1.0, FAILED], 3)])
def test_a_failed_request_ends_it(times: list[float | str], requests: int) -> None:
    steady, sent = run(times)
    assert not steady
    assert len(sent) == requests


def test_the_long_prompt_can_be_left_out() -> None:
    assert run([1.0, 1.0, 1.0], long_first=False)[1][0] == (0, SMALL_TOKENS)


def test_an_unknown_chunk_is_taken_as_the_common_one() -> None:
    assert run([1.0, 1.0, 1.0], chunk_tokens=None)[1][0] == (6, CHUNK_TOKENS + SECOND_CHUNK_TOKENS)


def test_no_warm_up_is_longer_than_the_longest_prompt() -> None:
    _, sent = run([1.0] * 4, longest=17)
    assert {tokens for _, tokens in sent} == {17}


@pytest.mark.parametrize(
    ("first_s", "second_s", "alike"),
    [(1.0, 1.25, True), (1.0, 1.26, False), (0.01, 0.06, True), (0.01, 0.07, False), (None, 1.0, False)],
)
def test_times_agree_within_a_quarter_or_50_ms(first_s: float | None, second_s: float, alike: bool) -> None:
    assert agrees(first_s, second_s) is alike
    assert agrees(second_s, first_s) is alike
