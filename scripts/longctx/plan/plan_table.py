"""The campaign's plan as the stages after it read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longctx.storage import parquet, schemas


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Rows of schemas.PLAN, one for each mode and length."""

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> "PlanTable":
        """Return the plan in a Parquet file; DataError where it cannot be read."""
        return cls(tuple(parquet.read_rows(path, schemas.PLAN)))

    @classmethod
    def empty(cls) -> "PlanTable":
        """Return a plan that knows nothing."""
        return cls(())

    def get(self, mode: str, length: int) -> Mapping[str, Any]:
        """Return the row of a mode and length, {} where the plan has none."""
        return next((row for row in self.rows if (row["mode"], row["length"]) == (mode, length)), {})
