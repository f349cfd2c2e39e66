"""TTFT fits, scaled curves, and what the back-test really gives."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from longctx.errors import DataError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry
from longctx.plan.forecasting.forecast import Estimate, extrapolate, fit_ttft, forecast
from longctx.plan.forecasting.published_curves import nearest_curve, read_ttft_csv, reference_curves
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.planner import plan_points
from longctx.plan.system import Settings, System
from longctx.resources import MODELS_DIR, RESOURCES
from longctx.storage import parquet, schemas

MI = 2**20
TESTS = Path(__file__).parents[3]
PUBLISHED = read_ttft_csv(RESOURCES / "results" / "mi355x-published.csv", "ttft_s_mean")
PROBE = read_ttft_csv(RESOURCES / "results" / "h200-probe.csv", "ttft_client_s")

# This pipeline on one H200, means of three passes.
MEASURED = {
    row["length"]: row["ttft_s_mean"]
    for row in parquet.read_rows(RESOURCES / "results" / "h200-tp1" / "summary.parquet", schemas.SUMMARY)
    if row["mode"] == "prefill"
}


def back_test(
    ttft_s: Mapping[int, float], up_to: int, bound: Callable[[int], float] | None = None
) -> list[dict[str, float]]:
    """Forecast from the lengths up to `up_to`; return the forecast and its error for each longer one."""
    known = {length: seconds for length, seconds in ttft_s.items() if length <= up_to}
    rows = []
    for length, actual_s in sorted(ttft_s.items()):
        if length > up_to:
            estimate, _ = extrapolate(length, known, bound, "fit")
            row = {"length": length, "actual_s": actual_s, "predicted_s": estimate.ttft_s}
            row |= {"low_s": estimate.low_s, "high_s": estimate.high_s, "error": estimate.ttft_s / actual_s - 1}
            rows.append(row)
    return rows


def test_an_exact_curve_is_recovered() -> None:
    lengths = [1024, 4096, 16384, 65536, 262144]
    times = [0.05 + 1e-5 * n + 2e-11 * n * n for n in lengths]
    fit = fit_ttft(lengths, times)
    assert (fit.c, fit.a, fit.b) == pytest.approx((0.05, 1e-5, 2e-11), rel=1e-6)
    middle, low, high = fit.predict(MI)
    assert middle == pytest.approx(0.05 + 1e-5 * MI + 2e-11 * MI * MI)
    assert low < middle < high


def test_no_coefficient_is_negative() -> None:
    fit = fit_ttft([1024, 2048, 4096, 8192], [1.0, 1.1, 1.2, 1.3])
    assert min(fit.a, fit.b, fit.c) >= 0
    assert fit.predict(2**26)[0] > 0


def test_two_lengths_are_enough_and_one_is_not() -> None:
    fit = fit_ttft([1024, 65536], [0.1, 10.0])
    assert fit.c == 0
    assert fit.predict(65536)[0] == pytest.approx(10.0)
    for lengths, times in (([1024], [0.1]), ([1024, 1024], [0.1, 0.2]), ([1, 2], [0.0, 1.0]), ([1, 2], [1.0])):
        with pytest.raises(DataError):
            fit_ttft(lengths, times)


def test_the_interval_covers_noise_and_grows_beyond_the_data() -> None:
    random = np.random.default_rng(1)
    lengths = [2**i for i in range(10, 19)]
    truth = {n: 0.1 + 1e-5 * n + 1e-10 * n * n for n in [*lengths, MI]}
    covered = 0
    for _ in range(200):
        fit = fit_ttft(lengths, [truth[n] * random.normal(1, 0.03) for n in lengths])
        _, low, high = fit.predict(MI)
        covered += low <= truth[MI] <= high
    assert covered >= 170  # 90 % nominal
    near, far = fit.predict(MI), fit.predict(64 * MI)
    assert (far[2] - far[1]) / far[0] > (near[2] - near[1]) / near[0]


@pytest.mark.parametrize(
    ("curve", "up_to", "length", "error"),
    [
        (PUBLISHED, 8 * MI, 32 * MI, 0.092),
        (PUBLISHED, 8 * MI, 64 * MI, 0.100),
        (PUBLISHED, 32 * MI, 64 * MI, 0.013),
        (PUBLISHED, MI, 64 * MI, -0.146),
        (PROBE, MI // 4, MI // 2, -0.041),
        (PROBE, MI // 4, MI, -0.072),
        (PROBE, MI // 2, MI, -0.024),
        (PROBE, MI // 16, MI, 0.223),
        (MEASURED, MI // 64, MI, 0.233),
        (MEASURED, MI // 16, MI, 0.095),
        (MEASURED, MI // 8, MI, 0.216),
        (MEASURED, MI // 4, MI, 0.085),
        (MEASURED, MI // 2, MI, 0.028),
    ],
)
def test_back_test_gives_what_the_docs_say(curve: dict[int, float], up_to: int, length: int, error: float) -> None:
    bound = reference_curves()[0 if curve is PUBLISHED else 1].bound_s
    row = next(row for row in back_test(curve, up_to, bound) if row["length"] == length)
    assert row["error"] == pytest.approx(error, abs=0.002)
    assert row["low_s"] < row["actual_s"] < row["high_s"]


@pytest.mark.parametrize("curve", [PUBLISHED, PROBE, MEASURED])
def test_no_ladder_s_forecast_misses_a_length_to_come(curve: dict[int, float]) -> None:
    """From two lengths on: a fit of short prompts alone undercuts the limit, or is five times too slow at 1Mi."""
    bound = reference_curves()[0 if curve is PUBLISHED else 1].bound_s
    lengths = sorted(curve)
    for up_to in lengths[1:-1]:
        for row in back_test(curve, up_to, bound):
            assert row["low_s"] <= row["actual_s"] <= row["high_s"], (up_to, row)
            assert bound(int(row["length"])) <= row["low_s"] <= row["predicted_s"] <= row["high_s"]


@pytest.mark.parametrize("index", [0, 1])
def test_short_prompts_do_not_take_back_what_the_same_setup_s_curve_says(index: int) -> None:
    curve, whole = reference_curves()[index], (PUBLISHED, MEASURED)[index]
    for up_to in sorted(whole)[1:7] if index else [MI // 16]:
        known = {n: t for n, t in whole.items() if n <= up_to}
        for length in (n for n in whole if n > up_to and n >= MI // 2):
            found = forecast(length, measured=known, bound=curve.bound_s, curve=curve, same_setup=True)
            assert found is not None
            assert found.source == curve.name
            assert found.ttft_s == pytest.approx(whole[length], rel=0.03)
            assert found.low_s < whole[length] < found.high_s
    slow = {n: 2 * t for n, t in known.items()}
    found = forecast(MI, measured=slow, bound=curve.bound_s, curve=curve, same_setup=True)
    assert found is not None
    assert found.source.startswith("limit, "), "a curve that the own prompts contradict says nothing"


def test_no_longer_prompt_is_expected_sooner_than_a_measured_one() -> None:
    bound = reference_curves()[1].bound_s
    for up_to in sorted(MEASURED)[1:-1]:
        for row in back_test(MEASURED, up_to, bound):
            assert row["predicted_s"] >= MEASURED[up_to], "launches alone take many times the limit of the next length"


def test_measurements_that_beat_the_limit_leave_an_interval() -> None:
    bound = reference_curves()[1].bound_s
    (row,) = back_test({n: bound(n) / 2 for n in (1024, 2048, 4096)}, 2048, bound)
    assert row["low_s"] == bound(4096) < row["predicted_s"] < row["high_s"]


def test_a_curve_says_nothing_against_a_longer_prompt_of_our_own() -> None:
    """Two lengths beyond the curve's end, slower than the limit by a growing factor: no fit is believed."""
    whole = reference_curves()[1]
    short = replace(whole, lengths=whole.lengths[:4], ttft_s=whole.ttft_s[:4])
    known = {1024: 2 * short.bound_s(1024), MI: 1.4 * short.time_at(MI)}
    found = forecast(2 * MI, measured=known, bound=short.bound_s, curve=short, same_setup=True)
    assert found is not None
    assert found.source == "limit, and the share of it reached at 1Mi"


