"""Two runs side by side: curves of any source, ratios with their uncertainty, a verdict for those who gate releases.

A curve comes from another run's summary (Parquet or CSV) or from a published table (CSV): columns prompt_tokens,
ttft_s_mean (or ttft_client_s), decode_tok_s_mean (or decode_tok_s), optionally mode, n, ttft_s_std, decode_tok_s_std;
'#' lines are comments, of which `# name: …`, `# gpu: …`, `# gpu_count: …`, `# n: …`, `# weights: random` and those of
limits.NOTES are read.

Verdicts: `slower` and `faster` are beyond the threshold and significant among all comparisons of the two runs (`same`:
within the threshold; `noise`: beyond it, but the interval holds 1; `unproven`: beyond it without a spread to test, or
significant only when tested alone). `lost`: asked of our run, which has no value where the other has one.
`only_ours` and `only_theirs`: never asked of the other side.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longctx.campaign.mode import MODES, campaign_facet
from longctx.lengths import format_length
from longctx.results import statistics
from longctx.results.curves import METRICS, CurvePoint, RunCurve
from longctx.results.statistics import Description, Ratio


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric at one length: ratio = ours / theirs, and one of the module's verdicts."""

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

    ours: RunCurve
    theirs: RunCurve
    threshold: float
    confidence: float
    per_gpu: bool
    rows: tuple[Compared, ...] = field(default=())

    def having(self, verdict: str) -> list[Compared]:
        return [row for row in self.rows if row.verdict == verdict]

    def slower_unproven(self) -> list[Compared]:
        return [row for row in self.having("unproven") if slowdown(row) > 1]

    @property
    def nothing_shared(self) -> bool:
        return all(row.ratio is None for row in self.rows)

    def shuts(self, strict: bool = False) -> bool:
        """Say whether a release gate stays shut: something is slower, a value is lost, or nothing could be compared."""
        slower = self.having("slower") or (strict and self.slower_unproven())
        return bool(slower or self.having("lost") or self.nothing_shared)


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
    ours: RunCurve, theirs: RunCurve, *, threshold: float = 0.03, confidence: float = 0.95, normalise: bool = False
) -> Comparison:
    """Compare every metric at every length that either curve has; with `normalise` per GPU.

    A difference counts when the slowdown (ours / theirs for TTFT, theirs / ours for decode) leaves 1 ± `threshold` and
    is significant at `confidence` (stats.ratio: Welch) among all that is compared (stats.significant), so that the
    chance of any false alarm between equal runs is 1 - `confidence` however many lengths there are.
    """
    found = list(_ratios(ours, theirs, confidence, normalise))
    proven = statistics.significant([row.ratio.p if row.ratio else None for row in found], 1 - confidence)
    rows = [
        replace(row, verdict=_verdict(row, threshold, sure)) if row.ratio else row
        for row, sure in zip(found, proven, strict=True)
    ]
    return Comparison(ours, theirs, threshold, confidence, normalise, tuple(rows))


def _ratios(ours: RunCurve, theirs: RunCurve, confidence: float, normalise: bool) -> Iterator[Compared]:
    """Yield every metric and length with its ratio; the verdict of a ratio is still open."""
    for mode in MODES:
        a, b = ours.of_mode(mode), theirs.of_mode(mode)
        for metric in METRICS:
            for length in sorted({*a, *b}):
                mine = _one(a.get(length), metric, ours, normalise)
                other = _one(b.get(length), metric, theirs, normalise)
                if mine[0].mean is not None or other[0].mean is not None:
                    ratio = statistics.ratio(mine[0], other[0], confidence, (mine[1], other[1]))
                    verdict = "only_ours" if mine[0].mean is not None else "only_theirs"
                    if (asked := a.get(length)) and getattr(asked, metric).mean is None:
                        verdict = "lost"
                    yield Compared(mode, length, metric, mine[0], other[0], ratio, verdict)


