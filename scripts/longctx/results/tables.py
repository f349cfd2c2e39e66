"""Rows as pandas frames of nullable Arrow columns and back: null is neither NaN nor 0, integers stay whole."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from longctx.storage import atomic, schemas


def to_frame(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pd.DataFrame:
    """Return rows as a frame with the columns of `schema`; a field that a row lacks is null."""
    return pa.Table.from_pylist(list(rows), schema=schema).to_pandas(types_mapper=pd.ArrowDtype)


def to_rows(frame: pd.DataFrame, schema: pa.Schema) -> list[dict[str, Any]]:
    """Return a frame's rows with the fields of `schema`; null, NaN and a column that it lacks are None."""
    table = pa.Table.from_pandas(frame.reindex(columns=schema.names), schema=schema, preserve_index=False)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def write_csv(path: Path | str, summary: Iterable[Mapping[str, Any]]) -> None:
    """Write schemas.SUMMARY rows as CSV for spreadsheets: an empty cell is a missing value, lists are joined by ';'."""
    frame = to_frame(summary, schemas.SUMMARY)
    for name in ("reasons", "hosts"):
        frame[name] = [";".join(values) if isinstance(values, Iterable) else "" for values in frame[name]]
    atomic.write_atomic(path, frame.to_csv(index=False, lineterminator="\n").encode())
