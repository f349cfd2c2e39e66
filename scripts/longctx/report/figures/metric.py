"""Figures: TTFT and decode throughput against prompt length.

A rung without a value is drawn at the foot of the plot: a cross where it failed, an open circle where it is missing, a
diamond where its prefill went on from a checkpoint (no cold TTFT), a square where a kernel compiled in it (no decode).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from longctx.campaign.mode import MODES, campaign_facet
from longctx.lengths import format_length
from longctx.plan.published import Limit
from longctx.report import palette, style
from longctx.report.cells import Row
from longctx.report.figures.look import looks, mark_empty, mark_synthetic, synthetic_note, write_in_the_middle
from longctx.report.mode import report_facet
from longctx.report.palette import Look
from longctx.results.campaign_results import CampaignResults
from longctx.results.comparison import per_gpu as per_gpu_values
from longctx.results.curves import RunCurve, limits_from_summary
from longctx.results.statistics import Description

MOST_INSIDE = 5  # series whose legend still leaves the points free
SAME_LIMIT = 0.01  # another run on the same hardware has our limit, which is drawn once
METRIC_TITLES = {"ttft_s": "Time to first token", "decode_tok_s": "Decode throughput"}
DRAWING_ORDER = tuple(reversed(MODES))  # cold prompts on top


@dataclass(frozen=True, slots=True)
class _Plot:
    """Axes on which a metric is drawn; per_gpu: as GPU-seconds, or tok/s of one GPU."""

    axes: Axes
    metric: str
    per_gpu: bool

    def scale(self, values: Description, gpu_count: int | None) -> Description:
        return per_gpu_values(values, self.metric, gpu_count) if self.per_gpu else values

    def errorbars(self, points: Sequence[tuple[int, Description]], look: Look, zorder: float) -> None:
        known = [(x, d.mean, d.std or 0.0) for x, d in points if d.mean is not None and d.mean > 0]
        if known:
            x, y, std = zip(*known, strict=True)
            # A log axis cannot show mean - std <= 0: the lower bar ends just above zero then.
            low = [min(s, 0.999 * mean) for mean, s in zip(y, std, strict=True)]
            self.axes.errorbar(x, y, yerr=[low, std], label=look.label, elinewidth=1.1, zorder=zorder, **look.options)


def metric_figure(results: CampaignResults, others: Sequence[RunCurve], metric: str, per_gpu: bool = False) -> Figure:
    """Draw `metric` ('ttft_s' or 'decode_tok_s') against prompt length on log axes; std as error bars.

    With fits, bounds, other curves, and rungs without a value; `per_gpu` gives GPU-seconds, or tok/s of one GPU.
    """
    is_ttft = metric == "ttft_s"
    title = METRIC_TITLES[metric] + (" × GPUs" if per_gpu and is_ttft else " per GPU" if per_gpu else "")
    figure, axes = style.new(f"{title} against prompt length", results.subtitle)
    plot, lengths = _Plot(axes, metric, per_gpu), set[int]()
    for mode in DRAWING_ORDER:
        if campaign_facet(mode).measures_ttft or not is_ttft:
            lengths |= _draw_mode(plot, results, mode)
    for other in looks(others):
        lengths |= _draw_other(plot, *other)
    _draw_bounds(plot, results, others)
    if not per_gpu:
        _draw_fit(axes, results.fits, metric)
        _mark_late(axes, results, metric)
    if not axes.containers:
        write_in_the_middle(axes, "nothing measured")
    style.length_axis(axes, sorted(lengths))
    if is_ttft:
        style.time_axis(axes, "GPU-time to first token" if per_gpu else "Time to first token (client)")
    else:
        rate_axis(axes, "Decode throughput (tokens/s per GPU)" if per_gpu else "Decode throughput (tokens/s)")
    foot = 0.08 if mark_empty(axes, results.summary, metric) else 0.0
    _legend(axes, **({"loc": "upper left"} if is_ttft else {"loc": "lower left", "bbox_to_anchor": (0, foot)}))
    mark_synthetic(axes, results)
    return figure


def _draw_mode(plot: _Plot, results: CampaignResults, mode: str) -> set[int]:
    """Draw our points of a mode and return its lengths, measured or not."""
    names = [f"{plot.metric}_{name}" for name in ("n", "mean", "std")]
    rows = {row["length"]: [row[name] for name in names] for row in results.of_mode(mode)}
    points = [(n, plot.scale(Description(k or 0, mean, std), results.gpu_count)) for n, (k, mean, std) in rows.items()]
    plot.errorbars(points, report_facet(mode).look, zorder=3)
    return set(rows)


def _draw_other(plot: _Plot, other: RunCurve, colour: str, marker: str) -> set[int]:
    """Overlay another run's points, hollow and under our own; return the lengths that have one."""
    drawn: set[int] = set()
    for mode in MODES:
        if overlay := report_facet(mode).overlay:
            curve = sorted(other.of_mode(mode).items())
            points = [(n, plot.scale(getattr(point, plot.metric), other.gpu_count)) for n, point in curve]
            label = other.name + overlay[0] + synthetic_note(other)
            plot.errorbars(points, Look(label, colour, marker, overlay[1], hollow=True), zorder=2.5)
            drawn |= {length for length, values in points if values.mean}
    return drawn