def test_a_fit_without_a_limit_is_taken_as_it_is() -> None:
    for row in back_test(MEASURED, MI // 64):
        known = {n: t for n, t in MEASURED.items() if n <= MI // 64}
        assert row["predicted_s"] == fit_ttft(list(known), list(known.values())).predict(int(row["length"]))[0]


def test_the_interval_of_a_full_ladder_is_student_s() -> None:
    lengths = [2**i for i in range(10, 24)]
    fit = fit_ttft(lengths, [0.05 + 1e-5 * n + 1e-11 * n * n for n in lengths])
    assert fit.degrees == 11
    for length in (fit.longest, fit.longest // 8):
        x = np.array([1.0, length, float(length) ** 2])
        middle, low, high = fit.predict(length)
        assert (high - low) / 2 == pytest.approx(1.796 * np.sqrt(x @ fit.covariance @ x), rel=1e-3)
        assert middle == pytest.approx((low + high) / 2)
        assert high > 1.005 * middle, "the points lie on a curve, and a campaign scatters all the same"


def test_a_shipped_curve_forecasts_itself() -> None:
    for curve in reference_curves():
        for length, seconds in zip(curve.lengths, curve.ttft_s, strict=True):
            estimate = forecast(length, bound=curve.bound_s, curve=curve, same_setup=True)
            assert estimate is not None
            assert estimate.ttft_s == pytest.approx(seconds)
            assert estimate.low_s < estimate.ttft_s < estimate.high_s


def test_beyond_its_end_a_curve_of_the_same_setup_is_fitted_and_its_interval_grows() -> None:
    for whole in reference_curves():
        short = replace(whole, lengths=whole.lengths[:3], ttft_s=whole.ttft_s[:3])
        for length, seconds in list(zip(whole.lengths, whole.ttft_s, strict=True))[3:]:
            estimate = forecast(length, bound=short.bound_s, curve=short, same_setup=True)
            assert estimate is not None
            believed = whole.name == "mi355x-published"
            assert estimate.source == (
                f"fit of {whole.name}" if believed else "limit, and the share of it reached at 16Ki"
            )
            assert estimate.low_s < seconds < estimate.high_s
    probe = reference_curves()[1]
    near, far = (forecast(n * MI, bound=probe.bound_s, curve=probe, same_setup=True) for n in (2, 8))
    assert near is not None
    assert far is not None
    assert (far.high_s - far.low_s) / far.ttft_s > (near.high_s - near.low_s) / near.ttft_s


def test_a_curve_scales_with_the_limit() -> None:
    curve = reference_curves()[0]
    estimate = forecast(MI, bound=lambda n: 2 * curve.bound_s(n), curve=curve)
    assert estimate is not None
    assert estimate.ttft_s == pytest.approx(2 * 18.44)
    assert "scaled by hardware" in estimate.source
    beyond = forecast(128 * MI, bound=curve.bound_s, curve=curve)
    assert beyond is not None
    assert beyond.ttft_s == pytest.approx(4 * 40171.67, rel=0.01)


def test_the_nearest_curve_is_of_the_same_gpu_or_vendor() -> None:
    curves = reference_curves()
    names = {gpu: nearest_curve(load_hardware(gpu), curves) for gpu in ("H200", "B200", "MI355X", "MI300X")}
    assert {gpu: curve and curve.system.gpus.name for gpu, curve in names.items()} == {
        "H200": "H200",
        "B200": "H200",
        "MI355X": "MI355X",
        "MI300X": "MI355X",
    }
    assert nearest_curve(load_hardware("H200"), []) is None


def test_measurements_win_over_curves_and_nothing_beats_the_limit() -> None:
    curve = reference_curves()[0]
    measured = {1024: 0.1, 4096: 0.3, 16384: 1.3}
    exact = forecast(4096, measured=measured, bound=curve.bound_s, curve=curve)
    assert exact is not None
    assert (exact.ttft_s, exact.source) == (0.3, "measured")
    fitted = forecast(MI, measured=measured, bound=curve.bound_s, curve=curve)
    assert fitted is not None
    assert fitted.source == "fit of 3 lengths"
    floored = forecast(MI, measured=measured, bound=lambda n: 1e6)
    assert floored is not None
    assert floored.low_s == 1e6
    assert (floored.ttft_s, floored.high_s) == pytest.approx((1.05**0.5 * 1e6, 1.05e6))
    assert forecast(MI) is None
    assert forecast(MI, measured={1024: 0.1}) is None


SAMPLED = {n * MI: Estimate(t, 0.99 * t, 1.01 * t, "17 samples") for n, t in ((1, 118.0), (4, 1710.0), (64, 40_300.0))}


def test_samples_of_the_recipe_come_before_fits_and_curves() -> None:
    measured = {1 << 16: 1.4, 1 << 18: 10.4, 1 << 19: 33.5}
    assert forecast(64 * MI, measured=measured, sampled=SAMPLED) == SAMPLED[64 * MI]
    assert forecast(1 << 19, measured=measured, sampled=SAMPLED).source == "measured"
    assert forecast(1 << 17, measured=measured, sampled=SAMPLED).source == "fit of 3 lengths"


def test_between_samples_the_forecast_is_interpolated_and_beyond_them_fitted() -> None:
    between = forecast(2 * MI, sampled=SAMPLED)
    # Half way in the logarithm of the length.
    assert between.ttft_s == pytest.approx((118.0 * 1710.0) ** 0.5)
    assert (between.low_s, between.high_s) == (
        pytest.approx(0.99 * between.ttft_s),
        pytest.approx(1.01 * between.ttft_s),
    )
    assert between.source == "17 samples"
    beyond = forecast(128 * MI, measured={1 << 16: 1.4}, sampled=SAMPLED)
    assert beyond.source == "fit of 4 lengths, sampled ones among them"
    assert beyond.ttft_s > 2 * 40_300


def real_geometry(name: str) -> Geometry:
    for path in (TESTS / "data" / "released" / name / "config.json", MODELS_DIR / f"{name}.json"):
        if path.exists():
            return build_geometry(json.loads(path.read_text()), name)
    return build_geometry(json.loads((TESTS / "data" / "real_configs.json").read_text())[name]["config"], name)


@pytest.mark.parametrize(
    ("name", "square_error"),
    [("Mistral-7B-v0.1", 0.3), ("deepseek-ai--DeepSeek-V3.2", 0.04), ("gemma-3-27b", 0.0), ("Mamba2-2.7B", 0.0)],
)
def test_a_prefill_that_grows_slower_than_the_square_has_its_own_law(name: str, square_error: float) -> None:
    # A server that runs matrices at 300 TFLOP/s and attention at 150: the time that its FLOPs take.
    geometry = real_geometry(name)
    system = System(geometry, load_hardware("H200", 8), Parallelism(), Settings("fp8"))

    def truth(tokens: int) -> float:
        return 0.05 + sum(geometry.linear_flops(tokens).values()) / 3e14 + system.attention_work(tokens) / 1.5e14

    lengths = [2**n for n in range(10, 16)]
    times = [truth(n) for n in lengths]
    fit = fit_ttft(lengths, times, system.attention_work)
    square = fit_ttft(lengths, times)
    assert fit.predict(16 * MI)[0] == pytest.approx(truth(16 * MI), rel=0.03)
    assert square.predict(16 * MI)[0] >= (1 + square_error) * truth(16 * MI) * (1 - 1e-6)


@pytest.mark.parametrize(
    "name", ["Mistral-7B-v0.1", "gemma-3-27b", "kimi-linear-48b-a3b", "deepseek-ai--DeepSeek-V3.2"]
)
@pytest.mark.parametrize("gpu", ["H200", "MI355X"])
@pytest.mark.parametrize(
    "measured",
    [
        {},
        {2048: 0.4},
        {1024: 0.3, 4096: 0.2, 16384: 5.0},
        {1024: 30.0, 65536: 40.0},
        {2**n: 0.1 for n in range(10, 16)},
    ],
)  # fmt: skip
def test_no_forecast_falls_with_the_length(name: str, gpu: str, measured: dict[int, float]) -> None:
    system = System(real_geometry(name), load_hardware(gpu, 8), Parallelism(tensor=8), Settings("fp8"))
    lengths = sorted({*(2**n for n in range(8, 27)), *(3 * 2**n for n in range(8, 25))})
    rows = plan_points(system, [("prefill", n) for n in lengths], measured=measured)
    for key in ("est_ttft_s", "est_ttft_low_s", "est_ttft_high_s"):
        known = [(row["length"], row[key]) for row in rows if row["length"] not in measured]
        assert known == sorted(known, key=lambda pair: (pair[1], pair[0])), key
    assert all(row["est_ttft_low_s"] <= row["est_ttft_s"] <= row["est_ttft_high_s"] for row in rows)
    assert [row["est_ttft_s"] for row in rows if row["length"] in measured] == list(measured.values())
