"""The rows of a plan, as measure, the node request and the reports look them up."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longctx.storage.parquet import read_rows
from longctx.storage.schemas import PLAN


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Rows of schemas.PLAN, one for each mode and length; empty where no plan is known."""

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def empty(cls) -> "PlanTable":
        return cls(())

    @classmethod
    def read(cls, path: Path | str) -> "PlanTable":
        """Return the plan of a file, the empty one for '' or a missing file; DataError for a damaged file."""
        return cls(tuple(read_rows(path, PLAN))) if Path(path).is_file() else cls.empty()

    def get(self, mode: str, length: int) -> Mapping[str, Any]:
        """Return the row of a mode and a length in tokens, {} where the plan has none."""
        return next((row for row in self.rows if (row["mode"], row["length"]) == (mode, length)), {})
