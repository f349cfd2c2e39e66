"""What a run's hardware allows: out of its own summary, or from what a published table says of its system."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longctx.errors import ConfigError, DataError, GeometryError
from longctx.model.geometry import Geometry
from longctx.model.reader import read_geometry
from longctx.plan.bounds import Limit, decode_bound_tok_s, ttft_bound_s
from longctx.plan.hardware import Hardware, Parallelism, load_hardware

# Of a published table: `model` as geometry.read_geometry takes it, `hardware` a GPU of resources/hardware/gpus.csv.
NOTES = ("model", "hardware", "tensor_parallel_size", "kv_cache_dtype")


@dataclass(frozen=True, slots=True)
class System:
    """One replica of a model on as many GPUs as it has ranks."""

    geometry: Geometry
    hardware: Hardware
    parallelism: Parallelism
    kv_dtype: str

    def ttft_bound_s(self, tokens: int) -> float:
        return ttft_bound_s(self.geometry, self.hardware, self.parallelism, tokens, self.kv_dtype)

    def decode_bound_tok_s(self, context: int) -> float:
        return decode_bound_tok_s(self.geometry, self.hardware, self.parallelism, context, self.kv_dtype)


def notes(lines: Iterable[str]) -> dict[str, str]:
    """Return what the comments of a table say, '# key: text'."""
    found = (line.lstrip("# ").partition(":") for line in lines if line.startswith("#"))
    return {key: text.strip() for key, colon, text in found if colon}


def system(said: Mapping[str, str], path: Path) -> System | None:
    """Return the system that a table's notes describe, None without all of NOTES; DataError for a wrong one."""
    if not all(said.get(note) for note in NOTES):
        return None
    tensor = said["tensor_parallel_size"]
    if not (tensor.isdecimal() and int(tensor)):
        raise DataError(f"{path}: tensor_parallel_size is {tensor!r}, not a number of GPUs")
    split = Parallelism(tensor=int(tensor))
    try:
        geometry, hardware = read_geometry(said["model"]), load_hardware(said["hardware"], split.gpus)
        geometry.kv_dtype_bytes(said["kv_cache_dtype"])  # an unknown one is told here
    except (ConfigError, GeometryError) as error:
        raise DataError(f"{path}: {error}") from error
    return System(geometry, hardware, split, said["kv_cache_dtype"])


def system_limits(known: System, lengths: Iterable[int], prefilled: int) -> dict[int, Limit]:
    """Return a system's limits at `lengths` (tokens) and each doubling between them, for a curve.

    Those of TTFT up to `prefilled`, the longest prompt that was.
    """
    return {
        length: Limit(known.ttft_bound_s(length) if length <= prefilled else None, known.decode_bound_tok_s(length))
        for length in _with_doublings(lengths)
    }


def _with_doublings(lengths: Iterable[int]) -> list[int]:
    known = sorted(lengths)
    steps = range(known[0].bit_length(), known[-1].bit_length()) if known else ()
    return sorted({*known, *(1 << step for step in steps)})
