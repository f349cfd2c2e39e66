"""The rows of a plan: fits, reasons, remedies and hours."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from longctx.model.geometry import Geometry
from longctx.model.reader import read_geometry
from longctx.plan import planner
from longctx.plan.hardware import Hardware, Parallelism, load_hardware
from longctx.plan.planner import campaign_hours, plan_points
from longctx.plan.system import Settings, System

MI, GIB = 2**20, 2**30
KIMI = read_geometry("kimi-linear-48b-a3b")
LLAMA = read_geometry("llama-3.1-8b")
MI355X, H200 = load_hardware("MI355X", 8), load_hardware("H200")
TP8, ONE = Parallelism(tensor=8), Parallelism()
PUBLISHED = Settings("fp8_e4m3", 0.952, 16384, aiter_version="v0.1.19.post2", passes=3)


def plan_row(
    geometry: Geometry,
    hardware: Hardware | None,
    split: Parallelism,
    settings: Settings,
    length: int,
    mode: str = "prefill",
) -> dict[str, Any]:
    return plan_points(System(geometry, hardware, split, settings), [(mode, length)])[0]


def plan_kimi(points: Sequence[tuple[str, int]], settings: Settings, **options: Any) -> list[dict[str, Any]]:
    return plan_points(System(KIMI, H200, ONE, settings), points, **options)


def test_the_published_recipe_fits_and_takes_days() -> None:
    points = [("prefill", 2**i) for i in range(10, 27)]
    rows = plan_points(System(KIMI, MI355X, TP8, PUBLISHED), points, requests=lambda _, n: 5 if n <= 65536 else 1)
    assert all(row["fits"] for row in rows)
    last = rows[-1]
    assert last["kv_bytes_per_rank"] == 252 * GIB
    assert last["est_ttft_s"] == pytest.approx(40171.67)
    assert last["est_hours"] == pytest.approx(3 * 40171.67 / 3600, rel=0.02)
    hours = campaign_hours(rows)
    assert hours is not None
    assert 40 < hours < 60


def test_bf16_does_not_fit_at_64mi_and_the_remedy_says_what_would() -> None:
    row = plan_row(KIMI, MI355X, TP8, replace(PUBLISHED, kv_dtype="bfloat16"), 64 * MI)
    assert (row["fits"], row["reason"], row["est_hours"]) == (False, "does_not_fit", None)
    assert row["kv_bytes_per_rank"] == 504 * GIB
    assert row["remedy"].startswith("needs 504.1 GiB of KV cache per rank, 25")
    assert "would fit: kv_cache_dtype fp8 or TP2 PP4 or lengths up to 34,5" in row["remedy"]


def test_every_remedy_that_names_a_split_really_fits() -> None:
    row = plan_row(KIMI, H200, Parallelism(), Settings("fp8", 0.95, 16384), 16 * MI)
    assert row["fits"] is False
    assert "TP2 on 2 GPUs" in row["remedy"]
    again = plan_row(KIMI, load_hardware("H200", 2), Parallelism(tensor=2), Settings("fp8", 0.95, 16384), 16 * MI)
    assert again["fits"] is True


def test_weights_alone_may_not_fit() -> None:
    row = plan_row(read_geometry("deepseek-v3"), H200, Parallelism(), Settings("fp8"), 1024)
    assert row["fits"] is False
    assert "the weights (626.9 GiB per GPU) leave no room" in row["remedy"]
    assert "TP8 on 8 GPUs" in row["remedy"]
    assert row["capacity_tokens"] == 0


def test_a_chunk_may_take_the_room_that_weights_leave() -> None:
    row = plan_row(LLAMA, H200, ONE, Settings("fp8", 0.95, batched_tokens=2**20), 1024)
    assert row["fits"] is False
    assert row["remedy"].startswith("the weights (15.0 GiB per GPU) and the workspace of a prefill chunk of 1,048,576")
    assert "lower max_num_batched_tokens" in row["remedy"]


def test_a_split_that_vllm_does_not_start_is_refused_and_never_recommended() -> None:
    split = Parallelism(tensor=8, decode_context=8)
    row = plan_row(KIMI, MI355X, split, replace(PUBLISHED, vllm_version="0.25.1"), 64 * MI)
    assert (row["fits"], row["reason"], row["est_hours"]) == (False, "unsupported", None)
    assert "vLLM 0.25.1 refuses context parallelism for hybrid models" in row["remedy"]
    assert "DCP" not in row["remedy"].partition("would fit")[2]
    mla = plan_row(read_geometry("deepseek-v3"), MI355X, split, replace(PUBLISHED, vllm_version="0.25.1"), MI)
    assert mla["reason"] is None


def test_cpu_plans_without_hardware() -> None:
    settings = Settings("fp8", cpu_kv_gib=4.0, headroom_tokens=1024)
    row = plan_row(LLAMA, None, Parallelism(), settings, 1024)
    assert row["fits"] is True
    assert row["ttft_bound_s"] is row["decode_bound_tok_s"] is row["est_ttft_s"] is row["est_hours"] is None
    refused = plan_row(LLAMA, None, Parallelism(), settings, MI)
    assert "VLLM_CPU_KVCACHE_SPACE=128" in refused["remedy"]
    unknown = plan_row(LLAMA, None, Parallelism(), Settings("fp8"), 1024)
    assert (unknown["fits"], unknown["reason"]) == (None, None)


def test_a_length_that_aiter_cannot_address_is_unsupported() -> None:
    row = plan_row(KIMI, MI355X, TP8, replace(PUBLISHED, aiter_version="0.1.5"), 32 * MI)
    assert (row["fits"], row["reason"]) == (False, "unsupported")


def test_measured_rungs_update_the_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "reference_curves", list)
    measured = {1024: 0.157, 16384: 0.306, 65536: 1.89, 131072: 3.791, 262144: 10.707}
    points = [("prefill", 65536), ("prefill", MI)]
    before = plan_kimi(points, Settings("fp8", 0.95))
    after = plan_kimi(points, Settings("fp8", 0.95), measured=measured)
    assert [row["est_ttft_s"] for row in before] == [None, None]
    assert (after[0]["est_ttft_s"], after[0]["est_source"]) == (1.89, "measured")
    assert after[1]["est_ttft_s"] == pytest.approx(119.8, rel=0.1)
    assert after[1]["est_ttft_low_s"] < 119.8 < after[1]["est_ttft_high_s"]


def test_modes_cost_what_they_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "GPU_START_S", 0.0)
    settings = Settings("fp8", 0.95, passes=2)
    points = [("prefill", MI), ("reuse", MI), ("decode_only", MI)]
    rows = plan_kimi(points, settings, requests=lambda *_: 3)
    prefill, reuse, decode_only = rows
    assert prefill["est_hours"] == pytest.approx(2 * 3 * 119.8 / 3600, rel=0.02)
    assert reuse["est_hours"] == pytest.approx(2 * 119.8 / 3600, rel=0.05)
    assert decode_only["est_hours"] < 0.01
    assert decode_only["ttft_bound_s"] is decode_only["est_ttft_s"] is None


def test_a_campaign_takes_the_hours_of_what_runs_and_is_unknown_where_one_of_these_is() -> None:
    runs, refused = {"reason": None, "est_hours": 2.0}, {"reason": "does_not_fit", "est_hours": None}
    assert campaign_hours([runs, refused, runs]) == 4.0
    assert campaign_hours([runs, {"reason": None, "est_hours": None}]) is None


@pytest.mark.parametrize(("scope", "starts"), [("point", 8), ("pass", 4), ("campaign", 2)])
def test_each_mode_starts_servers_of_its_own(scope: str, starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "GPU_START_S", 3600.0)
    settings = Settings("fp8", 0.95, passes=2, max_new_tokens=1, scope=scope)
    points = [(mode, length) for mode in ("prefill", "decode_only") for length in (1024, 2048)]
    rows = plan_kimi(points, settings)
    assert sum(row["est_hours"] for row in rows) == pytest.approx(starts, abs=0.01)


@pytest.mark.parametrize(("length", "step_s"), [(1024, 0.004), (64 * MI, 0.060)])
def test_a_decode_step_is_planned_as_long_as_the_published_one(
    length: int, step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "GPU_START_S", 0.0)
    settings = replace(PUBLISHED, passes=1, max_new_tokens=128)
    row = plan_row(KIMI, MI355X, TP8, settings, length, mode="decode_only")
    assert row["est_hours"] * 3600 / 128 == pytest.approx(step_s, rel=0.15)


def test_a_shipped_curve_counts_as_the_same_setup_for_the_same_split_only() -> None:
    settings = replace(PUBLISHED, kv_dtype="fp8")
    sources = {
        split.label: plan_row(KIMI, MI355X, split, settings, MI)["est_source"]
        for split in (TP8, Parallelism(pipeline=8))
    }
    assert sources == {"TP8": "mi355x-published", "PP8": "mi355x-published, scaled by hardware"}


def test_samples_cost_the_difference_of_two_forecasts() -> None:
    settings = Settings("fp8", 0.95, 16384, passes=3, scope="campaign")
    ((start,), (cost,)) = (
        plan_kimi([("sampled", MI)], settings, samples=lambda mode, length, parts=parts: parts)
        for parts in ([], [(MI - 3 * 16384, MI), (MI - 16384, MI), (0, MI)])
    )
    whole, less, least = (
        plan_kimi([("prefill", n)], settings)[0]["est_ttft_s"] for n in (MI, MI - 16384, MI - 3 * 16384)
    )
    assert start["est_hours"] == pytest.approx(planner.GPU_START_S / 3600), "one server for all passes"
    expected_s = (whole - least) + (whole - less) + whole
    assert (cost["est_hours"] - start["est_hours"]) * 3600 == pytest.approx(expected_s)
    assert cost["est_ttft_s"] is None


def test_samples_without_a_forecast_have_no_hours() -> None:
    system = System(LLAMA, None, ONE, Settings(cpu_kv_gib=64))
    rows = plan_points(system, [("sampled", 65536)], samples=lambda mode, length: [(63488, length)])
    assert rows[0]["est_hours"] is None


def test_what_the_cpu_does_not_serve_says_what_to_change() -> None:
    row = plan_points(System(KIMI, None, ONE, Settings(cpu_kv_gib=2)), [("prefill", 1024)])[0]
    assert row["remedy"] == (
        "vLLM on the CPU has no kernel for KDA layers; name GPUs as 'hardware', or take a model, split and KV cache"
        " type that the CPU serves"
    )
