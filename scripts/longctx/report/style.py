"""One look for every figure: fonts, lines, axes of Ki/Mi lengths and human times.

Figures are drawn inside `with style.theme():`, so that nothing global changes, and saved by `save` as PNG and SVG
whose bytes depend only on the data.
"""

import io
import math
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from longctx.lengths import format_length
from longctx.report.palette import CYCLE, GRID, INK, MUTED, PAPER, VERMILLION
from longctx.results.campaign_results import RANDOM_WEIGHTS
from longctx.storage.atomic import write_atomic

HEIGHT_IN = 4.6
MOST_LENGTHS = 9

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "xtick.color": MUTED,
    "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.7, "axes.axisbelow": True,
    "lines.linewidth": 1.7, "lines.markersize": 6.0, "errorbar.capsize": 2.5, "legend.frameon": False,
    "legend.fontsize": 8.5, "axes.prop_cycle": cycler(color=CYCLE),
    "figure.constrained_layout.h_pad": 0.09, "svg.hashsalt": "longctx", "svg.fonttype": "path", "path.simplify": False,
}  # fmt: skip
_TIME_TICKS = {
    1e-5: "10 µs", 1e-4: "100 µs", 1e-3: "1 ms", 0.01: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s", 60: "1 min",
    600: "10 min", 3600: "1 h", 36000: "10 h", 360_000: "100 h", 3_600_000: "1000 h",
}  # fmt: skip
_MORE_TIME_TICKS = {
    2e-3: "2 ms", 5e-3: "5 ms", 0.02: "20 ms", 0.05: "50 ms", 0.2: "0.2 s", 0.5: "0.5 s", 2: "2 s", 5: "5 s",
    20: "20 s", 120: "2 min", 300: "5 min", 1800: "30 min", 7200: "2 h", 18000: "5 h", 72000: "20 h",
}  # fmt: skip


def theme() -> AbstractContextManager[None]:
    """Return the context in which figures are made, drawn and saved; matplotlib's own defaults stay as they were."""
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, "backend": "agg", **_RC}
    return mpl.rc_context(settings)


def new(title: str, subtitle: str, height: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """Return a figure of `height` inches with one axes, a bold title and a grey line under it."""
    figure = Figure(figsize=(7.4, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=22 if subtitle else 8)
    if subtitle:
        place: Any = {"xycoords": "axes fraction", "textcoords": "offset points"}
        # A model may be named like a formula.
        axes.annotate(subtitle, (0, 1), (0, 7), color=MUTED, fontsize=9, parse_math=False, **place)
    return figure, axes


def paper_box(pad: float, **options: Any) -> dict[str, Any]:
    """Return the box that keeps a text readable over lines."""
    return {"boxstyle": f"square,pad={pad}", "fc": PAPER, "ec": "none", **options}


def mark_synthetic(axes: Axes, labels: Collection[str]) -> None:
    """Box random weights in the figure's corner where they are among the labels; legends name filled caches."""
    if RANDOM_WEIGHTS in labels:
        place: Any = {"xycoords": "figure fraction", "textcoords": "offset points", "ha": "right", "va": "top"}
        box = {"boxstyle": "round,pad=0.35", "fc": "none", "ec": VERMILLION, "lw": 1.2}
        note = axes.annotate(RANDOM_WEIGHTS, (1, 1), (-9, -10), fontsize=8.5, color=INK, bbox=box, **place)
        note.set_in_layout(False)


def write_in_the_middle(axes: Axes, text: str) -> None:
    look: Any = {"ha": "center", "color": MUTED, "fontsize": 12, "bbox": paper_box(0.2)}
    axes.text(0.5, 0.5, text, transform=axes.transAxes, **look)


def empty_figure(title: str, subtitle: str, text: str) -> Figure:
    """Return a figure that says why it shows nothing."""
    figure, axes = new(title, subtitle)
    axes.set_axis_off()
    write_in_the_middle(axes, text)
    return figure


def length_axis(axes: Axes, lengths: Collection[int], label: str = "Prompt length (tokens)") -> None:
    """Make x a log2 axis over `lengths` (tokens) with at most MOST_LENGTHS Ki/Mi labels at powers of two."""
    axes.set_xscale("log", base=2)
    low, high = min(lengths, default=1024), max(lengths, default=1024)
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    powers = range(first, last + 1)
    step = math.ceil(len(powers) / MOST_LENGTHS)
    axes.xaxis.set_major_locator(FixedLocator([2**p for p in powers if (last - p) % step == 0]))
    axes.xaxis.set_minor_locator(FixedLocator([2**p for p in powers]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_length(round(value))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low / 2**0.6, high * 2**0.6)
    axes.set_xlabel(label)


def widen(axes: Axes, factor: float) -> None:
    """Make a log y axis span `factor` at least, so that a single value has labelled ticks around it."""
    low, high = axes.get_ylim()
    if low > 0 and high < factor * low:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / math.sqrt(factor), middle * math.sqrt(factor))


def time_axis(axes: Axes, label: str) -> None:
    """Make y a log axis of seconds whose ticks read 10 ms, 1 s, 1 min, 1 h; call it after plotting."""
    axes.set_yscale("log")
    widen(axes, 12)
    low, high = axes.get_ylim()
    ticks = _TIME_TICKS if high > 2000 * low else _TIME_TICKS | _MORE_TIME_TICKS
    axes.yaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: ticks.get(value, "")))
    axes.set_ylabel(label)


def save(figure: Figure, stem: Path | str) -> list[Path]:
    """Write `stem`.png (200 dpi) and `stem`.svg atomically and return both paths; equal data gives equal bytes."""
    stem, written = Path(stem), []
    png: dict[str, Any] = {"dpi": 200, "metadata": {"Software": None}}
    svg: dict[str, Any] = {"metadata": {"Date": None, "Creator": None}}
    for suffix, options in ((".png", png), (".svg", svg)):
        buffer, path = io.BytesIO(), stem.with_name(stem.name + suffix)
        with mpl.rc_context({"svg.hashsalt": f"longctx-{stem.name}"}):
            figure.savefig(buffer, format=suffix[1:], **options)
        write_atomic(path, buffer.getvalue())
        written.append(path)
    return written
