"""Two runs side by side: curves of any source, ratios with their uncertainty, a verdict for those who gate releases.

A curve comes from another run's summary (Parquet or CSV) or from a published table (CSV): columns prompt_tokens,
ttft_s_mean (or ttft_client_s), decode_tok_s_mean (or decode_tok_s), optionally mode, n, ttft_s_std, decode_tok_s_std;
'#' lines are comments, of which `# name: …`, `# gpu: …`, `# gpu_count: …`, `# n: …` and `# weights: random` are read.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longctx import stats, tables
from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.stats import Description, Ratio

PUBLISHED_COLUMNS = ("prompt_tokens", "ttft_s_mean", "decode_tok_s_mean")
ALIASES = {"ttft_client_s": "ttft_s_mean", "decode_tok_s": "decode_tok_s_mean"}
NOTES = ("name", "gpu", "gpu_count", "n", "weights")
METRICS = {"ttft_s": "TTFT", "decode_tok_s": "decode"}


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
class Curve:
    """A run as others see it; `gpu_count` GPUs made one measured system."""

    name: str
    points: tuple[CurvePoint, ...]
    gpu: str | None = None
    gpu_count: int | None = None
    synthetic_weights: bool = False
    source: str = ""

    def of_mode(self, mode: str) -> dict[int, CurvePoint]:
        return {point.length: point for point in self.points if point.mode == mode}


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric at one length. ratio = ours / theirs; `verdict`: slower, faster, same, unproven, only_ours or
    only_theirs. `unproven` is beyond the threshold but without a spread to test (n = 1)."""

    mode: str
    length: int
    metric: str
    ours: Description
    theirs: Description
    ratio: Ratio | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our run against another: `rows` by mode, metric, length."""

    ours: Curve
    theirs: Curve
    threshold: float
    confidence: float
    per_gpu: bool
    rows: tuple[Compared, ...] = field(default=())

    def having(self, verdict: str) -> list[Compared]:
        return [row for row in self.rows if row.verdict == verdict]

    def slower_unproven(self) -> list[Compared]:
        return [row for row in self.having("unproven") if slowdown(row) > 1]


def curve_of(summary: Iterable[Mapping[str, Any]], name: str = "this run", source: str = "") -> Curve:
    """Return the curve of tables.SUMMARY rows."""
    rows = list(summary)
    points = [
        CurvePoint(row["mode"], int(row["length"]), _described(row, "ttft_s"), _described(row, "decode_tok_s"))
        for row in rows
    ]
    first: dict[str, Any] = {}
    for key in ("gpu", "gpu_count"):
        first[key] = next((row[key] for row in rows if row.get(key) is not None), None)
    return Curve(
        name, tuple(points), first["gpu"], first["gpu_count"] and int(first["gpu_count"]),
        any(row.get("synthetic_weights") for row in rows), source,
    )  # fmt: skip


def _described(row: Mapping[str, Any], metric: str) -> Description:
    mean, std, n = row.get(f"{metric}_mean"), row.get(f"{metric}_std"), row.get(f"{metric}_n")
    return Description(int(n or 0), mean, std)


def read_curve(path: Path | str) -> Curve:
    """Read summary.parquet, summary.csv or a published .csv; DataError says what the file lacks."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"compare: {path} does not exist; name a summary.parquet, a summary.csv or a published .csv")
    if path.suffix != ".csv":
        return curve_of(tables.read_rows(path, tables.SUMMARY), _run_name(path), str(path))
    text = path.read_text(encoding="utf-8").splitlines()
    notes = dict(_notes(text))
    table = csv.DictReader(line for line in text if line.strip() and not line.startswith("#"))
    rows = [{ALIASES.get(key, key): cell for key, cell in row.items()} for row in table]
    columns = set(rows[0]) if rows else set()
    if {"mode", "length", "ttft_s_mean"} <= columns:
        return curve_of((_numbers(row, path) for row in rows), _run_name(path), str(path))
    if missing := [name for name in PUBLISHED_COLUMNS if name not in columns]:
        raise DataError(f"{path}: columns missing for a comparison: {', '.join(missing)}")
    count = notes.get("gpu_count", "")
    return Curve(
        notes.get("name", path.stem), tuple(_published(row, notes.get("n"), path) for row in rows),
        notes.get("gpu"), int(count) if count.isdigit() else None, notes.get("weights") == "random", str(path),
    )  # fmt: skip


