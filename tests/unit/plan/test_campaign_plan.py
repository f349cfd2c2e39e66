"""A campaign's plan in its file, made before anything else of the campaign is there."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.model.reader import read_geometry
from longctx.plan.campaign_plan import plan_campaign, save_plan
from longctx.plan.plan_table import PlanTable
from longctx.prompts.sources import CorpusSpec
from longctx.prompts.synthetic_model import make_dummy_from_config, make_model


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
    early = plan_campaign(campaign).geometry
    option, value = campaign.model_arguments
    folder, corpus = Path(campaign.model_path), CorpusSpec(str(tmp_path / "corpus"))
    if option == "--from-config":
        make_dummy_from_config(value, folder, corpus)
    else:
        make_model(folder, json.loads(value), corpus)
    assert replace(early, name="") == replace(read_geometry(folder), name="")
    assert early.name.endswith(" (random weights)")
    assert plan_campaign(campaign).geometry == early


def test_a_model_that_nothing_can_read_has_no_plan() -> None:
    campaign = from_dict({"model": {"source": "nobody/nothing"}, "lengths": ["1Ki"]})
    assert save_plan(campaign) is None
    assert not campaign.results.exists()


def test_a_split_that_the_model_refuses_has_no_plan() -> None:
    campaign = synthetic(heads=2)
    campaign.raw["serve"]["tensor_parallel_size"] = 3
    assert save_plan(campaign) is None
