"""What the reports say, as tables and sentences that the Markdown and the HTML report render alike.

A view is a pure function of ReportInput; cells are finished text. A missing value is an em dash, never 0.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longctx import reasons, style
from longctx.compare import Comparison
from longctx.cost import Price
from longctx.lengths import format_length

Row = Mapping[str, Any]
NONE = "—"
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


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, what it sorts by where that isn't the text, a quieter second text, and the point it links to."""

    text: str
    sort: float | str | None = None
    small: str = ""
    point: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; `note` explains it in Markdown-free sentences."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    numeric: frozenset[int] = frozenset()


def without_empty(table: Table) -> Table:
    """Return `table` without the columns that have no value in any row."""
    keep = [i for i in range(len(table.columns)) if any(row[i].text not in ("", NONE) for row in table.rows)]
    rows = [[row[i] for i in keep] for row in table.rows]
    return make(table.title, [table.columns[i] for i in keep], rows, table.note)


def make(title: str, columns: Iterable[str], rows: Iterable[Iterable[Cell | str]], note: str = "") -> Table:
    """Build a table; a column is numeric (right-aligned) when all its cells are numbers, lengths or missing."""
    finished = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    names = tuple(columns)
    numeric = {
        i for i in range(len(names))
        if any(isinstance(row[i].sort, (int, float)) for row in finished)
        and all(re.match(rf"[\d$+-]|{NONE}$", row[i].text) for row in finished)
    }  # fmt: skip
    return Table(title, names, finished, note, frozenset(numeric))


# ---- numbers as text


def number(value: float | None, digits: int = 3) -> Cell:
    """Return `value` with `digits` significant digits, more before the decimal point if it has them, grouped."""
    if value is None:
        return Cell(NONE)
    text = f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")
    return Cell("0" if value == 0 else text, value)


def count(value: int | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:,}", value)


def percent(share: float | None, digits: int = 1) -> Cell:
    return Cell(NONE) if share is None else Cell(f"{share * 100:.{digits}f} %", share)


def spread(row: Row, metric: str, decimals: int) -> str:
    """Return 'mean ± stddev' in the published form; one value alone has no ±."""
    mean, std = row.get(f"{metric}_mean"), row.get(f"{metric}_std")
    if mean is None:
        return NONE
    return f"{mean:.{decimals}f}" + (f" ± {std:.{decimals}f}" if std is not None else "")


def ttft_cell(row: Row) -> Cell:
    """TTFT in seconds as published (two decimals; three below 1 s), with its human reading from two minutes on."""
    mean = row.get("ttft_s_mean")
    text = spread(row, "ttft_s", 3 if mean is not None and mean < 1 else 2)
    return Cell(text, mean, style.human_seconds(mean) if mean and mean >= 120 else "", (row["mode"], row["length"]))


def decode_cell(row: Row) -> Cell:
    return Cell(spread(row, "decode_tok_s", 1), row.get("decode_tok_s_mean"), "", (row["mode"], row["length"]))


def length_cells(length: int) -> tuple[Cell, Cell]:
    return Cell(format_length(length), length), Cell(f"{length:,}", length)


def usd(value: float | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"${value:,.2f}" if value >= 1 else f"${value:.3g}", value)


# ---- what was measured


def table_1(given: ReportInput) -> Table:
    """Table 1 in the published form, of the first mode that was run: cold prompts where there are any."""
    mode = given.modes[0] if given.modes else "prefill"
    return mode_table(given, mode, f"Table 1. {_table_titles()[mode]}")


def other_mode_tables(given: ReportInput) -> list[Table]:
    return [mode_table(given, mode, _table_titles()[mode]) for mode in given.modes[1:]]


def _table_titles() -> dict[str, str]:
    return {
        "prefill": "Time to first token and decode throughput",
        "reuse": "Queries behind a resident prefix",
        "decode_only": "Decode throughput with a filled KV cache (no prefill, so no TTFT)",
    }


def mode_table(given: ReportInput, mode: str, title: str) -> Table:
    """Return Prompt | Tokens | TTFT s | Decode tok/s | n | Notes, mean ± sample standard deviation."""
    columns = ["Prompt", "Tokens", "TTFT s", "Decode tok/s", "n", "Notes"]
    rows = []
    for row in given.of_mode(mode):
        cells = [*length_cells(row["length"]), ttft_cell(row), decode_cell(row), count(row["n"])]
        rows.append([*cells, Cell("; ".join(notes(row)))])
    dropped = {2} if mode == "decode_only" else set()
    if not any(row[5].text for row in rows):
        dropped.add(5)
    keep = [i for i in range(6) if i not in dropped]
    if mode == "reuse":
        columns[2] = "Hot TTFT s"
    return make(
        title, [columns[i] for i in keep], [[row[i] for i in keep] for row in rows], labels_sentence(given, mode)
    )


def notes(row: Row) -> list[str]:
    """Say what is wrong or special about a summary row, in a few words each."""
    found = []
    if row["n"] == 0 and not row["n_failed"] and not row["n_doubtful"]:
        found.append("not measured")
    else:
        marks = [reason for reason in row.get("reasons") or () if reason in reasons.MARKED]
        bad = [reason for reason in row.get("reasons") or () if reason not in reasons.MARKED]
        for count, word in ((row["n_failed"], "failed"), (row["n_doubtful"], "doubtful")):
            if count:
                found.append(f"{count} {word}")
        if bad:
            found[-1:] = [f"{found[-1]} ({', '.join(bad)})"] if found else [", ".join(bad)]
        if row["n_missing"]:
            found.append(f"{row['n_missing']} missing")
        found += marks
    if len(row.get("hosts") or ()) > 1:
        found.append(f"± over {len(row['hosts'])} nodes, see Node to node")
    if row.get("n_outliers"):
        found.append(f"{row['n_outliers']} outlier{'s' if row['n_outliers'] > 1 else ''} kept")
    return found


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
