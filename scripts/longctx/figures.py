"""The campaign's figures, from summary rows alone: every function draws one and returns the files it wrote.

A rung without a value is drawn at the foot of the plot: a cross where it failed, an open circle where it is missing, a
diamond where its prefill went on from a checkpoint (no cold TTFT), a square where a kernel compiled in it (no decode).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from longctx import cost, limits, style
from longctx.compare import Curve, per_gpu, scaled
from longctx.cost import Price
from longctx.lengths import format_length
from longctx.limits import Limit
from longctx.stats import Description

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """How a series is drawn; series that may coincide differ in shape and size, the later drawn inside the earlier."""

    label: str
    colour: str
    marker: str
    size: float = 6.0
    hollow: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What matplotlib's plot and errorbar take."""
        face = "none" if self.hollow else self.colour
        return {"color": self.colour, "marker": self.marker, "markersize": self.size, "markerfacecolor": face,
                "markeredgecolor": self.colour, "markeredgewidth": 1.4, "linewidth": 1.2}  # fmt: skip


LOOK = {
    "decode_only": Look("KV cache filled, no prefill", style.VERMILLION, "s", 9.5, hollow=True),
    "reuse": Look("behind a resident prefix", style.GREEN, "D", 7.0),
    "prefill": Look("cold prompt", style.BLUE, "o", 5.0),
}
OTHERS = ((style.PURPLE, "^"), (style.ORANGE, "v"), (style.SKY, "P"), (style.MUTED, "X"))
MOST_INSIDE = 5  # series whose legend still leaves the points free
SAME_LIMIT = 0.01  # another run on the same hardware has our limit, which is drawn once
# A rung without a value: why, and how it is marked.
EMPTY = (
    ("failed or doubtful", "x", style.VERMILLION),
    ("continued after a crash", "d", style.MUTED),
    ("a kernel compiled meanwhile", "s", style.MUTED),
    ("not measured", "o", style.MUTED),
)
METRIC_TITLES = {"ttft_s": "Time to first token", "decode_tok_s": "Decode throughput"}


@dataclass(frozen=True, slots=True)
class FigureInput:
    """What the figures show: tables.SUMMARY and tables.FITS rows, curves to overlay, and a line under each title."""

    summary: Sequence[Row]
    fits: Sequence[Row] = ()
    others: Sequence[Curve] = ()
    subtitle: str = ""
    price: Price | None = None

    def of_mode(self, mode: str) -> list[Row]:
        return sorted((row for row in self.summary if row["mode"] == mode), key=lambda row: row["length"])

    @property
    def gpu_count(self) -> int | None:
        return next((row["gpu_count"] for row in self.summary if row.get("gpu_count")), None)

    def labels(self, *modes: str) -> list[str]:
        """What is not real about the rows of these modes, for style.mark_synthetic."""
        rows = [row for row in self.summary if row["mode"] in modes]
        return [style.RANDOM_WEIGHTS] if any(row.get("synthetic_weights") for row in rows) else []


def draw_all(given: FigureInput, out_dir: Path | str) -> dict[str, list[Path]]:
    """Draw every figure that has something to show into `out_dir` as PNG and SVG, and return the files by name.

    One that has nothing to show any more (another `compare`, fewer modes) is removed, or a report would show it as new.
    """
    out = Path(out_dir)
    drawn: dict[str, list[Path]] = {}
    others_counted = [other.gpu_count for other in given.others if other.gpu_count]
    per_gpu_differs = bool(given.gpu_count) and any(count != given.gpu_count for count in others_counted)
    figures: list[tuple[str, Callable[[], Figure | None]]] = [
        ("ttft", lambda: metric_figure(given, "ttft_s")),
        ("decode", lambda: metric_figure(given, "decode_tok_s")),
        ("limits", lambda: limits_figure(given)),
        ("amortisation", lambda: amortisation_figure(given)),
        ("ttft_per_gpu", lambda: metric_figure(given, "ttft_s", normalise=True) if per_gpu_differs else None),
        ("decode_per_gpu", lambda: metric_figure(given, "decode_tok_s", normalise=True) if per_gpu_differs else None),
    ]
    for name, draw in figures:
        with style.theme():
            if figure := draw():
                drawn[name] = style.save(figure, out / name)
            else:
                for suffix in (".png", ".svg"):
                    (out / f"{name}{suffix}").unlink(missing_ok=True)
    return drawn


