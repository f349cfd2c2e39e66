"""The tables of a summary as files: null stays null, integers stay whole, and what is published has no paths."""

import csv
import json
from pathlib import Path
from typing import Any

import makerows
import pyarrow.parquet as pq
import pytest
import yaml
from longctx.campaign.campaign import Campaign, from_dict
from longctx.errors import DataError
from longctx.results import export
from longctx.results.campaign_results import CampaignResults
from longctx.results.collect import CollectedRows
from longctx.storage import parquet, schemas

CONFIG = {"name": "c", "model": {"source": "synthetic", "weights": "dummy"}, "lengths": ["1Ki", "2Ki"], "passes": 1}


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.chdir(tmp_path)
    return from_dict(CONFIG)


def collected(campaign: Campaign, damaged: list[str] | None = None) -> CollectedRows:
    rows = [makerows.row(length=1024), makerows.row(length=2048, ttft_s=None, reason="resumed")]
    servers: list[dict[str, Any]] = makerows.servers(rows)
    with_source = [[row | {"source": "a.parquet"} for row in table] for table in (rows, servers)]
    return CollectedRows(*with_source, makerows.plan(), damaged or [])


def test_a_summary_has_its_rows_and_servers_beside_it(campaign: Campaign) -> None:
    results = campaign.results
    export.write_summary(campaign, collected(campaign, ["b.parquet: torn"]), results / "summary.parquet")
    paths = {name: results / f"{name}.parquet" for name in ("summary", "fits", "rows", "servers", "plan")}
    read = CampaignResults.read(campaign, **paths)
    assert [row["source"] for row in [*read.rows, *read.servers]] == ["a.parquet"] * 4
    assert (len(read.summary), read.damaged) == (2, ("b.parquet: torn",))
    with open(results / "summary.csv", newline="") as file:
        short, long = csv.DictReader(file)
    assert (short["length"], short["gpu_count"], short["max_new_tokens"]) == ("1024", "1", "128")
    assert (long["ttft_s_mean"], long["ttft_s_n"], long["reasons"]) == ("", "0", "resumed")
    assert parquet.read_rows(paths["summary"])[1]["ttft_s_mean"] is None


def test_one_length_is_written_alone(campaign: Campaign, tmp_path: Path) -> None:
    export.write_summary(campaign, collected(campaign), tmp_path / "lengths" / "1Ki.parquet", 1024)
    assert [path.name for path in (tmp_path / "lengths").iterdir()] == ["1Ki.parquet"]


def test_what_is_published_names_no_file_of_this_machine(campaign: Campaign, tmp_path: Path) -> None:
    export.write_summary(campaign, collected(campaign), campaign.results / "summary.parquet")
    (campaign.results / "plan.txt").write_text("fits")
    export.export(campaign, tmp_path / "out", figures=False)
    assert pq.read_schema(tmp_path / "out" / "rows.parquet").names == schemas.MEASUREMENTS.names
    assert pq.read_schema(tmp_path / "out" / "servers.parquet").names == schemas.SERVERS.names
    assert yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())["name"] == "c"
    assert (tmp_path / "out" / "plan.txt").read_text() == "fits"


def test_a_summary_without_some_file_is_not_published(campaign: Campaign, tmp_path: Path) -> None:
    export.write_summary(campaign, collected(campaign, ["b.parquet: torn"]), campaign.results / "summary.parquet")
    metadata = pq.read_schema(campaign.results / "rows.parquet").metadata
    assert json.loads(metadata[b"damaged"]) == ["b.parquet: torn"]
    with pytest.raises(DataError, match=r"b\.parquet"):
        export.export(campaign, tmp_path / "out", figures=False)
