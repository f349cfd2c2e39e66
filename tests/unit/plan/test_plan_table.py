"""The table of plan rows: looked up by mode and length, empty where no plan is known."""

from pathlib import Path
from typing import Any

import pytest
from longctx.errors import DataError
from longctx.plan.plan_table import PlanTable
from longctx.storage.parquet import write_rows
from longctx.storage.schemas import PLAN


def row(mode: str, length: int) -> dict[str, Any]:
    return dict.fromkeys(PLAN.names) | {"mode": mode, "length": length}


def test_rows_are_found_by_mode_and_length(tmp_path: Path) -> None:
    rows = [row("prefill", 1024), row("prefill", 2048), row("reuse", 1024)]
    write_rows(tmp_path / "plan.parquet", PLAN, rows)
    table = PlanTable.read(tmp_path / "plan.parquet")
    assert table.rows == tuple(rows)
    assert table.get("reuse", 1024) == rows[2]
    assert table.get("reuse", 2048) == {}


def test_no_text_and_a_missing_file_are_no_plan(tmp_path: Path) -> None:
    assert PlanTable.read("") == PlanTable.read(tmp_path / "none.parquet") == PlanTable.empty()
    assert PlanTable.empty().get("prefill", 1024) == {}


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "plan.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError):
        PlanTable.read(tmp_path / "plan.parquet")