def metric_figure(given: FigureInput, metric: str, *, normalise: bool = False) -> Figure:
    """Draw `metric` ('ttft_s' or 'decode_tok_s') against prompt length on log axes; std as error bars.

    With fits, bounds, other curves, and rungs without a value; `normalise` gives GPU-seconds, or tok/s per GPU.
    """
    title = METRIC_TITLES[metric] + (" × GPUs" if normalise and metric == "ttft_s" else " per GPU" if normalise else "")
    figure, axes = style.new(f"{title} against prompt length", given.subtitle)
    lengths: set[int] = set()
    for mode in LOOK:
        rows = given.of_mode(mode)
        if mode != "decode_only" or metric != "ttft_s":
            lengths |= _draw_mode(axes, given, rows, mode, metric, normalise)
    for other, colour, marker in _looks(given.others):
        lengths |= _draw_other(axes, other, metric, normalise, colour, marker)
    _draw_bounds(axes, given, metric, normalise)
    if not normalise:
        _draw_fit(axes, given, metric)
        _mark_late(axes, given, metric)
    if not axes.containers:
        _say_nothing_measured(axes)
    style.length_axis(axes, sorted(lengths))
    if metric == "ttft_s":
        style.time_axis(axes, "GPU-time to first token" if normalise else "Time to first token (client)")
    else:
        rate_axis(axes, "Decode throughput (tokens/s per GPU)" if normalise else "Decode throughput (tokens/s)")
    foot = 0.08 if _mark_empty(axes, given, metric) else 0.0
    if metric == "ttft_s":
        _legend(axes, loc="upper left")
    else:
        _legend(axes, loc="lower left", bbox_to_anchor=(0, foot))
    style.mark_synthetic(axes, given.labels(*LOOK))
    return figure


def _draw_mode(
    axes: Axes, given: FigureInput, rows: Sequence[Row], mode: str, metric: str, normalise: bool
) -> set[int]:
    points = [(row["length"], _described(row, metric)) for row in rows]
    if normalise:
        points = [(length, per_gpu(described, metric, given.gpu_count)) for length, described in points]
    _errorbars(axes, points, LOOK[mode], zorder=3)
    return {row["length"] for row in rows}


def _errorbars(axes: Axes, points: Sequence[tuple[int, Description]], look: Look, zorder: float) -> None:
    known = [(x, d.mean, d.std or 0.0) for x, d in points if d.mean is not None and d.mean > 0]
    if known:
        x, y, std = zip(*known, strict=True)
        # A log axis cannot show mean - std <= 0: the lower bar ends just above zero then.
        low = [min(s, 0.999 * mean) for mean, s in zip(y, std, strict=True)]
        axes.errorbar(x, y, yerr=[low, std], label=look.label, elinewidth=1.1, zorder=zorder, **look.options)


def _draw_bounds(axes: Axes, given: FigureInput, metric: str, normalise: bool) -> None:
    """Draw the hardware's limits, dashed: the least TTFT, or the most decode throughput; ours and the others'."""
    ours = _bounds(limits.of_summary(given.summary), metric, given.gpu_count, normalise)
    label = "least time the hardware allows" if metric == "ttft_s" else "most the memory bandwidth allows"
    _draw_bound(axes, ours, label, style.MUTED)
    for other, colour, _ in _looks(given.others):
        theirs = _bounds(other.limits, metric, other.gpu_count, normalise)
        apart = [abs(theirs[n] / ours[n] - 1) for n in theirs.keys() & ours.keys()]
        if not apart or max(apart) >= SAME_LIMIT:
            _draw_bound(axes, theirs, f"limit of {other.name}", colour)


