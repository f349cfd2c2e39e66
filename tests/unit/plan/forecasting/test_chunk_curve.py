"""The curve of chunk costs: exact where costs are linear, and held against real prefills of H200s."""

import csv
from pathlib import Path

import pytest
from longctx.errors import DataError
from longctx.plan.forecasting.chunk_curve import ChunkCurve, Sample

H200 = Path(__file__).parents[3] / "data" / "sampled_prefill_h200.csv"
CHUNK, KI = 16384, 1024


def h200(tensor_parallel: int) -> tuple[ChunkCurve, dict[int, float]]:
    """Return the curve of the recorded samples, and {prompt tokens: s} of the real prefills of that server."""
    lines = [line for line in H200.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if int(row["tensor_parallel"]) == tensor_parallel]
    samples = [
        Sample(int(row["depth_tokens"]), int(row["computed_tokens"]), float(row["server_prefill_s"]))
        for row in rows
        if row["kind"] == "chunks"
    ]
    real = {int(r["computed_tokens"]): float(r["server_prefill_s"]) for r in rows if r["kind"] == "real_prefill"}
    return ChunkCurve.from_samples(samples, CHUNK), real


# What a prototype reached by hand, in the same order: -0.7, -1.3, -0.4, -0.3 % and +1.4, +0.4 %.
@pytest.mark.parametrize(
    ("tensor_parallel", "tokens", "allowed"),
    [(1, 64, 0.007), (1, 256, 0.013), (1, 512, 0.004), (1, 1024, 0.003), (2, 256, 0.02), (2, 512, 0.007)],
)
def test_real_prefills_of_h200s_lie_inside_the_interval(tensor_parallel: int, tokens: int, allowed: float) -> None:
    curve, real = h200(tensor_parallel)
    estimate, measured_s = curve.estimate(tokens * KI), real[tokens * KI]
    assert estimate.low_s < measured_s < estimate.high_s
    assert abs(estimate.seconds / measured_s - 1) < allowed
    assert estimate.half_s < 0.035 * estimate.seconds, "an interval that holds anything says nothing"
    assert estimate.beyond_tokens == 0
    assert estimate.knots == len(curve.knots)


def test_the_cost_at_a_depth_no_knot_has_is_that_of_a_single_chunk_less_the_fixed_part() -> None:
    """2Mi, 4Mi and 8Mi have single chunks only: 2 to 3 % more than the extrapolated cost, as everywhere below."""
    curve, _ = h200(1)
    for depth, single_s in ((2097152, 6.872313), (4194304, 13.357033), (8372224, 26.235364)):
        assert 0 < single_s / curve.cost_s(depth) - 1 < 0.035


def linear_samples(depths: tuple[int, ...], more: int = 2, fixed_s: float = 0.3) -> list[Sample]:
    """Return a pair for each depth at which a last chunk starts; 1000 tokens at depth d take 1 + d/10,000 s."""

    def cost_s(first: int, count: int) -> float:
        return sum(1 + (first + 1000 * i) / 10_000 for i in range(count))

    pairs = []
    for depth in depths:
        pairs.append(Sample(depth, 1000, fixed_s + cost_s(depth, 1)))
        first = depth - 1000 * more
        pairs.append(Sample(first, 1000 * (1 + more), fixed_s + cost_s(first, 1 + more)))
    return pairs


def test_linear_costs_are_summed_exactly_at_any_length() -> None:
    curve = ChunkCurve.from_samples(linear_samples((10_000, 20_000, 80_000)), 1000)
    assert [knot.depth_tokens for knot in curve.knots] == [8_500, 18_500, 78_500]
    assert curve.cost_s(30_000) == pytest.approx(4.0)
    assert curve.fixed_s(50_000) == pytest.approx(0.3)
    # 0.3 + sum of 1 + k/10 for k = 0 … 39, which is 40 + 78; then half a chunk: 500 tokens a quarter chunk shallower.
    assert curve.estimate(40_000).seconds == pytest.approx(118.3)
    assert curve.estimate(40_500).seconds == pytest.approx(118.3 + 0.5 * (1 + (40_000 - 250) / 10_000))
    assert curve.estimate(200_000).seconds == pytest.approx(0.3 + 200 + 1990)
    assert [round(change, 9) for _, change in curve.left_out(40_000)] == [0]
    assert curve.estimate(200_000).beyond_tokens == 200_000 - 81_000


