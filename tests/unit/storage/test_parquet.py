"""Parquet files of the pipeline: whole or not there, labelled, and refused in one sentence where they are of no use."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from longctx import resources
from longctx.errors import DataError
from longctx.storage import atomic, parquet, provenance, schemas

ROWS = [{"length": 1024, "ok": True, "detail": None}, {"length": 2048, "counted": 7}]


def test_rows_come_back_with_null_for_what_they_lack(tmp_path: Path) -> None:
    parquet.write_rows(tmp_path / "new" / "v.parquet", schemas.VALIDATION, ROWS)
    found = parquet.read_rows(tmp_path / "new" / "v.parquet", schemas.VALIDATION)
    nothing = dict.fromkeys(schemas.VALIDATION.names)
    assert found == [nothing | row for row in ROWS]


def test_times_keep_their_zone(tmp_path: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    parquet.write_rows(tmp_path / "s.parquet", schemas.SERVERS, [{"started_at": at}])
    assert parquet.read_rows(tmp_path / "s.parquet", schemas.SERVERS)[0]["started_at"] == at


def test_a_file_says_its_format_revision_and_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGCTX_GIT_REVISION", "abc+dirty")
    parquet.write_rows(tmp_path / "v.parquet", schemas.VALIDATION, ROWS, {"campaign": "c"})
    said = pq.read_schema(tmp_path / "v.parquet").metadata
    assert (said[b"longctx_format"], said[b"git_revision"], said[b"campaign"]) == (b"1", b"abc+dirty", b"c")


def test_a_field_that_the_table_lacks_is_an_error_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"fields that the table lacks: colour$"):
        parquet.write_rows(tmp_path / "v.parquet", schemas.VALIDATION, [{"length": 1, "colour": "red"}])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    atomic.write_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_atomic(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("f", b"old")]


@pytest.mark.parametrize(
    ("schema", "column"), [(schemas.MEASUREMENTS, "starved_s"), (schemas.PROGRESS, "role")], ids=["rows", "progress"]
)
def test_a_column_that_came_later_reads_as_null(tmp_path: Path, schema: pa.Schema, column: str) -> None:
    old = pa.schema([field for field in schema if field.name != column])
    parquet.write_rows(tmp_path / "old.parquet", old, [{"length": 1024}])
    (row,) = parquet.read_rows(tmp_path / "old.parquet", schema)
    assert (row["length"], row[column]) == (1024, None)


SHIPPED = Path(__file__).parents[3] / "resources" / "results"
TABLES = {"rows": schemas.MEASUREMENTS, "servers": schemas.SERVERS, "summary": schemas.SUMMARY, "fits": schemas.FITS}


@pytest.mark.parametrize(
    "path", sorted(SHIPPED.glob("*/*.parquet")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_results_of_earlier_versions_are_read(path: Path) -> None:
    """The data sets in this repository are of versions before many columns: a new one must be in ADDED."""
    for row in parquet.read_rows(path, TABLES[path.stem]):
        assert set(TABLES[path.stem].names) <= set(row)


def test_a_column_that_was_always_there_is_missed(tmp_path: Path) -> None:
    old = pa.schema([field for field in schemas.MEASUREMENTS if field.name != "role"])
    parquet.write_rows(tmp_path / "old.parquet", old, [{"length": 1024}])
    with pytest.raises(DataError, match=r"columns missing: role; delete it and run again"):
        parquet.read_rows(tmp_path / "old.parquet", schemas.MEASUREMENTS)


def test_a_file_of_another_format_or_of_none_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"length": [1]}), tmp_path / "foreign.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    for name, said in (("foreign", "format ?, this longctx reads 1"), ("torn", "not a readable Parquet file")):
        with pytest.raises(DataError, match=re.escape(f"{name}.parquet: {said}")):
            parquet.read_rows(tmp_path / f"{name}.parquet")


def test_a_hash_depends_on_content_and_not_on_order() -> None:
    assert provenance.stable_hash({"a": 1, "b": [2]}) == provenance.stable_hash({"b": [2], "a": 1})
    assert provenance.stable_hash({"a": 1}) != provenance.stable_hash({"a": 2})
    assert re.fullmatch("[0-9a-f]{16}", provenance.stable_hash({}))


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("rows", schemas.MEASUREMENTS),
        ("servers", schemas.SERVERS),
        ("summary", schemas.SUMMARY),
        ("fits", schemas.FITS),
    ],
)
def test_a_table_of_the_first_data_set_is_read_with_null_in_later_columns(name: str, schema: pa.Schema) -> None:
    file = resources.ROOT / "resources" / "results" / "h200-tp1" / f"{name}.parquet"
    rows = parquet.read_rows(file, schema)
    assert rows
    assert set(schema.names) <= set(rows[0])