def _bounds(known: Mapping[int, Limit], metric: str, gpus: int | None, normalise: bool) -> dict[int, float]:
    """Return one metric's limits by ascending prompt length; per GPU none where the number of GPUs is unknown."""
    found = {n: Description(1, getattr(known[n], metric)) for n in sorted(known)}
    if normalise:
        found = {n: per_gpu(described, metric, gpus) for n, described in found.items()}
    return {n: described.mean for n, described in found.items() if described.mean}


def _draw_bound(axes: Axes, bounds: Mapping[int, float], label: str, colour: str) -> None:
    if bounds:
        x, y = list(bounds), list(bounds.values())
        # A line through one point shows nothing.
        marker = "_" if len(x) == 1 else ""
        axes.plot(x, y, ls=(0, (5, 3)), lw=1.2, marker=marker, markersize=16, color=colour, label=label, zorder=2)


def _draw_other(axes: Axes, other: Curve, metric: str, normalise: bool, colour: str, marker: str) -> set[int]:
    """Overlay another run's cold prompts and, for decode, its filled caches; hollow markers, under our own."""
    drawn: set[int] = set()
    for mode, note in (("prefill", ""), ("decode_only", " (KV filled)")):
        points = []
        for length, point in sorted(other.of_mode(mode).items()):
            described: Description = getattr(point, metric)
            points.append((length, per_gpu(described, metric, other.gpu_count) if normalise else described))
        size = 7.0 if mode == "prefill" else 10.0
        look = Look(other.name + note + _unreal(other), colour, marker, size, hollow=True)
        _errorbars(axes, points, look, zorder=2.5)
        drawn |= {length for length, described in points if described.mean}
    return drawn


def _draw_fit(axes: Axes, given: FigureInput, metric: str) -> None:
    """Draw the fitted curve, dotted: the power law of TTFT, or decode from its linear time per token."""
    names = ("ttft_power_long", "ttft_power") if metric == "ttft_s" else ("decode_line",)
    fits = [fit for name in names for fit in given.fits if fit["name"] == name]
    if not fits:
        return
    fit = max(fits, key=lambda fit: fit["length_max"]) if metric != "ttft_s" else fits[0]
    x = [fit["length_min"] * (fit["length_max"] / fit["length_min"]) ** (i / 60) for i in range(-6, 67)]
    if metric == "ttft_s":
        y = [fit["coefficient"] * length ** fit["exponent"] for length in x]
        label = f"fit L^{fit['exponent']:.2f} over {_span(fit)} (R² {fit['r2']:.4f})"
    else:
        x = [length for length in x if fit["intercept_s"] + fit["slope_s"] * length > 0]
        y = [1 / (fit["intercept_s"] + fit["slope_s"] * length) for length in x]
        label = f"fit {fit['intercept_s'] * 1e3:.3g} ms + {fit['slope_s'] * 1e9:.3g} ns × L a token"
        label += f" (R² {fit['r2']:.4f})"
    axes.plot(x, y, linestyle=":", linewidth=1.3, color=style.INK, label=label, zorder=4, scaley=False)


def _span(fit: Row) -> str:
    return f"{format_length(fit['length_min'])}–{format_length(fit['length_max'])}"


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
    ours = [LOOK[mode].label for mode in ("prefill", "reuse", "decode_only")]
    entries = [(handle[0] if isinstance(handle, ErrorbarContainer) else handle, label, isinstance(handle, Line2D))
               for handle, label in zip(handles, labels, strict=True)]  # fmt: skip
    entries.sort(key=lambda entry: (entry[2], ours.index(entry[1]) if entry[1] in ours else len(ours)))
    axes.legend([entry[0] for entry in entries], [entry[1] for entry in entries], **options)


