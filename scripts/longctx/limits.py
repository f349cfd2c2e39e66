"""What another run's hardware allows: out of its own summary, or from what a published table says of its system."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longctx.bounds import decode_bound_tok_s, ttft_bound_s
from longctx.errors import ConfigError, DataError, GeometryError
from longctx.geometry import read_geometry
from longctx.hardware import Parallelism, load_hardware

# Of a published table: `model` as geometry.read_geometry takes it, `hardware` a GPU of resources/hardware/gpus.csv.
NOTES = ("model", "hardware", "tensor_parallel_size", "kv_cache_dtype")


@dataclass(frozen=True, slots=True)
class Limit:
    """Least TTFT in s and most decode throughput in tokens/s at one prompt length; None where it isn't known."""

    ttft_s: float | None
    decode_tok_s: float | None


def of_summary(rows: Iterable[Mapping[str, Any]]) -> dict[int, Limit]:
    """Return the limits that tables.SUMMARY rows carry, by prompt length (tokens)."""
    found: dict[int, Limit] = {}
    for row in rows:
        before = found.get(int(row["length"]), Limit(None, None))
        limit = Limit(
            row.get("ttft_bound_s") or before.ttft_s, row.get("decode_bound_tok_s") or before.decode_tok_s
        )  # fmt: skip
        if limit != Limit(None, None):
            found[int(row["length"])] = limit
    return found


def of_system(notes: Mapping[str, str], lengths: Iterable[int], prefilled: int, path: Path) -> dict[int, Limit]:
    """Return the limits of the system that a table's notes describe, {} where one of NOTES is missing.

    At `lengths` (tokens), and at each doubling between them, for a curve; of TTFT up to `prefilled`, the longest prompt
    that was. The GPUs are as many as the ranks: one replica. DataError names the note that is wrong.
    """
    if not all(notes.get(note) for note in NOTES):
        return {}
    tensor, kv_dtype = notes["tensor_parallel_size"], notes["kv_cache_dtype"]
    if not (tensor.isdecimal() and int(tensor)):
        raise DataError(f"{path}: tensor_parallel_size is {tensor!r}, not a number of GPUs")
    split = Parallelism(tensor=int(tensor))
    try:
        geometry, hardware = read_geometry(notes["model"]), load_hardware(notes["hardware"], split.gpus)
        return {
            length: Limit(
                ttft_bound_s(geometry, hardware, split, length, kv_dtype) if length <= prefilled else None,
                decode_bound_tok_s(geometry, hardware, split, length, kv_dtype),
            )
            for length in _with_doublings(lengths)
        }
    except (ConfigError, GeometryError) as error:
        raise DataError(f"{path}: {error}") from error


def _with_doublings(lengths: Iterable[int]) -> list[int]:
    known = sorted(lengths)
    steps = range(known[0].bit_length(), known[-1].bit_length()) if known else ()
    return sorted({*known, *(1 << step for step in steps)})
