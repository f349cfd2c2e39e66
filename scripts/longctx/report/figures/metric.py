"""Figures: TTFT and decode throughput against prompt length, and the measured share of the hardware's limits.

A rung without a value is drawn at the foot of the plot: a cross where it failed, an open circle where it is missing, a
diamond where its prefill went on from a checkpoint (no cold TTFT), a square where a kernel compiled in it (no decode),
a triangle where the client read every first token late (point down) or the stream does not show it (point up).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from longctx.campaign.mode import COLD_MODE, MODES, campaign_facet
from longctx.lengths import format_length
from longctx.report import palette, style
from longctx.report.mode import report_facet
from longctx.report.palette import Look
from longctx.report.table_cells import Row
from longctx.results.campaign_results import RANDOM_WEIGHTS, CampaignResults
from longctx.results.compare.comparison import per_gpu as per_gpu_values
from longctx.results.compare.curves import RunCurve, curve_from_summary
from longctx.results.mode import results_facet
from longctx.results.statistics import Description

MOST_INSIDE = 5  # series whose legend still leaves the points free
SAME_LIMIT = 0.01  # another run on the same hardware has our limit, which is drawn once
METRIC_TITLES = {"ttft_s": "Time to first token", "decode_tok_s": "Decode throughput"}
DRAWING_ORDER = tuple(reversed(MODES))  # cold prompts on top
OTHERS = ((palette.PURPLE, "^"), (palette.ORANGE, "v"), (palette.SKY, "P"), (palette.MUTED, "X"))
# A rung without a value: why, and how it is marked.
FAILED, RESUMED, COMPILED = "failed or doubtful", "continued after a crash", "a kernel compiled meanwhile"
LATE, UNSEEN = "late: only a bound is known", "the stream does not show the first token"
EMPTY = {FAILED: "x", RESUMED: "d", COMPILED: "s", LATE: "v", UNSEEN: "^", "not measured": "o"}
Shares = dict[int, float]  # of the limit, by prompt length


@dataclass(frozen=True, slots=True)
class _Plot:
    """Axes on which a metric is drawn; per_gpu: as GPU-seconds, or tok/s of one GPU."""

    axes: Axes
    metric: str
    per_gpu: bool

    def scale(self, values: Description, gpu_count: int | None) -> Description:
        return per_gpu_values(values, self.metric, gpu_count) if self.per_gpu else values

    def draw(self, curve: RunCurve, mode: str, look: Look, zorder: float) -> dict[int, Description]:
        """Draw the points that a run has of a mode, and return them by prompt length, measured or not."""
        points = sorted(curve.of_mode(mode).items())
        values = {n: self.scale(getattr(point, self.metric), curve.gpu_count) for n, point in points}
        known = [(x, d.mean, d.std or 0.0) for x, d in values.items() if d.mean is not None and d.mean > 0]
        if known:
            x, y, std = zip(*known, strict=True)
            # A log axis cannot show mean - std <= 0: the lower bar ends just above zero then.
            low = [min(s, 0.999 * mean) for mean, s in zip(y, std, strict=True)]
            self.axes.errorbar(x, y, yerr=[low, std], label=look.label, elinewidth=1.1, zorder=zorder, **look.options)
        return values

    def bounds(self, curve: RunCurve) -> dict[int, float]:
        """Return a run's limits by ascending prompt length; per GPU none where the number of GPUs is unknown."""
        limits = [(n, Description(1, getattr(limit, self.metric))) for n, limit in sorted(curve.limits.items())]
        bounds = {n: self.scale(limit, curve.gpu_count).mean for n, limit in limits}
        return {n: bound for n, bound in bounds.items() if bound}


def metric_figure(results: CampaignResults, others: Sequence[RunCurve], metric: str, per_gpu: bool = False) -> Figure:
    """Draw `metric` ('ttft_s' or 'decode_tok_s') against prompt length on log axes; std as error bars.

    With fits, bounds, other curves, and rungs without a value; `per_gpu` gives GPU-seconds, or tok/s of one GPU.
    """
    is_ttft = metric == "ttft_s"
    title = METRIC_TITLES[metric] + (" × GPUs" if per_gpu and is_ttft else " per GPU" if per_gpu else "")
    figure, axes = style.new(f"{title} against prompt length", results.subtitle)
    plot, ours, lengths = _Plot(axes, metric, per_gpu), curve_from_summary(results.summary), set[int]()
    for mode in DRAWING_ORDER:
        if campaign_facet(mode).measures_ttft or not is_ttft:
            lengths |= plot.draw(ours, mode, report_facet(mode).look, zorder=3).keys()
    lengths |= _draw_estimates(plot, results)
    for other in looks(others):
        lengths |= _draw_other(plot, *other)
    _draw_bounds(plot, ours, others)
    if not per_gpu:
        _draw_fit(axes, results.fits, metric)
    if not axes.containers:
        style.write_in_the_middle(axes, "nothing measured")
    style.length_axis(axes, lengths)
    if is_ttft:
        style.time_axis(axes, "GPU-time to first token" if per_gpu else "Time to first token (client)")
    else:
        rate_axis(axes, "Decode throughput (tokens/s per GPU)" if per_gpu else "Decode throughput (tokens/s)")
    foot = 0.08 if mark_empty(axes, results.summary, metric) else 0.0
    _legend(axes, **({"loc": "upper left"} if is_ttft else {"loc": "lower left", "bbox_to_anchor": (0, foot)}))
    style.mark_synthetic(axes, results.synthetic_labels())
    return figure