def _mark_empty(axes: Axes, given: FigureInput, metric: str) -> bool:
    """Mark at the foot of the plot, with room for it, the rungs without a value of `metric` in any mode that could
    give one; return whether there are any."""
    rows: dict[int, list[Row]] = {}
    for row in given.summary:
        if metric != "ttft_s" or row["mode"] == "prefill":
            rows.setdefault(row["length"], []).append(row)
    empty = {x: group for x, group in rows.items() if all(row[f"{metric}_mean"] is None for row in group)}
    states: dict[str, list[int]] = {}
    for length, group in empty.items():
        states.setdefault(_emptiness(group, metric), []).append(length)
    for state, marker, colour in EMPTY:
        if x := states.get(state):
            axes.plot(
                x, [0.035] * len(x), transform=axes.get_xaxis_transform(), linestyle="", marker=marker, markersize=7,
                color=colour, markerfacecolor="none", markeredgewidth=1.8, label=state, clip_on=False, zorder=4,
            )  # fmt: skip
    if empty:
        low, high = axes.get_ylim()
        axes.set_ylim(low / (high / low) ** 0.08, high)
    return bool(empty)


def _emptiness(rows: Sequence[Row], metric: str) -> str:
    """Say why a rung has no value: one of EMPTY's states."""
    if any(row["n_failed"] or row["n_doubtful"] for row in rows):
        return "failed or doubtful"
    marks = {mark for row in rows for mark in row.get("reasons") or ()}
    if metric == "decode_tok_s" and "compiled" in marks:
        return "a kernel compiled meanwhile"
    return "continued after a crash" if "resumed" in marks else "not measured"


def _mark_late(axes: Axes, given: FigureInput, metric: str) -> None:
    """Ring the rungs whose TTFT is late by a share that counts: the client itself was kept waiting."""
    rows = [row for mode in LOOK for row in given.of_mode(mode) if "client_starved" in (row.get("reasons") or ())]
    late = [(row["length"], row["ttft_s_mean"]) for row in rows if row["ttft_s_mean"]] if metric == "ttft_s" else []
    if late:
        axes.plot(
            *zip(*late, strict=True), linestyle="", marker="o", markersize=12, markerfacecolor="none",
            markeredgecolor=style.VERMILLION, markeredgewidth=1.4, label="late: the client waited for a processor",
            zorder=5,
        )  # fmt: skip


def _say_nothing_measured(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=style.MUTED, fontsize=12,
              bbox={"boxstyle": "square,pad=0.2", "fc": style.PAPER, "ec": "none"})  # fmt: skip


