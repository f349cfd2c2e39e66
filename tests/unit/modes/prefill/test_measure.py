"""The forecast of a running campaign: from the journals of the rungs that are done."""

import pytest
from longctx import resources
from longctx.campaign.campaign import from_dict
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.modes.prefill.measure import FACET
from longctx.storage.journal import Journal

LENGTHS = ["1Ki", "2Ki", "4Ki", "64Ki"]


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = {"lengths": LENGTHS, "passes": 1, "model": {"source": "synthetic", "weights": "dummy"}}
    raw["hardware"] = {"gpu": "H200"}
    made = from_dict(raw)
    model = made.results / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text((resources.ROOT / "resources" / "models" / "llama-3.1-8b.json").read_text())
    return made


def measured(campaign, length: int, ttft_s: float) -> None:
    row = {"role": "cold", "request_index": 0, "ttft_s": ttft_s, "status": "ok"}
    Journal.open(journal_path(campaign, Point(length, 1))).append("row", row)


def test_nothing_is_said_before_three_lengths_are_measured(campaign):
    measured(campaign, 1024, 0.1)
    measured(campaign, 2048, 0.2)
    assert FACET.forecast(campaign) is None


def test_the_lengths_to_come_are_forecast_with_an_interval(campaign):
    for length in (1024, 2048, 4096):
        measured(campaign, length, 1e-4 * length)
    line = FACET.forecast(campaign)
    assert line is not None
    assert line.startswith("forecast from 3 lengths: TTFT 64Ki ")
    assert " to " in line


def test_a_finished_ladder_has_no_forecast(campaign):
    for length in (1024, 2048, 4096, 65536):
        measured(campaign, length, 1e-4 * length)
    assert FACET.forecast(campaign) is None
