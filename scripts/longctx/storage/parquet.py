"""Read and write the Parquet tables of `longctx.storage.schemas`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longctx.errors import DataError
from longctx.storage.atomic import write_atomic
from longctx.storage.provenance import FORMAT_VERSION, file_labels
from longctx.storage.schemas import FITS, MEASUREMENTS, MEMORY_FACTS, PLAN, PROGRESS, SERVERS, SUMMARY

# Nullable columns that were added later, by table: a file without them is valid, and they read as null.
ADDED = (
    (MEASUREMENTS, "starved_s"), (MEASUREMENTS, "energy_decode_j"), (PROGRESS, "role"),
    (MEASUREMENTS, "prefill_chunks"), (MEASUREMENTS, "claimed_tokens"), (MEASUREMENTS, "sample_prefill_s"),
    (MEASUREMENTS, "sm_clock_mhz"), (MEASUREMENTS, "sm_clock_min_mhz"), (MEASUREMENTS, "throttle_reasons"),
    (MEASUREMENTS, "prompt_salt"), (SUMMARY, "n_late"),
    (SUMMARY, "prefix_ttft_s_mean"), (SUMMARY, "energy_j_per_prompt_token"), (SUMMARY, "energy_j_per_output_token"),
    (SUMMARY, "ttft_estimate_s"), (SUMMARY, "ttft_estimate_low_s"), (SUMMARY, "ttft_estimate_high_s"),
    (SUMMARY, "ttft_estimate_samples"), (FITS, "reason"), (PLAN, "kv_budget_bytes_per_rank"),
    *((SUMMARY, name) for name in MEMORY_FACTS),
    *((table, name) for table in (SERVERS, MEASUREMENTS) for name in MEMORY_FACTS[1:]),
)  # fmt: skip
# Columns that had another name in earlier files.
RENAMED = {"mend": "remedy"}


def write_rows(
    path: Path | str, schema: pa.Schema, rows: Iterable[Mapping[str, Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write dictionaries as `schema`, atomically; the file's metadata are `file_labels()` and `metadata`.

    A field that a row lacks is null; DataError names a field that the table lacks.
    """
    rows = [dict(row) for row in rows]
    for row in rows:
        if unknown := sorted(set(row) - set(schema.names)):
            raise DataError(f"{path}: the row has fields that the table lacks: {', '.join(unknown)}")
    table = pa.Table.from_pylist(rows, schema=schema).replace_schema_metadata(file_labels() | dict(metadata or {}))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, sink.getvalue())


def read_rows(path: Path | str, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file of this format, by column name; DataError names the file and its fault."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}); delete it and run again") from error
    version = (table.schema.metadata or {}).get(b"longctx_format", b"?").decode()
    if version != str(FORMAT_VERSION):
        raise DataError(f"{path}: format {version}, this longctx reads {FORMAT_VERSION}; use another results folder")
    table = table.rename_columns([RENAMED.get(name, name) for name in table.schema.names])
    later = dict.fromkeys(name for owner, name in ADDED if owner is schema)
    if schema is not None and (missing := sorted(set(schema.names) - set(table.schema.names) - set(later))):
        raise DataError(f"{path}: columns missing: {', '.join(missing)}; delete it and run again")
    rows: list[dict[str, Any]] = table.to_pylist()
    return [later | row for row in rows] if later else rows
