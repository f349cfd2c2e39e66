"""Two runs side by side: curves of any source, ratios with their uncertainty, a verdict for those who gate releases.

A curve comes from another run's summary (Parquet or CSV) or from a published table (CSV): columns prompt_tokens,
ttft_s_mean (or ttft_client_s), decode_tok_s_mean (or decode_tok_s), optionally mode, n, ttft_s_std, decode_tok_s_std;
'#' lines are comments, of which `# name: …`, `# gpu: …`, `# gpu_count: …`, `# n: …`, `# weights: random` and those of
published.NOTES are read.

Verdicts: `slower` and `faster` are beyond the threshold and significant among all comparisons of the two runs (`same`:
within the threshold; `noise`: beyond it, but the interval holds 1; `unproven`: beyond it without a spread to test, or
significant only when tested alone). `lost`: asked of our run, which has no value where the other has one.
`only_ours` and `only_theirs`: never asked of the other side.

KV capacity and memory (curves.FACTS) are exact, so one value of either run is compared without statistics, on as many
of the same GPUs. `less_room` and `more_room`: beyond FACT_TOLERANCE, and bytes beyond FACT_TOLERANCE_BYTES.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from longctx.campaign.mode import MODES, campaign_facet
from longctx.errors import ConfigError
from longctx.lengths import format_length
from longctx.results import statistics
from longctx.results.compare.curves import FACTS, METRICS, CurvePoint, RunCurve, read_curve
from longctx.results.statistics import Description, Ratio

# Two starts of one release differ in less (0.02 % of the KV capacity on an H200).
FACT_TOLERANCE = 0.01
FACT_TOLERANCE_BYTES = 2**28
MORE_IS_BETTER = ("kv_capacity_tokens", "kv_cache_bytes")


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
    rows: tuple[Compared, ...] = ()

    def having(self, verdict: str) -> list[Compared]:
        return [row for row in self.rows if row.verdict == verdict]

    def slower_unproven(self) -> list[Compared]:
        return [row for row in self.having("unproven") if slowdown(row) > 1]

    @property
    def nothing_shared(self) -> bool:
        return all(row.ratio is None for row in self.rows if row.metric in METRICS)

    def shuts(self, strict: bool = False) -> bool:
        """Say whether a release gate stays shut.

        So it does where something is slower or has less room, a value is lost, or nothing could be compared.
        """
        slower = self.having("slower") or (strict and self.slower_unproven())
        return bool(slower or self.having("less_room") or self.having("lost") or self.nothing_shared)


def per_gpu(described: Description, metric: str, gpu_count: int | None) -> Description:
    """Return GPU-seconds of a TTFT, or tok/s of one GPU; empty where the number of GPUs or the mean is unknown."""
    if not gpu_count or described.mean is None:
        return Description()
    factor = gpu_count if metric == "ttft_s" else 1 / gpu_count
    return Description(described.n, described.mean * factor, described.std and described.std * factor)


def compare_files(ours: Path, against: Sequence[Path], *, normalise: bool, **options: float) -> list[Comparison]:
    """Compare the run of one file with those of others, as `compare` does; ConfigError for GPUs that nobody counted."""
    mine, others = read_curve(ours), [read_curve(path) for path in against]
    if normalise and (unknown := [curve.source for curve in (mine, *others) if not curve.gpu_count]):
        raise ConfigError(f"--per-gpu: {', '.join(unknown)} does not say how many GPUs it ran on; compare without it")
    return [compare(mine, other, normalise=normalise, **options) for other in others]


def compare(
    ours: RunCurve, theirs: RunCurve, *, threshold: float = 0.03, confidence: float = 0.95, normalise: bool = False
) -> Comparison:
    """Compare every metric at every length that either curve has; with `normalise` per GPU.

    A difference counts when the slowdown (ours / theirs for TTFT, theirs / ours for decode) leaves 1 ± `threshold` and
    is significant at `confidence` (Welch) among all that is compared (Benjamini and Hochberg): the chance of any false
    alarm between equal runs is 1 - `confidence`, however many lengths there are.
    """
    rows = list(_ratios(ours, theirs, confidence, normalise))
    proven = statistics.significant([row.ratio.p if row.ratio else None for row in rows], 1 - confidence)
    judged = tuple(_judge(row, threshold, sure) for row, sure in zip(rows, proven, strict=True))
    return Comparison(ours, theirs, threshold, confidence, normalise, (*judged, *_facts(ours, theirs)))


def _facts(ours: RunCurve, theirs: RunCurve) -> Iterator[Compared]:
    """Yield each fact of both runs at the points that both have, judged; none where their GPUs differ."""
    if (ours.gpu, ours.gpu_count) != (theirs.gpu, theirs.gpu_count):
        return
    for mode, fact in product(MODES, FACTS):
        others = theirs.of_mode(mode)
        for length, point in sorted(ours.of_mode(mode).items()):
            a, b = point.facts.get(fact), others[length].facts.get(fact) if length in others else None
            if a is not None and b:
                values = Description(1, a), Description(1, b)
                yield Compared(mode, length, fact, *values, Ratio(a / b), _fact_verdict(fact, a, b))


def _fact_verdict(fact: str, ours: float, theirs: float) -> str:
    tolerance = max(FACT_TOLERANCE * theirs, FACT_TOLERANCE_BYTES if fact.endswith("_bytes") else 0)
    if abs(ours - theirs) <= tolerance:
        return "same"
    return "more_room" if (ours > theirs) == (fact in MORE_IS_BETTER) else "less_room"


def _ratios(ours: RunCurve, theirs: RunCurve, confidence: float, normalise: bool) -> Iterator[Compared]:
    """Yield every metric and length of the outer join of both runs; the verdict of a ratio is still open."""
    on = ["mode", "length"]
    left, right = (
        pd.DataFrame([(point.mode, point.length, point) for point in curve.points], columns=[*on, "point"])
        .astype({"mode": "string", "length": "int64"})
        .drop_duplicates(on, keep="last")
        for curve in (ours, theirs)
    )
    joined = left.merge(right, how="outer", on=on, suffixes=("_ours", "_theirs")).sort_values("length")
    joined = joined.astype(object).where(joined.notna(), None)
    for mode in MODES:
        rows = list(joined[joined["mode"] == mode].itertuples(index=False, name=None))
        for metric in METRICS:
            for _, length, mine, other in rows:
                a, a_unit = _values(mine, metric, ours, normalise)
                b, b_unit = _values(other, metric, theirs, normalise)
                if a.mean is None and b.mean is None:
                    continue
                ratio = statistics.ratio(a, b, confidence, (a_unit, b_unit))
                lost = mine is not None and getattr(mine, metric).mean is None
                verdict = "lost" if lost else "only_theirs" if a.mean is None else "only_ours"
                yield Compared(str(mode), length, metric, a, b, ratio, verdict)


def _values(point: CurvePoint | None, metric: str, curve: RunCurve, normalise: bool) -> tuple[Description, float]:
    """Return a point's metric and the unit of its last printed digit, both per GPU if asked."""
    if point is None:
        return Description(), 0.0
    described, unit = getattr(point, metric), point.rounding.get(metric, 0.0)
    if not normalise:
        return described, unit
    rounded = per_gpu(Description(1, unit), metric, curve.gpu_count)
    return per_gpu(described, metric, curve.gpu_count), rounded.mean or 0.0