def _draw_bounds(plot: _Plot, results: CampaignResults, others: Sequence[RunCurve]) -> None:
    """Draw the hardware's limits, dashed: the least TTFT, or the most decode throughput; ours and the others'."""
    ours = _bounds(plot, limits_from_summary(results.summary), results.gpu_count)
    label = "least time the hardware allows" if plot.metric == "ttft_s" else "most the memory bandwidth allows"
    lines = [(ours, label, palette.MUTED)]
    for other, colour, _ in looks(others):
        theirs = _bounds(plot, other.limits, other.gpu_count)
        differences = [abs(theirs[n] / ours[n] - 1) for n in theirs.keys() & ours.keys()]
        if not differences or max(differences) >= SAME_LIMIT:
            lines.append((theirs, f"limit of {other.name}", colour))
    for bounds, label, colour in lines:
        if bounds:
            # A line through one point shows nothing.
            dashed: Any = {"ls": (0, (5, 3)), "lw": 1.2, "marker": "_" if len(bounds) == 1 else "", "markersize": 16}
            plot.axes.plot(list(bounds), list(bounds.values()), color=colour, label=label, zorder=2, **dashed)


def _bounds(plot: _Plot, known: Mapping[int, Limit], gpu_count: int | None) -> dict[int, float]:
    """Return one metric's limits by ascending prompt length; per GPU none where the number of GPUs is unknown."""
    bounds = {n: plot.scale(Description(1, getattr(known[n], plot.metric)), gpu_count) for n in sorted(known)}
    return {n: bound.mean for n, bound in bounds.items() if bound.mean}


def _draw_fit(axes: Axes, all_fits: Sequence[Row], metric: str) -> None:
    """Draw the fitted curve, dotted: the power law of TTFT, or decode from its linear time per token."""
    names = ("ttft_power_long", "ttft_power") if metric == "ttft_s" else ("decode_line",)
    fits = [fit for name in names for fit in all_fits if fit["name"] == name]
    if not fits:
        return
    fit = max(fits, key=lambda fit: fit["length_max"]) if metric != "ttft_s" else fits[0]
    x = [fit["length_min"] * (fit["length_max"] / fit["length_min"]) ** (i / 60) for i in range(-6, 67)]
    if metric == "ttft_s":
        y = [fit["coefficient"] * length ** fit["exponent"] for length in x]
        span = f"{format_length(fit['length_min'])}–{format_length(fit['length_max'])}"
        label = f"fit L^{fit['exponent']:.2f} over {span} (R² {fit['r2']:.4f})"
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
    handles, labels = axes.get_legend_handles_labels()
    ours = [report_facet(mode).look.label for mode in MODES]
    entries = [
        (handle[0] if isinstance(handle, ErrorbarContainer) else handle, label, isinstance(handle, Line2D))
        for handle, label in zip(handles, labels, strict=True)
    ]
    entries.sort(key=lambda entry: (entry[2], ours.index(entry[1]) if entry[1] in ours else len(ours)))
    axes.legend([entry[0] for entry in entries], [entry[1] for entry in entries], **options)


def _mark_late(axes: Axes, results: CampaignResults, metric: str) -> None:
    """Ring the rungs whose TTFT is late by a share that counts: the client itself was kept waiting."""
    rows = [row for mode in DRAWING_ORDER for row in results.of_mode(mode) if row["ttft_s_mean"]]
    late = [(row["length"], row["ttft_s_mean"]) for row in rows if "client_starved" in (row.get("reasons") or ())]
    if late and metric == "ttft_s":
        ring: Any = {"markeredgecolor": palette.VERMILLION, "markeredgewidth": 1.4, "markerfacecolor": "none"}
        label = "late: the client waited for a processor"
        axes.plot(*zip(*late, strict=True), linestyle="", marker="o", markersize=12, label=label, zorder=5, **ring)