def limits_figure(given: FigureInput) -> Figure | None:
    """Draw the share of the hardware's limit that was reached: MFU of prefill, bandwidth of decode; None without."""
    ours = list(_our_shares(given))
    if not ours:
        return None
    # The legend is read from the last drawn: ours, then the others.
    drawn = [*(pair for other in reversed(_looks(given.others)) for pair in _shares(*other)), *ours]
    crowded = len(drawn) > MOST_INSIDE
    height = style.HEIGHT_IN + (0.21 * len(drawn) if crowded else 0)
    figure, axes = style.new("Distance to the hardware's limit", given.subtitle, height=height)
    for look, shares in drawn:
        axes.plot(list(shares), list(shares.values()), label=look.label, **look.options)
    axes.axhline(1.0, linestyle=(0, (5, 3)), linewidth=1.2, color=style.MUTED)
    style.length_axis(axes, sorted({length for _, shares in drawn for length in shares}))
    axes.set_ylim(0, 1.06 * max(1.0, *(max(shares.values()) for _, shares in drawn)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("Share of the limit")
    if crowded:
        figure.legend(loc="outside lower left", reverse=True)
    else:  # opaque: it may lie over the line at 100 %
        axes.legend(loc="best", reverse=True, frameon=True, framealpha=0.9, edgecolor="none", facecolor=style.PAPER)
    style.mark_synthetic(axes, given.labels(*LOOK))
    return figure


def _our_shares(given: FigureInput) -> Iterator[tuple[Look, dict[int, float]]]:
    """Yield the shares of the limits that this run reached, by prompt length."""
    for look, mode, field in (
        (Look("decode, KV cache filled", style.VERMILLION, "s", 9.5, hollow=True), "decode_only", "decode_over_bound"),
        (Look("decode: measured / bandwidth bound", style.ORANGE, "^"), "prefill", "decode_over_bound"),
        (Look("prefill: bound / measured TTFT (MFU)", style.BLUE, "o"), "prefill", "ttft_over_bound"),
    ):
        found = {row["length"]: row[field] for row in given.of_mode(mode) if row.get(field)}
        if found:
            yield look, {n: 1 / value if field == "ttft_over_bound" else value for n, value in found.items()}


def _looks(others: Sequence[Curve]) -> list[tuple[Curve, str, str]]:
    """Give each other run its colour and marker."""
    return [(other, *look) for look, other in zip(OTHERS * len(others), others, strict=False)]


def _shares(other: Curve, colour: str, marker: str) -> Iterator[tuple[Look, dict[int, float]]]:
    """Yield the shares of its own limits that another run's cold prompts reached, by prompt length."""
    for metric, what, shape in (("decode_tok_s", "decode", marker), ("ttft_s", "prefill", "o")):
        shares = {}
        for length, point in sorted(other.of_mode("prefill").items()):
            mean, limit = getattr(point, metric).mean, getattr(other.limits.get(length), metric, None)
            if mean and limit:
                shares[length] = mean / limit if metric == "decode_tok_s" else limit / mean
        if shares:
            yield Look(f"{other.name}: {what}{_unreal(other)}", colour, shape, hollow=True), shares


def _unreal(other: Curve) -> str:
    return f" ({style.RANDOM_WEIGHTS})" if other.synthetic_weights else ""


def amortisations(given: FigureInput) -> Iterator[tuple[int, float, float]]:
    """Yield length, seconds of a cold and of a hot query with its answer, where both were measured (cost.cold_row)."""
    cold = {row["length"]: row for row in given.of_mode("prefill")}
    for row in given.of_mode("reuse"):
        cold_s, hot_s = cost.query_s(cost.cold_row(row, cold.get(row["length"]))), cost.query_s(row)
        if cold_s is not None and hot_s is not None:
            yield row["length"], cold_s, hot_s


def amortisation_figure(given: FigureInput, most: int = 4) -> Figure | None:
    """Draw time per query against the number of queries on one prompt, prefix resident or prefilled anew."""
    points = list(amortisations(given))[-most:]
    if not points:
        return None
    figure, axes = style.new("What a resident prefix buys", given.subtitle)
    counts = [2**i for i in range(11)]
    for (length, cold_s, hot_s), colour, marker in zip(points, style.CYCLE, style.MARKERS, strict=False):
        resident = [row.resident_per_query_s for row in cost.amortise(length, cold_s, hot_s, counts)]
        label = f"{format_length(length)} ({cold_s / hot_s:.0f}× less per further query)"
        axes.plot(counts, resident, color=colour, marker=marker, label=label, markersize=5)
        axes.plot(counts, [cold_s] * len(counts), color=colour, linestyle=(0, (5, 3)), linewidth=1.2)
    axes.plot([], [], color=style.MUTED, linestyle=(0, (5, 3)), linewidth=1.2, label="prefilled for each query")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xlabel("Queries on the same prompt")
    style.time_axis(axes, "Time per query, answer included")
    if given.price:
        _price_axis(axes, given.price)
    axes.set_ylim(bottom=axes.get_ylim()[0] / 3)
    axes.legend(loc="lower left", title="prefix resident", alignment="left")
    style.mark_synthetic(axes, given.labels("prefill", "reuse"))
    return figure


def _price_axis(axes: Axes, price: Price) -> None:
    """Add the same scale in dollars on the right."""
    usd_per_s = price.usd(1.0) or 1.0

    def scale(factor: float) -> Callable[[Any], Any]:
        return lambda values: values * factor

    right = axes.secondary_yaxis("right", functions=(scale(usd_per_s), scale(1 / usd_per_s)))
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rf"\${value:.4g}"))
    right.set_ylabel(rf"Price per query at \${price.usd_per_gpu_hour:g} per GPU-hour × {price.gpu_count} GPU")


def _described(row: Row, metric: str) -> Description:
    return scaled(Description(row[f"{metric}_n"] or 0, row[f"{metric}_mean"], row[f"{metric}_std"]), 1.0)
