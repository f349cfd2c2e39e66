"""What a campaign has on disk, whole or not: gathered without changing any of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import makerows
import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.files import journal_path, output_path
from longctx.campaign.point import Point
from longctx.errors import DataError
from longctx.measure.point_record import PointRecord
from longctx.results import collect

POINT = Point(1024, 1)
Make = Callable[..., Campaign]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(tmp_path)

    def make(**changes: Any) -> Campaign:
        return from_dict({"model": {"source": "synthetic", "weights": "dummy"}, "lengths": ["1Ki", "2Ki"]} | changes)

    return make


def measured(campaign: Campaign, *, whole: bool) -> PointRecord:
    """Journal one request of POINT as a measurement does; whole: to its Parquets."""
    record = PointRecord.open(campaign, POINT, "5ha")[0]
    known = {"recipe_hash": campaign.recipe_hash("prefill"), "prompt_sha256": "5ha", "role": "cold", "length": 1024}
    record.begin(("cold", 0))
    record.journal.append("server", makerows.servers([makerows.row(length=1024)])[0])
    record.journal.append("row", makerows.row(request_index=0, **known))
    if whole:
        record.assemble()
        record.done()
    return record


@pytest.mark.parametrize("whole", [True, False], ids=["its Parquet", "its journal"])
def test_a_point_is_read_from_what_it_has(make: Make, whole: bool) -> None:
    campaign = make()
    measured(campaign, whole=whole)
    collected = collect.collect_partial(campaign)
    path = output_path(campaign, POINT, "measurements") if whole else journal_path(campaign, POINT)
    assert [(row["length"], row["role"], row["source"]) for row in collected.rows] == [(1024, "cold", str(path))]
    assert [row["source"] for row in collected.servers] == [str(path).replace("measurements", "servers")]
    assert collected.damaged == []


def test_given_files_are_read_and_no_journal(make: Make) -> None:
    campaign = make()
    measured(campaign, whole=True)
    paths = [output_path(campaign, POINT, table) for table in ("measurements", "servers")]
    collected = collect.collect(campaign, paths[:1], paths[1:], campaign.results / "plan.parquet")
    assert [row["source"] for row in [*collected.rows, *collected.servers]] == [str(path) for path in paths]
    assert (collected.plan, collected.damaged) == ([], [])
    with pytest.raises(DataError):
        collect.collect(campaign, [campaign.results / "missing.parquet"])


def test_every_counted_request_is_expected(make: Make) -> None:
    campaign = make()
    expected = collect.expected_requests(campaign, campaign.points())
    assert expected == {("prefill", 1024): 3, ("prefill", 2048): 3}
    assert collect.expected_requests(campaign, campaign.points()[:1]) == {("prefill", 1024): 1}


def test_rows_of_another_recipe_are_refused_or_left_out_and_their_journal_is_not_touched(make: Make) -> None:
    measured(make(), whole=True)
    journal = journal_path(make(), POINT)
    journal.write_bytes(journal.read_bytes() + b"a record that somebody is writi")
    before = journal.read_bytes()
    other = make(max_new_tokens=64)
    with pytest.raises(DataError, match=r"another recipe \(max_new_tokens: 128 -> 64\); results of different recipes"):
        collect.collect(other, [output_path(other, POINT, "measurements")])
    collected = collect.collect_partial(other)
    assert collected.rows == []
    assert ["another recipe" in text for text in collected.damaged] == [True]
    assert journal.read_bytes() == before


def test_a_damaged_file_stops_a_summary_and_is_named_in_a_partial_one(make: Make) -> None:
    campaign = make()
    measured(campaign, whole=True)
    plan = campaign.results / "plan.parquet"
    plan.write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"plan\.parquet: not a readable Parquet file"):
        collect.collect(campaign, [output_path(campaign, POINT, "measurements")], plan=plan)
    collected = collect.collect_partial(campaign)
    assert (len(collected.rows), collected.plan) == (1, [])
    assert [text.partition(":")[0] for text in collected.damaged] == [str(plan)]


def test_one_length_is_collected_alone(make: Make) -> None:
    measured(make(), whole=True)
    assert collect.collect_partial(make(), 2048).rows == []
    assert len(collect.collect_partial(make(), 1024).rows) == 1
