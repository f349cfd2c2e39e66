"""TTFT and decode against length, of this run or another one."""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longctx.errors import DataError
from longctx.plan import published
from longctx.plan.published import Limit
from longctx.results.statistics import Description
from longctx.storage import parquet, schemas

METRICS = {"ttft_s": "TTFT", "decode_tok_s": "decode"}
ACCEPTED = "a run's summary.parquet, its summary.csv or a published .csv"

PUBLISHED_COLUMNS = ("prompt_tokens", "ttft_s_mean", "decode_tok_s_mean")
ALIASES = {"ttft_client_s": "ttft_s_mean", "decode_tok_s": "decode_tok_s_mean"}
NUMBERS = ("length", "prompt_tokens", "n", "gpu_count", "ttft_bound_s", "decode_bound_tok_s")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Mean, std and n of TTFT (s) and decode (tok/s) at one prompt length (tokens).

    rounding: the unit of the last printed digit of either mean, by metric; none where the mean is exact.
    """

    mode: str
    length: int
    ttft_s: Description
    decode_tok_s: Description
    rounding: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A run as others see it; `gpu_count` GPUs made one measured system, whose `limits` go by prompt length."""

    name: str
    points: tuple[CurvePoint, ...]
    gpu: str | None = None
    gpu_count: int | None = None
    synthetic_weights: bool = False
    source: str = ""
    limits: Mapping[int, Limit] = field(default_factory=dict)

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
    return RunCurve(
        name,
        tuple(
            CurvePoint(row["mode"], int(row["length"]), _described(row, "ttft_s"), _described(row, "decode_tok_s"))
            for row in rows
        ),
        gpu,
        count and int(count),
        any(row.get("synthetic_weights") for row in rows),
        source,
        limits_from_summary(rows),
    )


def limits_from_summary(rows: Iterable[Mapping[str, Any]]) -> dict[int, Limit]:
    """Return the hardware's limits that schemas.SUMMARY rows carry, by prompt length (tokens)."""
    limits: dict[int, Limit] = {}
    for row in rows:
        other_mode = limits.get(int(row["length"]), Limit(None, None))
        ttft_s, decode_tok_s = row.get("ttft_bound_s"), row.get("decode_bound_tok_s")
        limit = Limit(ttft_s or other_mode.ttft_s, decode_tok_s or other_mode.decode_tok_s)
        if limit != Limit(None, None):
            limits[int(row["length"])] = limit
    return limits


def _described(row: Mapping[str, Any], metric: str) -> Description:
    mean, std, n = row.get(f"{metric}_mean"), row.get(f"{metric}_std"), row.get(f"{metric}_n")
    return Description(int(n or 0), mean, std)


def read_curve(path: Path | str) -> RunCurve:
    """Read summary.parquet, summary.csv or a published .csv; DataError says what the file lacks."""
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"compare: {path} {what}; name {ACCEPTED}")
    if path.suffix != ".csv":
        try:
            return curve_from_summary(parquet.read_rows(path, schemas.SUMMARY), _run_name(path), str(path))
        except DataError as error:
            raise DataError(f"compare: {path} is no summary of this format; name {ACCEPTED}") from error
    try:
        text = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text; save it as CSV in UTF-8") from error
    notes = published.notes(text)
    table = csv.DictReader(line for line in text if line.strip() and not line.startswith("#"))
    rows = [{ALIASES.get(key, key): cell for key, cell in row.items()} for row in table]
    columns = set(rows[0]) if rows else set()
    if {"mode", "length", "ttft_s_mean"} <= columns:
        return curve_from_summary((_numbers(row, path) for row in rows), _run_name(path), str(path))
    if missing := [name for name in PUBLISHED_COLUMNS if name not in columns]:
        raise DataError(f"{path}: columns missing for a comparison: {', '.join(missing)}")
    count = notes.get("gpu_count", "")
    points = tuple(_published(row, notes.get("n"), path) for row in rows)
    prefilled = max((point.length for point in points if point.mode == "prefill"), default=0)
    system = published.system(notes, path)
    return RunCurve(
        notes.get("name", path.stem),
        points,
        notes.get("gpu"),
        int(count) if count.isdigit() else None,
        notes.get("weights") == "random",
        str(path),
        published.system_limits(system, {point.length for point in points}, prefilled) if system else {},
    )


def _run_name(path: Path) -> str:
    return path.parent.name or path.stem


def _numbers(row: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Turn a CSV row's text into numbers where a number is due; an empty cell is None."""
    found: dict[str, Any] = {}
    if None in row or None in row.values():
        raise DataError(f"{path}: the row of {next(iter(row.values()))} has not as many cells as there are columns")
    for key, text in row.items():
        if key in ("synthetic_weights", "filled_kv"):
            found[key] = text == "True"
        elif key.endswith(("_mean", "_std", "_n")) or key in NUMBERS:
            found[key] = _number(text, key, path) if text.strip() else None
        else:
            found[key] = text or None
    return found


def _number(text: str, what: str, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{path}: {what} is {text!r}, not a number")
    return value


def _published(text: Mapping[str, str], n: str | None, path: Path) -> CurvePoint:
    row = _numbers(text, path)
    if not row["prompt_tokens"]:
        raise DataError(f"{path}: a row has no prompt_tokens")
    count = int(row.get("n") or _number(n or "0", "n", path))
    counted = {**row, "ttft_s_n": count, "decode_tok_s_n": count}
    rounding = {metric: _last_digit(text[f"{metric}_mean"]) for metric in METRICS}
    mode, length = row.get("mode") or "prefill", int(row["prompt_tokens"])
    return CurvePoint(mode, length, _described(counted, "ttft_s"), _described(counted, "decode_tok_s"), rounding)


def _last_digit(text: str) -> float:
    """Return the unit of a printed number's last digit: '18.44' -> 0.01."""
    return float(10.0 ** -len(text.strip().partition(".")[2]))
