"""What a job asks of its node, held against the plan's own numbers."""

import math
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.point import Point
from longctx.plan.campaign_plan import plan_campaign
from longctx.plan.plan_table import PlanTable
from longctx.run import node_request
from longctx.run.node_request import NodeRequest
from longctx.storage import parquet, schemas
from longctx.units import GIB, MIB

KIMI = "moonshotai/Kimi-Linear-48B-A3B-Instruct"


@pytest.fixture(autouse=True)
def _no_summary_of_an_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def campaign(**changes: Any) -> Campaign:
    base: dict[str, Any] = {
        "model": {"source": KIMI},
        "lengths": ["1Ki", "1Mi", "64Mi"],
        "passes": 3,
        "hardware": {"gpu": "MI355X", "count": 8},
        "serve": {
            "tensor_parallel_size": 8,
            "kv_cache_dtype": "fp8_e4m3",
            "gpu_memory_utilization": 0.952,
            "max_num_batched_tokens": 16384,
            "aiter_version": "0.1.19.post2",
            "start_timeout_s": 600,
        },
    }
    return from_dict(base | changes)


def request(campaign: Campaign) -> NodeRequest:
    return NodeRequest(campaign, PlanTable(plan_campaign(campaign).rows))


def test_gpus_are_those_of_one_server() -> None:
    assert request(campaign()).gpus == 8
    assert request(campaign(hardware=None, serve={"tensor_parallel_size": 2, "data_parallel_size": 2})).gpus == 4
    assert request(campaign(hardware=None, serve={"cpu_kv_cache_gib": 1})).gpus == 0
    assert request(campaign(launcher="external", external={"url": "http://h:1"})).gpus == 0


def test_run_time_is_twice_the_slow_end_of_one_pass_and_a_slow_start() -> None:
    made = campaign()
    for row in plan_campaign(made).rows:
        slow_h = row["est_hours"] / 3 * row["est_ttft_high_s"] / row["est_ttft_s"]
        asked = request(made).runtime_minutes([Point(row["length"], 1)])
        assert asked == math.ceil(10 + 120 * slow_h)
        assert asked > 20 * row["est_hours"], "one pass of three takes a third"
    one, two = request(made).runtime_minutes, [Point(1024, 1), Point(1 << 20, 1)]
    assert one(two) == pytest.approx(one(two[:1]) + one(two[1:]) - 10, abs=1)


def test_one_pass_of_a_mode_with_passes_of_its_own() -> None:
    def minutes(**reuse: Any) -> int:
        made = campaign(modes=["prefill", "reuse"], lengths=["1Mi"], reuse=reuse)
        return request(made).runtime_minutes([Point(1 << 20, 1, "reuse")])

    assert minutes(passes=1) == minutes()


def test_a_shared_server_asks_for_all_that_it_climbs() -> None:
    shared = campaign(serve={**campaign().config.plain()["serve"], "scope": "campaign"})
    hours = sum(row["est_hours"] for row in plan_campaign(shared).rows)
    asked = request(shared).runtime_minutes(shared.points())
    assert 10 + 120 * hours <= asked < 10 + 120 * hours * 3


def test_the_unknown_gets_half_a_day_and_the_refused_no_time() -> None:
    tiny: dict[str, Any] = {"model": {"source": "synthetic", "weights": "random"}, "hardware": None}
    unknown = campaign(**tiny, serve={"cpu_kv_cache_gib": 8, "start_timeout_s": 600})
    assert request(unknown).runtime_minutes([Point(1024, 1)]) == 12 * 60 + 10
    refused = campaign(**tiny, serve={"cpu_kv_cache_gib": 1, "start_timeout_s": 600})
    assert plan_campaign(refused).rows[-1]["reason"] == "does_not_fit"
    assert request(refused).runtime_minutes([Point(64 << 20, 1)]) == 10


def test_a_measured_rung_needs_no_guess(tmp_path: Path) -> None:
    made = from_dict(
        {
            "model": {"source": "synthetic", "weights": "dummy"},
            "lengths": ["1Ki"],
            "passes": 1,
            "serve": {"cpu_kv_cache_gib": 8, "start_timeout_s": 60},
        }
    )
    point = Point(1024, 1)
    assert request(made).runtime_minutes([point]) == 12 * 60 + 1
    summary = dict.fromkeys(schemas.SUMMARY.names) | {"mode": "prefill", "length": 1024, "ttft_s_mean": 600.0}
    parquet.write_rows(tmp_path / "results/summary.parquet", schemas.SUMMARY, [summary])
    assert 1 + 2 * 10 <= request(made).runtime_minutes([point]) < 60


def test_without_a_plan_a_length_is_unknown() -> None:
    asked = NodeRequest(campaign(), PlanTable.empty())
    assert asked.runtime_minutes([Point(1024, 1)]) == 12 * 60 + 10
    assert asked.memory_mib([Point(1024, 1)]) == pytest.approx(1.25 * (8 * 8 + 4) * 1024, rel=0.001)


def test_memory_counts_server_weights_cache_and_prompts() -> None:
    short, long = [Point(1024, 1)], [Point(64 << 20, 1)]
    weights = plan_campaign(campaign()).rows[0]["weight_bytes_per_rank"] * 8
    assert weights > 80 * GIB
    ranks = 8 * node_request.RANK_BYTES + node_request.SERVER_BYTES
    assert request(campaign()).memory_mib(short) == pytest.approx(1.25 * (weights + ranks) / MIB, rel=0.001)
    more = request(campaign()).memory_mib(long) - request(campaign()).memory_mib(short)
    assert more == pytest.approx(1.25 * 10 * 1024, rel=0.01), "64Mi ids weigh 10 GiB on their way"
    dummy = request(campaign(model={"source": KIMI, "weights": "dummy"})).memory_mib(short)
    assert dummy == pytest.approx(1.25 * ranks / MIB, rel=0.001), "random weights are made on the GPUs"
    kept = request(campaign(checkpoint={"dir": "/scratch", "cpu_gib": 64})).memory_mib(short)
    assert kept == pytest.approx(request(campaign()).memory_mib(short) + 1.25 * 64 * 1024, abs=1)
    cpu = from_dict({"model": {"source": KIMI}, "lengths": ["1Ki"], "serve": {"cpu_kv_cache_gib": 2}})
    assert request(cpu).memory_mib(short) > 1.25 * (2 * GIB + weights / 8) / MIB
    external = campaign(launcher="external", external={"url": "http://h:1"})
    assert request(external).memory_mib(short) == pytest.approx(1.25 * 4 * 1024, rel=0.001)
