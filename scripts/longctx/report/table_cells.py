"""Cells and tables of the reports, and how numbers are written in them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from longctx import units
from longctx.lengths import format_length

Row = Mapping[str, Any]
Item = TypeVar("Item")
# The head of a column, and what makes its cells.
Column = tuple[str, Callable[[Item], "Cell | str"]]
Columns = tuple[Column[Row], ...]
NONE = "—"


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, what it sorts by where that isn't the text, a quieter second text, and the point it links to."""

    text: str
    sort: float | str | None = None
    small: str = ""
    point: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; `note` explains it in Markdown-free sentences. `numeric` columns are right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    numeric: frozenset[int] = frozenset()


def tabulate(
    title: str, columns: Iterable[Column[Item]], items: Iterable[Item], note: str = "", *, drop_empty: bool = False
) -> Table:
    """Build a table with a row for each item; each column has a head and a function of the item.

    A column is numeric when all its cells are numbers, lengths or missing. drop_empty: leaves out columns of none.
    """
    columns = tuple(columns)
    texts = [[make(item) for _, make in columns] for item in items]
    rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in texts]
    cells = {head: [row[i] for row in rows] for i, (head, _) in enumerate(columns)}
    if drop_empty:
        cells = {head: column for head, column in cells.items() if any(cell.text not in ("", NONE) for cell in column)}
    numeric = frozenset(i for i, column in enumerate(cells.values()) if _is_numeric(column))
    return Table(title, tuple(cells), tuple(zip(*cells.values(), strict=True)), note, numeric)


def _is_numeric(column: Sequence[Cell]) -> bool:
    numbers = any(isinstance(cell.sort, (int, float)) for cell in column)
    return numbers and all(re.match(rf"[\d$+-]|{NONE}$", cell.text) for cell in column)


def number(value: float | None, digits: int = 3) -> Cell:
    """Return `value` with `digits` significant digits, more before the decimal point if it has them, grouped."""
    if value is None:
        return Cell(NONE)
    text = f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")
    return Cell("0" if value == 0 else text, value)


def field(name: str, digits: int = 3) -> Callable[[Row], Cell]:
    """Return the function that writes a row's number of this name."""
    return lambda row: number(row.get(name), digits)


def fields(names: Mapping[str, str], write: Callable[[Any], Cell | str] = number) -> Columns:
    """Return a column for each head, which writes the row's number of that name."""
    return tuple((head, lambda row, name=name: write(row.get(name))) for head, name in names.items())


def count(value: int | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:,}", value)


def percent(share: float | None) -> Cell:
    return Cell(NONE) if share is None else Cell(f"{share * 100:.1f} %", share)


def change(value: float | None, reference: float | None) -> Cell:
    """Return by how much `value` differs from `reference`: '+4.0%'; a dash where either is missing."""
    if not value or not reference:
        return Cell(NONE)
    return Cell(f"{value / reference - 1:+.1%}", value / reference - 1)


def usd(value: float | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"${value:,.2f}" if value >= 1 else f"${value:.3g}", value)


def mean_std(mean: float | None, std: float | None, decimals: int) -> str:
    """Return 'mean ± stddev' in the published form; one value alone has no ±."""
    if mean is None:
        return NONE
    return f"{mean:.{decimals}f}" + (f" ± {std:.{decimals}f}" if std is not None else "")


def spread(row: Row, metric: str, decimals: int) -> Cell:
    """Return a summary row's 'mean ± stddev' of `metric`."""
    mean = row.get(f"{metric}_mean")
    return Cell(mean_std(mean, row.get(f"{metric}_std"), decimals), mean)


def ttft_cell(row: Row) -> Cell:
    """TTFT in seconds as published (two decimals; three below 1 s), with its human reading from two minutes on."""
    mean = row.get("ttft_s_mean")
    human = units.human_seconds(mean) if mean and mean >= 120 else ""
    cell = spread(row, "ttft_s", 3 if mean is not None and mean < 1 else 2)
    return replace(cell, small=human, point=(row["mode"], row["length"]))


def decode_cell(row: Row) -> Cell:
    return replace(spread(row, "decode_tok_s", 1), point=(row["mode"], row["length"]))


def prompt_cell(row: Row) -> Cell:
    return Cell(format_length(row["length"]), row["length"])