def _judge(row: Compared, threshold: float, significant: bool) -> Compared:
    if (ratio := row.ratio) is None:
        return row
    if 1 / (1 + threshold) <= slowdown(row) <= 1 + threshold:
        return replace(row, verdict="same")
    if significant:
        return replace(row, verdict="slower" if slowdown(row) > 1 else "faster")
    inside = ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    return replace(row, verdict="noise" if inside else "unproven")


def cautions(comparison: Comparison) -> list[str]:
    """Return what else than speed the two runs differ in, or what of their numbers is not real."""
    ours, theirs, sentences = comparison.ours, comparison.theirs, []
    if ours.system != theirs.system and ours.system and theirs.system:
        sentences.append(f"Different systems: this run {ours.system}; the other {theirs.system}.")
    elif ours.synthetic_weights or theirs.synthetic_weights:
        both = ours.synthetic_weights and theirs.synthetic_weights
        which = "Both runs" if both else "This run" if ours.synthetic_weights else "The other run"
        sentences.append(f"{which} had random weights: speeds are real, outputs mean nothing.")
    if ours.estimates or theirs.estimates:
        sentences.append("Estimated TTFT is not compared: only measured values are.")
    shared = {row.mode for row in comparison.rows if row.ratio}
    filled = [mode for mode in MODES if mode in shared and campaign_facet(mode).fills_kv]
    return sentences + [f"In {mode} the KV cache was filled, not prefilled." for mode in filled]