def test_a_pair_may_end_with_a_part_of_a_chunk() -> None:
    deep = [Sample(79_938, 62, 0.9), Sample(78_938, 1062, 0.9 + 1 + 78_938 / 10_000)]
    curve = ChunkCurve.from_samples([*linear_samples((10_000, 20_000)), *deep], 1000)
    assert [knot.depth_tokens for knot in curve.knots] == [8_500, 18_500, 78_938]
    assert curve.cost_s(78_938) == pytest.approx(8.8938)
    assert curve.estimate(40_000).seconds == pytest.approx(118.3)


def test_leaving_out_the_knot_in_a_bend_changes_the_sum() -> None:
    bent = [Sample(claimed, computed, seconds + (2 if claimed > 70_000 else 0) * computed / 1000)
            for claimed, computed, seconds in linear_samples((10_000, 40_000, 80_000))]  # fmt: skip
    curve = ChunkCurve.from_samples(bent, 1000)
    ((depth, change),) = curve.left_out(60_000)
    assert depth == 38_500
    assert change > 0.005
    estimate = curve.estimate(60_000)
    assert estimate.interpolation_s == pytest.approx(change * estimate.seconds)


def test_the_last_chunk_of_a_pipeline_is_paid_once() -> None:
    """Each sample's first token comes three stages after its last chunk: the difference of two samples lacks it."""
    samples = [Sample(c, n, s + 3.0) for c, n, s in linear_samples((10_000, 20_000, 80_000), more=4)]
    curve = ChunkCurve.from_samples(samples, 1000)
    assert curve.estimate(40_000).seconds == pytest.approx(121.3)


def test_prompts_computed_whole_are_taken_as_measured() -> None:
    whole = [Sample(0, 250, 0.5), Sample(0, 500, 0.9), Sample(0, 1000, 1.7), Sample(0, 1000, 1.5)]
    curve = ChunkCurve.from_samples(whole, 1000)
    assert curve.estimate(1000).seconds == pytest.approx(1.6)
    assert curve.estimate(1000).samples == 2
    assert curve.estimate(1000).knots == 0
    assert curve.estimate(375).seconds == pytest.approx(0.7)
    with pytest.raises(DataError, match="needs two"):
        curve.estimate(2000)


def test_the_interval_grows_with_the_spread_and_with_real_deviations() -> None:
    steady = linear_samples((10_000, 20_000, 80_000))
    shaken = [*steady, *(Sample(c, n, s * 1.1) for c, n, s in steady)]
    calm, wild = (ChunkCurve.from_samples(samples, 1000) for samples in ([*steady, *steady], shaken))
    assert calm.estimate(40_000).repeats_s == pytest.approx(0)
    assert wild.estimate(40_000).repeats_s > 0.05 * wild.estimate(40_000).seconds
    wide, narrow = calm.estimate(40_000, [0.01, -0.08]), calm.estimate(40_000, [0.007])
    assert wide.half_s == pytest.approx(0.08 * wide.seconds)
    assert narrow.half_s == pytest.approx(0.007 * narrow.seconds)
    assert calm.estimate(40_000, [0.0001]).half_s == pytest.approx(0.005 * narrow.seconds), "runs differ by more"


@pytest.mark.parametrize("sample", [Sample(0, 1000, 0.0), Sample(-1, 1000, 1.0), Sample(0, 0, 1.0)])
def test_an_impossible_sample_is_refused(sample: Sample) -> None:
    with pytest.raises(DataError, match="positive tokens and seconds"):
        ChunkCurve.from_samples([sample], 1000)
