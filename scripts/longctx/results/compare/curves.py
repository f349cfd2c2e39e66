"""TTFT and decode against length, of this run or another one."""

import contextlib
import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longctx.campaign.mode import COLD_MODE
from longctx.errors import DataError, LongctxError
from longctx.plan.forecasting import published_curves
from longctx.plan.forecasting.published_curves import Limit
from longctx.results.statistics import Description
from longctx.storage import parquet, schemas

METRICS = {"ttft_s": "TTFT", "decode_tok_s": "decode"}
# What the server held (schemas.MEMORY_FACTS): exact, so one value is compared with one.
FACTS = {
    "kv_capacity_tokens": "KV capacity",
    "kv_cache_bytes": "KV memory per GPU",
    "weights_bytes": "weights per GPU",
    "gpu_memory_bytes": "memory in use per GPU",
}
ACCEPTED = "a run's summary.parquet, its summary.csv or a published .csv"
PUBLISHED_COLUMNS = ("prompt_tokens", "ttft_s_mean", "decode_tok_s_mean")
ALIASES = {"ttft_client_s": "ttft_s_mean", "decode_tok_s": "decode_tok_s_mean"}
NUMBERS = (*FACTS, "length", "prompt_tokens", "n", "gpu_count", "ttft_bound_s", "decode_bound_tok_s")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Mean, std and n of TTFT (s) and decode (tok/s) at one prompt length (tokens).

    rounding: the unit of the last printed digit of either mean, by metric; none where the mean is exact.
    facts: those of FACTS that are known, in tokens or bytes.
    """

    mode: str
    length: int
    ttft_s: Description
    decode_tok_s: Description
    rounding: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A run as others see it; `gpu_count` GPUs made one measured system, whose `limits` go by prompt length.

    estimates: whether it has estimated TTFT too, which is no part of the curve.
    """

    name: str
    points: tuple[CurvePoint, ...]
    gpu: str | None = None
    gpu_count: int | None = None
    synthetic_weights: bool = False
    source: str = ""
    limits: Mapping[int, Limit] = field(default_factory=dict)
    estimates: bool = False

    def of_mode(self, mode: str) -> dict[int, CurvePoint]:
        return {point.length: point for point in self.points if point.mode == mode}

    @property
    def system(self) -> str:
        """'8 × AMD Instinct MI355X', 'no GPU, random weights' or '' where nothing of it is known."""
        gpus = f"{self.gpu_count} × {self.gpu or 'GPU'}" if self.gpu_count else self.gpu
        gpus = "no GPU" if self.gpu_count == 0 else gpus
        return ", ".join(filter(None, (gpus, "random weights" if self.synthetic_weights else None)))


def curve_from_summary(summary: Iterable[Mapping[str, Any]], name: str = "this run", source: str = "") -> RunCurve:
    """Return the curve of schemas.SUMMARY rows."""
    rows = list(summary)
    gpu, count = (next((row[key] for row in rows if row.get(key) is not None), None) for key in ("gpu", "gpu_count"))
    points = tuple(map(_summary_point, rows))
    random = any(row.get("synthetic_weights") for row in rows)
    limits, estimates = limits_from_summary(rows), any(row.get("ttft_estimate_s") for row in rows)
    return RunCurve(name, points, gpu, count and int(count), random, source, limits, estimates)


def _summary_point(row: Mapping[str, Any]) -> CurvePoint:
    facts = {name: float(row[name]) for name in FACTS if row.get(name) is not None}
    ttft_s, decode_tok_s = (_described(row, metric) for metric in METRICS)
    return CurvePoint(row["mode"], int(row["length"]), ttft_s, decode_tok_s, facts=facts)


def limits_from_summary(rows: Iterable[Mapping[str, Any]]) -> dict[int, Limit]:
    """Return the hardware's limits that schemas.SUMMARY rows carry, by prompt length (tokens)."""
    limits: dict[int, Limit] = {}
    for row in rows:
        other = limits.get(int(row["length"]), Limit(None, None))  # of another mode
        limit = Limit(row.get("ttft_bound_s") or other.ttft_s, row.get("decode_bound_tok_s") or other.decode_tok_s)
        if limit != Limit(None, None):
            limits[int(row["length"])] = limit
    return limits