def _draw_other(plot: _Plot, other: RunCurve, colour: str, marker: str) -> set[int]:
    """Overlay another run's points, hollow and under our own; return the lengths that have one."""
    drawn: set[int] = set()
    for mode in MODES:
        if overlay := report_facet(mode).overlay:
            look = Look(other.name + overlay[0] + synthetic_note(other), colour, marker, overlay[1], hollow=True)
            drawn |= {n for n, values in plot.draw(other, mode, look, zorder=2.5).items() if values.mean}
    return drawn


def _draw_estimates(plot: _Plot, results: CampaignResults) -> set[int]:
    """Draw what modes estimate of whole prompts, with its interval, as a series of its own; return its lengths."""
    drawn: set[int] = set()
    for mode in MODES if plot.metric == "ttft_s" else ():
        rows = [row for row in results.estimates if row["mode"] == mode and row["ttft_estimate_s"]]
        scale = results.gpu_count if plot.per_gpu else 1
        if rows and scale:
            low, middle, high = (
                [row[name] * scale for row in rows] for name in ("ttft_low_s", "ttft_estimate_s", "ttft_high_s")
            )
            half = [[m - edge for m, edge in zip(middle, low, strict=True)]]
            half += [[edge - m for m, edge in zip(middle, high, strict=True)]]
            look: Any = report_facet(mode).look.options | {"linestyle": ":", "zorder": 2.8}
            lengths = [row["length"] for row in rows]
            plot.axes.errorbar(lengths, middle, yerr=half, label=report_facet(mode).look.label, **look)
            drawn |= set(lengths)
    return drawn


def _draw_bounds(plot: _Plot, run: RunCurve, others: Sequence[RunCurve]) -> None:
    """Draw the hardware's limits, dashed: the least TTFT, or the most decode throughput; ours and the others'."""
    ours = plot.bounds(run)
    label = "least time the hardware allows" if plot.metric == "ttft_s" else "most the memory bandwidth allows"
    lines = [(ours, label, palette.MUTED)]
    for other, colour, _ in looks(others):
        theirs = plot.bounds(other)
        differences = [abs(theirs[n] / ours[n] - 1) for n in theirs.keys() & ours.keys()]
        if not differences or max(differences) >= SAME_LIMIT:
            lines.append((theirs, f"limit of {other.name}", colour))
    for bounds, label, colour in lines:
        if bounds:
            # A line through one point shows nothing.
            dashed: Any = {"ls": (0, (5, 3)), "lw": 1.2, "marker": "_" if len(bounds) == 1 else "", "markersize": 16}
            plot.axes.plot(list(bounds), list(bounds.values()), color=colour, label=label, zorder=2, **dashed)


def _draw_fit(axes: Axes, all_fits: Sequence[Row], metric: str) -> None:
    """Draw the fitted curve, dotted: the power law of TTFT, or decode from its linear time per token."""
    names = ("ttft_power_long", "ttft_power") if metric == "ttft_s" else ("decode_line",)
    fits = [fit for name in names for fit in all_fits if fit["name"] == name and fit.get("r2") is not None]
    if not fits:
        return
    fit = max(fits, key=itemgetter("length_max"))
    x = [fit["length_min"] * (fit["length_max"] / fit["length_min"]) ** (i / 60) for i in range(-6, 67)]
    if metric == "ttft_s":
        y = [fit["coefficient"] * length ** fit["exponent"] for length in x]
        span = f"{format_length(fit['length_min'])}–{format_length(fit['length_max'])}"
        label = f"fit L^{fit['exponent']:.2f} over {span}"
    else:
        x = [length for length in x if fit["intercept_s"] + fit["slope_s"] * length > 0]
        y = [1 / (fit["intercept_s"] + fit["slope_s"] * length) for length in x]
        label = f"fit {fit['intercept_s'] * 1e3:.3g} ms + {fit['slope_s'] * 1e9:.3g} ns × L a token"
    label += f" (R² {fit['r2']:.4f})"
    axes.plot(x, y, linestyle=":", linewidth=1.3, color=palette.INK, label=label, zorder=4, scaley=False)


def rate_axis(axes: Axes, label: str) -> None:
    """Make y a log axis of plain numbers: 20, 50, 100, 200, and more of them where it spans little; call it last."""
    axes.set_yscale("log")
    style.widen(axes, 5)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 10 * low else (1, 2, 3, 4, 5, 6, 8)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)


def _legend(axes: Axes, **options: Any) -> None:
    """Explain the measured series first (ours, cold prompts leading, then others), then bounds, fits and marks."""
    ours = [report_facet(mode).look.label for mode in MODES]

    def place(entry: tuple[Any, str]) -> tuple[bool, int]:
        handle, label = entry
        return isinstance(handle, Line2D), ours.index(label) if label in ours else len(ours)

    entries = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=place)
    handles = [handle[0] if isinstance(handle, ErrorbarContainer) else handle for handle, _ in entries]
    axes.legend(handles, [label for _, label in entries], **options)