def _notes(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, colon, text = line.lstrip("# ").partition(":")
        if line.startswith("#") and colon and key in NOTES:
            yield key, text.strip()


def _run_name(path: Path) -> str:
    return path.parent.name or path.stem


def _numbers(row: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Turn a CSV row's text into numbers where a number is due; an empty cell is None."""
    found: dict[str, Any] = {}
    for key, text in row.items():
        if key in ("synthetic_weights", "filled_kv"):
            found[key] = text == "True"
        elif key.endswith(("_mean", "_std", "_n")) or key in ("length", "prompt_tokens", "n", "gpu_count"):
            try:
                found[key] = float(text) if text.strip() else None
            except ValueError as error:
                raise DataError(f"{path}: {key} is {text!r}, not a number") from error
        else:
            found[key] = text or None
    return found


def _published(text: Mapping[str, str], n: str | None, path: Path) -> CurvePoint:
    row = _numbers(text, path)
    if not row["prompt_tokens"]:
        raise DataError(f"{path}: a row has no prompt_tokens")
    count = int(row.get("n") or n or 0)
    counted = {**row, "ttft_s_n": count, "decode_tok_s_n": count}
    rounding = {metric: _last_digit(text[f"{metric}_mean"]) for metric in METRICS}
    mode, length = row.get("mode") or "prefill", int(row["prompt_tokens"])
    return CurvePoint(mode, length, _described(counted, "ttft_s"), _described(counted, "decode_tok_s"), rounding)


def _last_digit(text: str) -> float:
    """Return the unit of a printed number's last digit: '18.44' -> 0.01."""
    return float(10.0 ** -len(text.strip().partition(".")[2]))


def scaled(described: Description, factor: float) -> Description:
    """Return mean and std times `factor`, for figures per GPU."""
    if described.mean is None:
        return described
    std = None if described.std is None else described.std * factor
    return Description(described.n, described.mean * factor, std)


def per_gpu(described: Description, metric: str, gpu_count: int | None) -> Description:
    """Return GPU-seconds of a TTFT, or tok/s of one GPU; empty where the number of GPUs is unknown."""
    if not gpu_count:
        return Description()
    return scaled(described, gpu_count if metric == "ttft_s" else 1 / gpu_count)


def compare(
    ours: Curve, theirs: Curve, *, threshold: float = 0.03, confidence: float = 0.95, normalise: bool = False
) -> Comparison:
    """Compare every metric at every length that either curve has; with `normalise` per GPU.

    A difference counts when the slowdown (ours / theirs for TTFT, theirs / ours for decode) leaves 1 +- `threshold` and
    its interval at `confidence` (stats.ratio: Welch) excludes 1.
    """
    rows = []
    for mode in ("prefill", "reuse", "decode_only"):
        a, b = ours.of_mode(mode), theirs.of_mode(mode)
        for metric in METRICS:
            for length in sorted({*a, *b}):
                mine = _one(a.get(length), metric, ours, normalise)
                other = _one(b.get(length), metric, theirs, normalise)
                if mine[0].mean is not None or other[0].mean is not None:
                    found = stats.ratio(mine[0], other[0], confidence, (mine[1], other[1]))
                    verdict = _verdict(metric, mine[0], found, threshold)
                    rows.append(Compared(mode, length, metric, mine[0], other[0], found, verdict))
    return Comparison(ours, theirs, threshold, confidence, normalise, tuple(rows))


def _one(point: CurvePoint | None, metric: str, curve: Curve, normalise: bool) -> tuple[Description, float]:
    """Return a point's metric and the unit of its last printed digit, both per GPU if asked."""
    if point is None:
        return Description(), 0.0
    described: Description = getattr(point, metric)
    unit = point.rounding.get(metric, 0.0)
    if not normalise:
        return described, unit
    factor = (curve.gpu_count or 1) if metric == "ttft_s" else 1 / (curve.gpu_count or 1)
    return per_gpu(described, metric, curve.gpu_count), unit * factor


def _verdict(metric: str, ours: Description, found: Ratio | None, threshold: float) -> str:
    if found is None:
        return "only_ours" if ours.mean is not None else "only_theirs"
    slower = found.value if metric == "ttft_s" else 1 / found.value
    if 1 / (1 + threshold) <= slower <= 1 + threshold:
        return "same"
    if found.low is None or found.high is None:
        return "unproven"
    if found.low <= 1 <= found.high:
        return "same"
    return "slower" if slower > 1 else "faster"


def verdict_sentence(comparisons: Sequence[Comparison]) -> str:
    """Say in one sentence whether anything became significantly slower."""
    slower = [(c, row) for c in comparisons for row in c.having("slower")]
    unproven = sum(len(c.having("unproven")) for c in comparisons)
    tail = f"; {unproven} differ by more but have no spread to test (n = 1)" if unproven else ""
    if not slower:
        return f"No significant slowdown{tail}."
    comparison, worst = max(slower, key=lambda pair: slowdown(pair[1]))
    return (
        f"{len(slower)} significant slowdown{'s' if len(slower) > 1 else ''} beyond {comparison.threshold:.0%}; the"
        f" worst is {slowdown(worst) - 1:.1%} in {METRICS[worst.metric]} at {format_length(worst.length)}"
        f" ({worst.mode}) against {comparison.theirs.name}{tail}."
    )


def slowdown(row: Compared) -> float:
    """Return how many times slower ours is: TTFT ours / theirs, decode theirs / ours; 1 where one is missing."""
    if row.ratio is None:
        return 1.0
    return row.ratio.value if row.metric == "ttft_s" else 1 / row.ratio.value


def rows_of(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """Return tables.COMPARISON rows."""
    return [
        {
            "other": comparison.theirs.name, "source": comparison.theirs.source, "per_gpu": comparison.per_gpu,
            "mode": row.mode, "length": row.length, "metric": row.metric, "ours_mean": row.ours.mean,
            "ours_std": row.ours.std, "ours_n": row.ours.n, "theirs_mean": row.theirs.mean,
            "theirs_std": row.theirs.std, "theirs_n": row.theirs.n, "ratio": row.ratio and row.ratio.value,
            "ratio_low": row.ratio and row.ratio.low, "ratio_high": row.ratio and row.ratio.high,
            "p": row.ratio and row.ratio.p, "verdict": row.verdict,
        }
        for comparison in comparisons for row in comparison.rows
    ]  # fmt: skip