def _one(point: CurvePoint | None, metric: str, curve: RunCurve, normalise: bool) -> tuple[Description, float]:
    """Return a point's metric and the unit of its last printed digit, both per GPU if asked."""
    if point is None:
        return Description(), 0.0
    described: Description = getattr(point, metric)
    unit = point.rounding.get(metric, 0.0)
    if not normalise:
        return described, unit
    factor = (curve.gpu_count or 1) if metric == "ttft_s" else 1 / (curve.gpu_count or 1)
    return per_gpu(described, metric, curve.gpu_count), unit * factor


def _verdict(row: Compared, threshold: float, significant: bool) -> str:
    slower = slowdown(row)
    if 1 / (1 + threshold) <= slower <= 1 + threshold:
        return "same"
    if significant:
        return "slower" if slower > 1 else "faster"
    low, high = (row.ratio.low, row.ratio.high) if row.ratio else (None, None)
    return "noise" if low is not None and high is not None and low <= 1 <= high else "unproven"


def cautions(found: Comparison) -> list[str]:
    """Return what else than speed the two runs differ in, or what of their numbers is not real."""
    ours, theirs = found.ours, found.theirs
    said = []
    if ours.system != theirs.system and ours.system and theirs.system:
        said.append(f"Different systems: this run {ours.system}; the other {theirs.system}.")
    elif ours.synthetic_weights or theirs.synthetic_weights:
        where = (
            "Both runs"
            if ours.synthetic_weights == theirs.synthetic_weights
            else ("This run" if ours.synthetic_weights else "The other run")
        )
        said.append(f"{where} had random weights: speeds are real, outputs mean nothing.")
    for mode in MODES:
        if campaign_facet(mode).fills_kv and any(row.mode == mode and row.ratio for row in found.rows):
            said.append(f"In {mode} the KV cache was filled, not prefilled.")
    return said


def verdict_sentence(comparisons: Sequence[Comparison]) -> str:
    """Say in one sentence whether anything became significantly slower, and what the answer leaves open."""
    slower = [(c, row) for c in comparisons for row in c.having("slower")]
    tail = "".join(f"; {text}" for text in _open_questions(comparisons))
    if not slower:
        return f"No significant slowdown{tail}."
    comparison, worst = max(slower, key=lambda pair: slowdown(pair[1]))
    many = "s" if len(slower) > 1 else ""
    return (
        f"{len(slower)} significant slowdown{many} beyond {comparison.threshold * 100:.3g}%; the worst is"
        f" {slowdown(worst) - 1:.1%} in {_named(worst)} against {comparison.theirs.name}{tail}."
    )


def _open_questions(comparisons: Sequence[Comparison]) -> Iterator[str]:
    if lost := [row for c in comparisons for row in c.having("lost")]:
        yield f"no value here where the other run has one: {', '.join(dict.fromkeys(map(_named, lost)))}"
    if apart := [c.theirs.name for c in comparisons if c.nothing_shared]:
        yield f"no length in common with {', '.join(apart)}, so nothing was compared"
    if unproven := sum(len(c.having("unproven")) for c in comparisons):
        yield f"{unproven} differ by more, but too few runs to prove it"


def _named(row: Compared) -> str:
    return f"{METRICS[row.metric]} at {format_length(row.length)} ({row.mode})"


def slowdown(row: Compared) -> float:
    """Return how many times slower ours is: TTFT ours / theirs, decode theirs / ours; 1 where one is missing."""
    if row.ratio is None:
        return 1.0
    return row.ratio.value if row.metric == "ttft_s" else 1 / row.ratio.value


def comparison_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """Return tables.COMPARISON rows."""
    return [
        {
            "other": comparison.theirs.name,
            "source": comparison.theirs.source,
            "per_gpu": comparison.per_gpu,
            "mode": row.mode,
            "length": row.length,
            "metric": row.metric,
            "ours_mean": row.ours.mean,
            "ours_std": row.ours.std,
            "ours_n": row.ours.n,
            "theirs_mean": row.theirs.mean,
            "theirs_std": row.theirs.std,
            "theirs_n": row.theirs.n,
            "ratio": row.ratio and row.ratio.value,
            "ratio_low": row.ratio and row.ratio.low,
            "ratio_high": row.ratio and row.ratio.high,
            "p": row.ratio and row.ratio.p,
            "verdict": row.verdict,
        }
        for comparison in comparisons
        for row in comparison.rows
    ]