def limits_figure(results: CampaignResults, others: Sequence[RunCurve]) -> Figure:
    """Draw the share of the hardware's limit that was reached: MFU of prefill, bandwidth of decode."""
    # The legend is read from the last drawn: ours, then the others.
    drawn = [*(pair for other in reversed(looks(others)) for pair in _their_shares(*other)), *our_shares(results)]
    crowded = len(drawn) > MOST_INSIDE
    height = style.HEIGHT_IN + (0.21 * len(drawn) if crowded else 0)
    figure, axes = style.new("Distance to the hardware's limit", results.subtitle, height=height)
    for look, shares in drawn:
        axes.plot(list(shares), list(shares.values()), label=look.label, **look.options)
    axes.axhline(1.0, linestyle=(0, (5, 3)), linewidth=1.2, color=palette.MUTED)
    style.length_axis(axes, {length for _, shares in drawn for length in shares})
    axes.set_ylim(0, 1.06 * max(1.0, *(max(shares.values()) for _, shares in drawn)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("Share of the limit")
    if crowded:
        figure.legend(loc="outside lower left", reverse=True)
    else:  # opaque: it may lie over the line at 100 %
        axes.legend(loc="best", reverse=True, frameon=True, framealpha=0.9, edgecolor="none", facecolor=palette.PAPER)
    style.mark_synthetic(axes, results.synthetic_labels())
    return figure


def our_shares(results: CampaignResults, others: Sequence[RunCurve] = ()) -> list[tuple[Look, Shares]]:
    """Return the shares of the limits that this run alone reached, in drawing order."""
    series = []
    for mode in DRAWING_ORDER:
        for look, column in report_facet(mode).limit_series:
            values = {row["length"]: row[column] for row in results.of_mode(mode) if row.get(column)}
            if values:
                inverse = column == "ttft_over_bound"
                series.append((look, {n: 1 / value if inverse else value for n, value in values.items()}))
    return series


def _their_shares(other: RunCurve, colour: str, marker: str) -> Iterator[tuple[Look, Shares]]:
    """Yield the shares of its own limits that another run's cold prompts reached, by prompt length."""
    for metric, name, shape in (("decode_tok_s", "decode", marker), ("ttft_s", "prefill", "o")):
        shares = {}
        for length, point in sorted(other.of_mode(COLD_MODE).items()):
            mean, limit = getattr(point, metric).mean, getattr(other.limits.get(length), metric, None)
            if mean and limit:
                shares[length] = mean / limit if metric == "decode_tok_s" else limit / mean
        if shares:
            yield Look(f"{other.name}: {name}{synthetic_note(other)}", colour, shape, hollow=True), shares


def looks(others: Sequence[RunCurve]) -> list[tuple[RunCurve, str, str]]:
    """Give each other run its colour and marker."""
    return [(other, *look) for look, other in zip(OTHERS * len(others), others, strict=False)]


def synthetic_note(other: RunCurve) -> str:
    """Return what follows the name of another run in a legend."""
    return f" ({RANDOM_WEIGHTS})" if other.synthetic_weights else ""


def mark_empty(axes: Axes, summary: Sequence[Row], metric: str) -> bool:
    """Mark at the foot of the plot, with room for it, the rungs without a value of `metric` in any mode that could
    give one; return whether there are any."""
    states: dict[str, list[int]] = defaultdict(list)
    asked = [row for row in summary if metric in results_facet(row["mode"]).metrics]
    asked = [row for row in asked if metric != "ttft_s" or row["mode"] == COLD_MODE]
    for length in dict.fromkeys(row["length"] for row in asked):
        rows = [row for row in asked if row["length"] == length]
        if all(row[f"{metric}_mean"] is None for row in rows):
            states[emptiness(rows, metric)].append(length)
    for state, marker in EMPTY.items():
        if x := states.get(state):
            colour = palette.VERMILLION if state == FAILED else palette.MUTED
            place: Any = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
            look: Any = {"markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.8, "linestyle": ""}
            axes.plot(x, [0.035] * len(x), label=state, marker=marker, color=colour, **look, **place)
    if states:
        low, high = axes.get_ylim()
        axes.set_ylim(low / (high / low) ** 0.08, high)
    return bool(states)


def emptiness(rows: Sequence[Row], metric: str) -> str:
    """Return why a rung has no value: one of EMPTY's states."""
    if any(row["n_failed"] or row["n_doubtful"] for row in rows):
        return FAILED
    marks = {mark for row in rows for mark in row.get("reasons") or ()}
    if metric == "decode_tok_s" and "compiled" in marks:
        return COMPILED
    if metric == "ttft_s" and any(row.get("n_late") for row in rows):
        return LATE
    if metric == "ttft_s" and "first_token_unseen" in marks:
        return UNSEEN
    return RESUMED if "resumed" in marks else "not measured"