def _described(row: Mapping[str, Any], metric: str) -> Description:
    return Description(int(row.get(f"{metric}_n") or 0), row.get(f"{metric}_mean"), row.get(f"{metric}_std"))


def read_curve(path: Path | str) -> RunCurve:
    """Read summary.parquet, summary.csv or a published .csv; DataError says what the file lacks."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"compare: {path} {'is a folder' if path.is_dir() else 'does not exist'}; name {ACCEPTED}")
    run = path.parent.name or path.stem
    if path.suffix != ".csv":
        try:
            return curve_from_summary(parquet.read_rows(path, schemas.SUMMARY), run, str(path))
        except DataError as error:
            raise DataError(f"compare: {path} is no summary of this format; name {ACCEPTED}") from error
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text; save it as CSV in UTF-8") from error
    table = csv.DictReader(line for line in lines if line.strip() and not line.startswith("#"))
    rows = [{ALIASES.get(key, key): cell for key, cell in row.items()} for row in table]
    columns = set(rows[0]) if rows else set()
    if {"mode", "length", "ttft_s_mean"} <= columns:
        return curve_from_summary((_numbers(row, path) for row in rows), run, str(path))
    if missing := [name for name in PUBLISHED_COLUMNS if name not in columns]:
        raise DataError(f"{path}: columns missing for a comparison: {', '.join(missing)}")
    return _published_curve(rows, published_curves.notes(lines), path)


def read_curves(paths: Iterable[Path]) -> tuple[list[RunCurve], list[str]]:
    """Return the curves that can be read, and a sentence about each file that cannot: it costs its comparison alone."""
    curves, faults = [], []
    for path in paths:
        try:
            curves.append(read_curve(path))
        except Exception as error:
            faults.append(str(error) if isinstance(error, LongctxError) else f"{path}: cannot be read: {error!r}")
    return curves, faults


def _published_curve(rows: Sequence[Mapping[str, str]], notes: Mapping[str, str], path: Path) -> RunCurve:
    points = tuple(_published_point(row, notes.get("n"), path) for row in rows)
    prefilled = max((point.length for point in points if point.mode == COLD_MODE), default=0)
    system, count = published_curves.system(notes, path), notes.get("gpu_count", "")
    limits = published_curves.system_limits(system, {point.length for point in points}, prefilled) if system else {}
    gpus, random = int(count) if count.isdigit() else None, notes.get("weights") == "random"
    return RunCurve(notes.get("name", path.stem), points, notes.get("gpu"), gpus, random, str(path), limits)


def _published_point(cells: Mapping[str, str], n: str | None, path: Path) -> CurvePoint:
    row = _numbers(cells, path)
    if not row["prompt_tokens"]:
        raise DataError(f"{path}: a row has no prompt_tokens")
    count = int(row.get("n") or _number(n or "0", "n", path))
    ttft_s, decode_tok_s = (_described({**row, f"{metric}_n": count}, metric) for metric in METRICS)
    # The unit of a printed number's last digit: 0.01 of 18.44.
    rounding = {metric: 10.0 ** -len(cells[f"{metric}_mean"].strip().partition(".")[2]) for metric in METRICS}
    return CurvePoint(row.get("mode") or COLD_MODE, int(row["prompt_tokens"]), ttft_s, decode_tok_s, rounding)


def _numbers(cells: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Return a CSV row with numbers where a number is due; an empty cell is None."""
    if None in cells or None in cells.values():
        raise DataError(f"{path}: the row of {next(iter(cells.values()))} has not as many cells as there are columns")
    row: dict[str, Any] = {}
    for key, text in cells.items():
        if key in ("synthetic_weights", "filled_kv"):
            row[key] = text == "True"
        elif key.endswith(("_mean", "_std", "_n")) or key in NUMBERS:
            row[key] = _number(text, key, path) if text.strip() else None
        else:
            row[key] = text or None
    return row


def _number(text: str, what: str, path: Path) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) < math.inf:
            return value
    raise DataError(f"{path}: {what} is {text!r}, not a number")
