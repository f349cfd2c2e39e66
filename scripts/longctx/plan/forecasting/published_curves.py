"""Published tables: the system that their notes describe, its bounds, and their TTFT curves."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np

from longctx.campaign.mode import COLD_MODE
from longctx.errors import ConfigError, DataError, GeometryError
from longctx.model.reader import read_geometry
from longctx.plan.hardware import Hardware, Parallelism, load_hardware
from longctx.plan.system import Settings, System
from longctx.resources import RESOURCES

# Of a published table: `model` as reader.read_geometry takes it, `hardware` a GPU of resources/hardware/gpus.csv.
NOTES = ("model", "hardware", "tensor_parallel_size", "kv_cache_dtype")
# The shipped curves: file and TTFT column. The file's notes describe the system.
_REFERENCES = (("mi355x-published.csv", "ttft_s_mean"), ("h200-probe.csv", "ttft_client_s"))


@dataclass(frozen=True, slots=True)
class Limit:
    """Least TTFT in s and most decode throughput in tokens/s at one prompt length; None where it isn't known."""

    ttft_s: float | None
    decode_tok_s: float | None


def notes(lines: Iterable[str]) -> dict[str, str]:
    """Return the comments '# key: text' of a table as {key: text}."""
    comments = (line.lstrip("# ").partition(":") for line in lines if line.startswith("#"))
    return {key: text.strip() for key, colon, text in comments if colon}


def system(table_notes: Mapping[str, str], path: Path) -> System | None:
    """Return the system that a table's notes describe, None without all of NOTES; DataError for a wrong one."""
    if not all(table_notes.get(note) for note in NOTES):
        return None
    tensor = table_notes["tensor_parallel_size"]
    if not (tensor.isdecimal() and int(tensor)):
        raise DataError(f"{path}: tensor_parallel_size is {tensor!r}, not a number of GPUs")
    split = Parallelism(tensor=int(tensor))
    try:
        geometry, hardware = read_geometry(table_notes["model"]), load_hardware(table_notes["hardware"], split.gpus)
        geometry.kv_format(table_notes["kv_cache_dtype"])  # raises for an unknown one
        return System(geometry, hardware, split, Settings(table_notes["kv_cache_dtype"]))
    except (ConfigError, GeometryError) as error:
        raise DataError(f"{path}: {error}") from error


def system_limits(system: System, lengths: Iterable[int], prefilled: int) -> dict[int, Limit]:
    """Return limits at `lengths` (tokens) and each doubling between; of TTFT up to `prefilled`, the longest prefill."""
    ascending = sorted(lengths)
    steps = range(ascending[0].bit_length(), ascending[-1].bit_length()) if ascending else ()
    return {
        length: Limit(system.ttft_bound_s(length) if length <= prefilled else None, system.decode_bound_tok_s(length))
        for length in sorted({*ascending, *(1 << step for step in steps)})
    }


@dataclass(frozen=True, slots=True)
class ReferenceCurve:
    """A measured TTFT curve of a known system; lengths in tokens ascend."""

    name: str
    system: System
    lengths: tuple[int, ...]
    ttft_s: tuple[float, ...]

    def bound_s(self, tokens: int) -> float:
        """Return the least TTFT in s that the curve's own system allows."""
        return self.system.ttft_bound_s(tokens)

    def time_at(self, tokens: int) -> float:
        """Return seconds, interpolated in log-log; beyond the ends the end's distance to the limit holds."""
        inside = min(max(tokens, self.lengths[0]), self.lengths[-1])
        seconds = exp(float(np.interp(log(inside), np.log(self.lengths), np.log(self.ttft_s))))
        return seconds * self.bound_s(tokens) / self.bound_s(inside)


def read_ttft_csv(path: Path, column: str) -> dict[int, float]:
    """Return {prompt tokens: TTFT in s} of a results CSV with '#' comments; only rows of cold prompts count."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row.get("mode", COLD_MODE) == COLD_MODE]
    return {int(row["prompt_tokens"]): float(row[column]) for row in rows}


def reference_curves() -> list[ReferenceCurve]:
    """Return the curves of resources/results; DataError for one without the notes that describe its system."""
    curves = []
    for file, column in _REFERENCES:
        path = RESOURCES / "results" / file
        known = system(notes(path.read_text(encoding="utf-8").splitlines()), path)
        if known is None:
            raise DataError(f"{path}: a forecast needs the notes {', '.join(NOTES)}")
        ttft_s = read_ttft_csv(path, column)
        curves.append(ReferenceCurve(path.stem, known, tuple(ttft_s), tuple(ttft_s.values())))
    return curves


def nearest_curve(hardware: Hardware, curves: Sequence[ReferenceCurve]) -> ReferenceCurve | None:
    """Return the curve of the same GPU, else of the same vendor, else the first."""

    def distance(curve: ReferenceCurve) -> tuple[bool, bool]:
        gpu = curve.system.gpus
        return gpu.name != hardware.name, gpu.vendor != hardware.vendor

    return min(curves, key=distance, default=None)
