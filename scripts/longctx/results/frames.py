"""Rows as pandas frames of nullable Arrow columns and back: null is neither NaN nor 0, integers stay whole."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa


def to_frame(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pd.DataFrame:
    """Return rows as a frame with the columns of `schema`; a field that a row lacks is null."""
    return pa.Table.from_pylist(list(rows), schema=schema).to_pandas(types_mapper=pd.ArrowDtype)


def to_rows(frame: pd.DataFrame, schema: pa.Schema) -> list[dict[str, Any]]:
    """Return a frame's rows with the fields of `schema`; null, NaN and a column that it lacks are None."""
    table = pa.Table.from_pandas(frame.reindex(columns=schema.names), schema=schema, preserve_index=False)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
