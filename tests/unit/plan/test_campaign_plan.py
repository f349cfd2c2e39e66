"""A campaign's plan in its file, made before anything else of the campaign is there."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.errors import DataError, GeometryError
from longctx.model.reader import read_geometry
from longctx.plan.campaign_plan import known_plan, measured_ttft, plan_campaign, refine_plan, sampled_ttft, save_plan
from longctx.plan.hardware import Parallelism
from longctx.plan.plan_table import PlanTable
from longctx.plan.text import plan_text
from longctx.prompts.sources import CorpusSpec
from longctx.prompts.synthetic_model import make_dummy_from_config, make_model
from longctx.resources import MODELS_DIR
from longctx.storage import parquet, schemas
from shipped import ROOT, read_campaign

LLAMA = read_geometry("llama-3.1-8b")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def synthetic(**model: Any) -> Campaign:
    return from_dict(
        {
            "model": {"source": "synthetic", "weights": "dummy", **model},
            "lengths": ["1Ki", "4Ki"],
            "modes": ["prefill", "reuse"],
            "serve": {"cpu_kv_cache_gib": 8},
        }
    )


def test_the_saved_plan_is_that_of_the_campaign() -> None:
    campaign = synthetic()
    path = save_plan(campaign)
    assert path == campaign.results / ".config" / f"{campaign.labels['config_hash']}.plan.parquet"
    assert PlanTable.read(path).rows == plan_campaign(campaign).rows


def test_a_saved_plan_keeps_its_time_until_its_rows_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = synthetic()
    path = save_plan(campaign)
    assert path is not None
    os.utime(path, (1, 1))
    monkeypatch.setenv("LONGCTX_GIT_REVISION", "another")
    save_plan(campaign)
    assert path.stat().st_mtime == 1, "the revision in the metadata is no reason"
    for content in (path.read_bytes()[:-1], b""):
        path.write_bytes(content)
        assert save_plan(campaign) == path
        assert PlanTable.read(path).rows == plan_campaign(campaign).rows


@pytest.mark.parametrize(
    "model",
    [{}, {"layers": 3, "hidden_size": 256, "vocabulary": 512}, {"geometry": "resources/models/llama-3.1-8b.json"}],
)
def test_a_synthetic_model_is_planned_as_it_will_be_made(model: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.py").write_text("print('a')\n" * 100)
    campaign = synthetic(**model)
    early = plan_campaign(campaign).system.geometry
    option, value = campaign.model_arguments
    folder, corpus = Path(campaign.model_path), CorpusSpec(str(tmp_path / "corpus"))
    if option == "--from-config":
        make_dummy_from_config(value, folder, corpus)
    else:
        make_model(folder, json.loads(value), corpus)
    assert replace(early, name="") == replace(read_geometry(folder), name="")
    assert early.name.endswith(" (random weights)")
    assert plan_campaign(campaign).system.geometry == early


def test_a_model_that_nothing_can_read_has_no_plan() -> None:
    campaign = from_dict({"model": {"source": "nobody/nothing"}, "lengths": ["1Ki"]})
    assert save_plan(campaign) is None
    assert not campaign.results.exists()


def test_a_split_that_the_model_refuses_has_no_plan() -> None:
    model = {"source": "synthetic", "weights": "dummy", "heads": 2}
    assert save_plan(from_dict({"model": model, "lengths": ["1Ki"], "serve": {"tensor_parallel_size": 3}})) is None


def campaign(**changes: Any) -> dict[str, Any]:
    base = {
        "model": {"source": "moonshotai/Kimi-Linear-48B-A3B-Instruct"},
        "lengths": ["1Ki", "64Ki", "64Mi"],
        "passes": 3,
        "repeats": {"count": 5, "up_to": "64Ki"},
        "modes": ["prefill", "reuse"],
        "hardware": {"gpu": "MI355X", "count": 8},
        "serve": {
            "tensor_parallel_size": 8,
            "kv_cache_dtype": "fp8_e4m3",
            "gpu_memory_utilization": 0.952,
            "max_num_batched_tokens": 16384,
            "aiter_version": "0.1.19.post2",
        },
    }
    return base | changes


def test_a_pinned_revision_is_looked_up_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    repo, commit = tmp_path / "models--some--model", "0" * 40
    folder = repo / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((MODELS_DIR / "llama-3.1-8b.json").read_text())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    plan = plan_campaign(from_dict(campaign(model={"source": "some/model", "revision": commit}, lengths=["1Ki"])))
    assert plan.system.geometry.parameters_total == LLAMA.parameters_total


def test_a_model_that_the_plan_cannot_read_is_planned_from_a_file_that_it_can(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "brand_new"}))
    model = {"source": str(tmp_path)}
    with pytest.raises(
        GeometryError, match=r"brand_new.*name a config\.json that the plan can read as model\.geometry"
    ):
        plan_campaign(from_dict(campaign(model=model)))
    model["geometry"] = "resources/models/llama-3.1-8b.json"
    assert plan_campaign(from_dict(campaign(model=model))).system.geometry.parameters_total == LLAMA.parameters_total


def test_a_campaign_is_planned_from_its_configuration() -> None:
    plan = plan_campaign(from_dict(campaign()))
    assert plan.system.parallelism == Parallelism(tensor=8)
    assert plan.system.settings.headroom_tokens == 16384
    assert [(row["mode"], row["length"]) for row in plan.rows][:2] == [("prefill", 1024), ("prefill", 65536)]
    assert all(row["fits"] for row in plan.rows)
    measured = plan_campaign(from_dict(campaign()), {1024: 0.1, 65536: 0.9})
    assert measured.rows[0]["est_source"] == "measured"


def test_nothing_is_said_of_the_machine_of_an_external_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    plan = plan_campaign(read_campaign(ROOT / "workflow" / "campaigns" / "external.yaml"))
    assert {(row["fits"], row["reason"], row["est_hours"]) for row in plan.rows} == {(None, None, None)}
    text = plan_text(plan.system, plan.rows)
    assert "on an external server" in text
    assert "its hardware is not known: name it as 'hardware'" in text
    assert "CPU" not in text


def test_a_mode_with_passes_of_its_own_costs_its_own_hours() -> None:
    def hours(**reuse: Any) -> dict[str, float]:
        planned = plan_campaign(from_dict(campaign(lengths=["1Mi"], passes=4, reuse=reuse)))
        return {row["mode"]: row["est_hours"] for row in planned.rows}

    assert hours(passes=1)["prefill"] == hours()["prefill"]
    assert hours(passes=1)["reuse"] == pytest.approx(hours()["reuse"] / 4)


@pytest.mark.parametrize(
    "changes",
    [{"reuse": {"queries": 9}}, {"reuse": {"passes": 9}}, {"lengths": ["2Ki"]}, {"decode_only": {"passes": 9}}],
)
def test_whatever_the_plan_depends_on_makes_it_anew(changes: dict[str, Any]) -> None:
    assert from_dict(campaign(**changes)).plan_settings() != from_dict(campaign()).plan_settings()


def test_measured_lengths_come_from_good_summary_rows(tmp_path: Path) -> None:
    values = (("prefill", 1024, 0.1), ("prefill", 4096, None), ("reuse", 8192, 0.01))
    empty = dict.fromkeys(schemas.SUMMARY.names)
    rows = [empty | {"mode": mode, "length": length, "ttft_s_mean": ttft_s} for mode, length, ttft_s in values]
    parquet.write_rows(tmp_path / "summary.parquet", schemas.SUMMARY, rows)
    assert measured_ttft(tmp_path / "summary.parquet") == {1024: 0.1}
    assert measured_ttft(tmp_path / "none.parquet") == measured_ttft(None) == {}


def test_a_summary_with_measured_prompts_refines_the_forecast() -> None:
    kimi = from_dict(campaign())
    path = save_plan(kimi)
    assert path is not None
    plan = PlanTable.read(path)
    assert refine_plan(kimi, plan) is plan
    summary = dict.fromkeys(schemas.SUMMARY.names) | {"mode": "prefill", "length": 1024, "ttft_s_mean": 600.0}
    parquet.write_rows(kimi.results / "summary.parquet", schemas.SUMMARY, [summary])
    assert refine_plan(kimi, plan).get("prefill", 1024)["est_ttft_s"] == 600.0
    (kimi.results / "summary.parquet").write_bytes(b"PAR1")
    assert refine_plan(kimi, plan) is plan


def sampled_row(kimi: Campaign, length: int, ttft_s: float, **changes: Any) -> dict[str, Any]:
    """Return a summary row whose TTFT is an estimate ± 1 %."""
    low, high = 0.99 * ttft_s, 1.01 * ttft_s
    estimate = {"ttft_estimate_s": ttft_s, "ttft_estimate_low_s": low, "ttft_estimate_high_s": high}
    labels = {"mode": "sampled", "length": length, "recipe_hash": kimi.recipe_hash("sampled")}
    return dict.fromkeys(schemas.SUMMARY.names) | labels | estimate | {"ttft_estimate_samples": 17} | changes


def test_samples_of_this_recipe_are_the_plans_forecast(tmp_path: Path) -> None:
    kimi, summary = from_dict(campaign()), tmp_path / "summary.parquet"
    rows = [sampled_row(kimi, 1024, 0.1), sampled_row(kimi, 64 << 20, 40_320.0)]
    parquet.write_rows(summary, schemas.SUMMARY, rows)
    planned = plan_campaign(kimi, measured_ttft(summary), sampled_ttft(summary, kimi))
    row = next(row for row in planned.rows if (row["mode"], row["length"]) == ("prefill", 64 << 20))
    assert (row["est_ttft_s"], row["est_source"]) == (40_320.0, "17 samples")
    assert "64Mi: 11.2 h ± 1.0 %, from 17 samples" in plan_text(planned.system, planned.rows)
    plan = save_plan(kimi)
    assert plan is not None
    assert known_plan(kimi, plan, summary).rows == planned.rows
    assert known_plan(kimi, plan, None).rows == PlanTable.read(plan).rows
    parquet.write_rows(summary, schemas.SUMMARY, [sampled_row(kimi, 1024, 0.1, recipe_hash="other")])
    with pytest.raises(DataError, match="another recipe"):
        sampled_ttft(summary, kimi)


def test_a_length_refused_by_the_plan_keeps_its_reason_and_remedy() -> None:
    old = campaign(serve={**campaign()["serve"], "aiter_version": "0.1.5"})
    rows = plan_campaign(from_dict(old)).rows
    row = next(row for row in rows if (row["mode"], row["length"]) == ("prefill", 64 << 20))
    assert (row["fits"], row["reason"]) == (False, "unsupported")
    assert row["remedy"].startswith("beyond 2^24 tokens ROCm needs AITER")
