"""Which summaries are made again though they are newer than all their rows."""

from pathlib import Path

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.run.repair import is_provisional
from longctx.storage import parquet, schemas
from longctx.storage.provenance import PARTIAL

SUMMARY = Path("results/summary.parquet")


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """Two lengths, each with a measurement, and a summary of both."""
    monkeypatch.chdir(tmp_path)
    for length in ("1Ki", "2Ki"):
        path = Path(f"results/measurements/{length}/pass1.parquet")
        path.parent.mkdir(parents=True)
        path.touch()
    parquet.write_rows(SUMMARY, schemas.SUMMARY, [])
    return from_dict({"model": {"source": "synthetic", "weights": "dummy"}, "lengths": [1024, 2048], "passes": 1})


def test_a_whole_summary_is_not_made_again(campaign: Campaign) -> None:
    assert not is_provisional(campaign, SUMMARY, campaign.points())


def test_no_summary_is_none_to_make_again(campaign: Campaign) -> None:
    SUMMARY.unlink()
    assert not is_provisional(campaign, SUMMARY, campaign.points())


def test_a_summary_that_lacks_a_point_is_made_again_and_other_lengths_are_not(campaign: Campaign) -> None:
    Path("results/measurements/2Ki/pass1.parquet").unlink()
    short, long = campaign.points()
    assert is_provisional(campaign, SUMMARY, [short, long])
    assert is_provisional(campaign, SUMMARY, [long])
    assert not is_provisional(campaign, SUMMARY, [short])


def test_a_summary_of_what_was_there_is_made_again(campaign: Campaign) -> None:
    parquet.write_rows(SUMMARY, schemas.SUMMARY, [], {PARTIAL: "true"})
    assert is_provisional(campaign, SUMMARY, campaign.points())


def test_a_summary_that_cannot_be_read_is_made_again(campaign: Campaign) -> None:
    SUMMARY.write_bytes(b"PAR1 cut sho")
    assert is_provisional(campaign, SUMMARY, campaign.points())
