"""Where more samples are asked for: beside the knot whose absence changes a sum most, and nowhere on a line."""

from collections.abc import Callable

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.modes.sampled.measure import FACET
from longctx.modes.sampled.refinement import MOST_PAIRS, next_prompt
from longctx.plan.forecasting.chunk_curve import ChunkCurve, Sample
from longctx.storage.journal import Journal

CHUNK = 1000
LENGTHS = (8_000, 16_000, 32_000, 64_000)
Cost = Callable[[float], float]


def straight(depth: float) -> float:
    return 1 + depth / 10_000


def bent(depth: float) -> float:
    """Chunks beyond 20,000 tokens cost a half more."""
    return straight(depth) * (1.5 if depth > 20_000 else 1)


def samples(length: int, cost: Cost) -> list[Sample]:
    """The pair of a prompt whose chunks cost this, behind 0.2 s that every request pays."""
    starts = [length - CHUNK * chunks for chunks in (3, 2, 1)]
    return [
        Sample(starts[-1], CHUNK, 0.2 + cost(starts[-1])),
        Sample(starts[0], 3 * CHUNK, 0.2 + sum(map(cost, starts))),
    ]


def curve(lengths: tuple[int, ...], cost: Cost) -> ChunkCurve:
    return ChunkCurve.from_samples([sample for length in lengths for sample in samples(length, cost)], CHUNK)


def test_a_straight_line_needs_no_more() -> None:
    assert next_prompt(curve(LENGTHS, straight), LENGTHS) is None


def test_two_knots_cannot_show_a_bend() -> None:
    assert next_prompt(curve(LENGTHS[:2], bent), LENGTHS) is None


def test_a_bend_gets_a_prompt_in_the_wider_interval_beside_it_until_no_knot_matters() -> None:
    assert [knot.depth_tokens for knot in curve(LENGTHS, bent).knots] == [5_500, 13_500, 29_500, 61_500]
    # Without the knot at 13,500 the line from 5,500 to 29,500 would lie far above it: the step is in the wider interval
    # beside it, the middle of which is 21.5 chunks deep. A pair of 24 chunks starts its difference there.
    assert next_prompt(curve(LENGTHS, bent), LENGTHS) == 24_000
    assert curve((24_000,), bent).knots[0].depth_tokens == 21_500
    assert next_prompt(curve((*LENGTHS, 24_000), bent), LENGTHS) not in (None, 24_000)


def test_no_prompt_fits_between_neighbours() -> None:
    close = (8_000, 9_000, 10_000, 11_000)
    assert next_prompt(curve(close, lambda depth: straight(depth) * (2 if depth == 6_500 else 1)), close) is None


@pytest.fixture
def campaign(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(tmp_path)
    raw = {"lengths": list(LENGTHS), "passes": 1, "modes": ["sampled"]}
    return from_dict(raw | {"model": {"source": "synthetic", "weights": "dummy"}})


def write(campaign: Campaign, length: int, cost: Cost, index: int = 0, point_length: int | None = None) -> None:
    journal = Journal.open(journal_path(campaign, Point(point_length or length, 1, "sampled")))
    for role, (claimed, _, seconds) in zip(("sample_short", "sample_long"), samples(length, cost), strict=True):
        row = {"role": role, "request_index": index, "status": "ok", "max_num_batched_tokens": CHUNK}
        journal.append("row", row | {"prompt_tokens": length, "claimed_tokens": claimed, "sample_prefill_s": seconds})


def test_only_the_longest_point_is_refined_a_pair_at_a_time_and_not_without_end(campaign: Campaign) -> None:
    longest = Point(LENGTHS[-1], 1, "sampled")
    assert FACET.more_requests(campaign, longest) == [], "nothing is measured"
    for length in LENGTHS:
        write(campaign, length, bent)
    assert FACET.more_requests(campaign, Point(LENGTHS[-2], 1, "sampled")) == []
    asked = []
    while more := FACET.more_requests(campaign, longest):
        (short, index), (long, again) = more
        assert (short, long) == ("sample_short", "sample_long")
        assert index == again
        asked.append(index)
        write(campaign, index, bent, index, longest.length)
    assert asked[0] == 24_000
    assert len(asked) == len(set(asked)) <= MOST_PAIRS
