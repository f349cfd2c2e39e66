"""Rates and latencies of a stream, against an oracle that shares no code with them."""

import math
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from longctx.measure.client.ttft_itl import Chunk, client_decode_tok_s, coalesced, itl_quantiles
from longctx.serve.metrics import decode_tok_s

NO_ITL = dict.fromkeys(("itl_p50_s", "itl_p90_s", "itl_p99_s", "itl_max_s"))


def make(times_and_tokens: list[tuple[float, int]]) -> list[Chunk]:
    chunks, total = [], 0
    for elapsed_s, tokens in times_and_tokens:
        total += tokens
        chunks.append(Chunk(elapsed_s, tokens, total))
    return chunks


streams = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 9)), max_size=40).map(
    lambda steps: make([(sum(step for step, _ in steps[: i + 1]) / 1e6, tokens) for i, (_, tokens) in enumerate(steps)])
)


@given(streams)
def test_the_rate_is_tokens_after_the_first_chunk_over_their_time(chunks: list[Chunk]) -> None:
    rate = client_decode_tok_s(chunks)
    if len(chunks) < 2:
        assert rate is None
        return
    exact = Fraction(chunks[-1].total - chunks[0].total) / (
        Fraction(chunks[-1].elapsed_s) - Fraction(chunks[0].elapsed_s)
    )
    assert rate == pytest.approx(float(exact))
    assert math.isfinite(rate)


def test_two_tokens() -> None:
    assert client_decode_tok_s(make([(1.0, 1), (1.25, 1)])) == 4.0


@pytest.mark.parametrize("chunks", [[], make([(1.0, 1)]), make([(1.0, 16)]), make([(1.0, 1), (1.0, 1)])])
def test_no_time_between_tokens_is_no_rate(chunks: list[Chunk]) -> None:
    assert client_decode_tok_s(chunks) is None


def test_sixteen_tokens_in_four_chunks_are_not_four_tokens() -> None:
    chunks = make([(0.1, 4), (0.2, 4), (0.3, 4), (0.4, 4)])
    assert client_decode_tok_s(chunks) == pytest.approx(40.0)
    assert coalesced(chunks) is True
    assert itl_quantiles(chunks) == NO_ITL


def test_two_tokens_in_one_chunk_are_coalesced_and_a_lone_token_has_no_gap() -> None:
    pair = make([(0.1, 1), (0.2, 2), (0.3, 1)])
    assert coalesced(pair) is True
    assert itl_quantiles(pair) == NO_ITL
    assert itl_quantiles(make([(0.1, 1)])) == NO_ITL
    assert itl_quantiles([]) == NO_ITL


def test_unknown_counts_give_nothing() -> None:
    chunks = [Chunk(0.1, None, None), Chunk(0.2, None, None)]
    assert (client_decode_tok_s(chunks), coalesced(chunks), itl_quantiles(chunks)) == (None, None, NO_ITL)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60))
def test_itl_quantiles(gaps_us: list[int]) -> None:
    chunks = make([(0.5 + sum(gaps_us[:i]) / 1e6, 1) for i in range(len(gaps_us) + 1)])
    found = itl_quantiles(chunks)
    if len(gaps_us) > 1:
        cuts = statistics.quantiles([gap / 1e6 for gap in gaps_us], n=100, method="inclusive")
        assert found["itl_p50_s"] == pytest.approx(cuts[49])
        assert found["itl_p90_s"] == pytest.approx(cuts[89])
        assert found["itl_p99_s"] == pytest.approx(cuts[98])
    assert found["itl_max_s"] == pytest.approx(max(gaps_us) / 1e6)


@pytest.mark.parametrize(
    ("tokens", "time_s", "rate"),
    [(128, 0.6733828, 188.6), (2, 0.5, 2.0), (1, 0.5, None), (1, 0.0, None), (16, 0.0, None), (None, 1.0, None),
     (16, None, None), (0, 1.0, None), (16, 1e-320, None)],
)  # fmt: skip
def test_server_rate(tokens: int | None, time_s: float | None, rate: float | None) -> None:
    assert decode_tok_s(tokens, time_s) == (None if rate is None else pytest.approx(rate))
