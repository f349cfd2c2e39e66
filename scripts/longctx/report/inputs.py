"""What a report is made from, and the labels of synthetic numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longctx.report import style
from longctx.report.cells import Row, Table
from longctx.results.comparison import Comparison
from longctx.results.cost import Price

MODE_NAMES = {"prefill": "cold prompt", "reuse": "resident prefix", "decode_only": "decode only (KV filled)"}


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Everything a report needs, as rows of longctx.tables; nothing is read from disk but the figures.

    rows: MEASUREMENTS, each perhaps with `source` (its file). figures: name -> stem of the .png and .svg.
    recipe: the configuration that was run. command: what reproduces the campaign. results: the folder links start from.
    """

    name: str
    rows: Sequence[Row]
    summary: Sequence[Row]
    fits: Sequence[Row] = ()
    plan: Sequence[Row] = ()
    servers: Sequence[Row] = ()
    validation: Sequence[Row] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    comparisons: Sequence[Comparison] = ()
    price: Price | None = None
    figures: Mapping[str, Path] = field(default_factory=dict)
    results: Path = Path("results")
    subtitle: str = ""
    revision: str = ""
    damaged: Sequence[str] = ()

    def of_mode(self, mode: str) -> list[Row]:
        return sorted((row for row in self.summary if row["mode"] == mode), key=lambda row: row["length"])

    @property
    def modes(self) -> list[str]:
        return [mode for mode in MODE_NAMES if self.of_mode(mode)]


def labels(given: ReportInput, *modes: str) -> list[str]:
    """Return what about the numbers of these modes (all by default) is not real."""
    rows = [row for row in given.summary if not modes or row["mode"] in modes]
    found = [style.RANDOM_WEIGHTS] if any(row.get("synthetic_weights") for row in rows) else []
    return found + ([style.FILLED_KV] if any(row.get("filled_kv") for row in rows) else [])


def labelled(table: Table, given: ReportInput) -> Table:
    """Return `table` whose note says where its numbers are of random weights; filled caches are named in its rows."""
    said = "Synthetic: random weights." if style.RANDOM_WEIGHTS in labels(given) else ""
    return replace(table, note=f"{table.note} {said}".strip())


def labels_sentence(given: ReportInput, *modes: str) -> str:
    """Say in sentences what `labels` says in a word; '' where all is real."""
    said = {
        style.RANDOM_WEIGHTS: "Synthetic: random weights, so speeds are real and outputs mean nothing.",
        style.FILLED_KV: "The KV cache was filled, not prefilled: these rows have no TTFT and no prefill.",
    }
    return " ".join(said[label] for label in labels(given, *modes))