def verdict_sentence(comparisons: Sequence[Comparison]) -> str:
    """Say in one sentence whether anything became significantly slower, and what the answer leaves open."""
    slower = [(c, row) for c in comparisons for row in c.having("slower")]
    tail = "".join(f"; {text}" for text in (*_less_room(comparisons), *_open_questions(comparisons)))
    if not slower:
        return f"No significant slowdown{tail}."
    comparison, worst = max(slower, key=lambda pair: slowdown(pair[1]))
    count = f"{len(slower)} significant slowdown{'s' if len(slower) > 1 else ''}"
    most = f"{slowdown(worst) - 1:.1%} in {_named(worst)} against {comparison.theirs.name}"
    return f"{count} beyond {comparison.threshold * 100:.3g}%; the worst is {most}{tail}."


def _less_room(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the largest change for the worse of each fact."""
    for fact in FACTS:
        worse = [(c, row) for c in comparisons for row in c.having("less_room") if row.metric == fact and row.ratio]
        if worse:
            comparison, row = max(worse, key=lambda pair: abs((pair[1].ratio or Ratio(1)).value - 1))
            change = (row.ratio or Ratio(1)).value - 1
            yield f"less room: {_named(row)} {change:+.1%} against {comparison.theirs.name}"


def _open_questions(comparisons: Sequence[Comparison]) -> Iterator[str]:
    if lost := [row for c in comparisons for row in c.having("lost")]:
        yield f"no value here where the other run has one: {', '.join(dict.fromkeys(map(_named, lost)))}"
    if disjoint := [c.theirs.name for c in comparisons if c.nothing_shared]:
        yield f"no length in common with {', '.join(disjoint)}, so nothing was compared"
    if unproven := sum(len(c.having("unproven")) for c in comparisons):
        yield f"{unproven} differ by more, but too few runs to prove it"


def _named(row: Compared) -> str:
    return f"{(METRICS | FACTS)[row.metric]} at {format_length(row.length)} ({row.mode})"


def slowdown(row: Compared) -> float:
    """Return how many times slower ours is: TTFT ours / theirs, decode theirs / ours; 1 where one is missing."""
    value = row.ratio.value if row.ratio else 1.0
    return value if row.metric == "ttft_s" else 1 / value


def to_text(comparisons: Sequence[Comparison]) -> str:
    """Return a line per ratio or lost value, then the verdict."""
    lines = []
    for comparison in comparisons:
        lines.append(f"{comparison.ours.name} / {comparison.theirs.name}{' per GPU' if comparison.per_gpu else ''}")
        lines += [f"  {text}" for text in cautions(comparison)]
        lines += [_line(row) for row in comparison.rows if is_told(row)]
        if same := [row for row in comparison.rows if row.metric in FACTS and row.verdict == "same"]:
            names = dict.fromkeys(FACTS[row.metric] for row in same)
            lines.append(f"  within {FACT_TOLERANCE:.0%} at {len(same)} points: {', '.join(names)}")
    return "\n".join([*lines, verdict_sentence(comparisons)])


def is_told(row: Compared) -> bool:
    """Return whether a row stands in texts and tables: a ratio, a lost value, a fact that is not the same."""
    return row.verdict == "lost" or (row.ratio is not None and (row.metric in METRICS or row.verdict != "same"))


def _line(row: Compared) -> str:
    interval = "(exact)" if row.metric in FACTS else "(no spread)"
    if row.ratio and row.ratio.low is not None:
        interval = f"[{row.ratio.low:.3f}, {row.ratio.high:.3f}]"
    told = f"{row.ratio.value:8.3f}  {interval:<16}" if row.ratio else f"{'':26}"
    name = f"{row.mode} {(METRICS | FACTS)[row.metric]}"
    return f"  {name:<30} {format_length(row.length):>7}  {told}  {row.verdict}"


def comparison_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """Return schemas.COMPARISON rows."""
    rows = []
    for comparison in comparisons:
        other = {"other": comparison.theirs.name, "source": comparison.theirs.source, "per_gpu": comparison.per_gpu}
        for row in comparison.rows:
            values = {"mode": row.mode, "length": row.length, "metric": row.metric, "verdict": row.verdict}
            for side, described in (("ours", row.ours), ("theirs", row.theirs)):
                values |= {f"{side}_{name}": getattr(described, name) for name in ("mean", "std", "n")}
            if ratio := row.ratio:
                values |= {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "p": ratio.p}
            rows.append(other | values)
    return rows
