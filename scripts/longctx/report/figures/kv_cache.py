"""Figure 1: the KV cache against the context length, beside the parameters and the memory there is."""

from bisect import bisect_left
from collections.abc import Sequence
from math import floor, inf, log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from longctx.model.geometry import Geometry
from longctx.plan.fit import Settings, split_memory
from longctx.plan.hardware import Hardware, Parallelism
from longctx.plan.memory import kv_bytes_per_rank
from longctx.report import palette, style
from longctx.results.campaign_results import RANDOM_WEIGHTS
from longctx.units import length_name, size_name

CURVES = (("bfloat16", "BF16", palette.VERMILLION), ("fp8", "FP8", palette.BLUE))


def crossing_tokens(geometry: Geometry, size_bytes: float, kv_dtype: str, longest: int = 2**40) -> int | None:
    """Return the first context length whose KV cache reaches `size_bytes`, None if it never does."""
    if geometry.kv_bytes(longest, kv_dtype) < size_bytes:
        return None
    return 1 + bisect_left(range(1, longest + 1), size_bytes, key=lambda tokens: geometry.kv_bytes(tokens, kv_dtype))


def draw(
    geometry: Geometry,
    hardware: Hardware | None,
    parallelism: Parallelism,
    settings: Settings,
    lengths: Sequence[int],
    stem: Path | str,
    *,
    synthetic_weights: bool = False,
) -> list[Path]:
    """Write the figure as `stem`.png and `stem`.svg. The cache is that of one whole sequence.

    The memory lines are what all shards of one copy have together: one GPU where the cache is replicated.
    """
    system = f"{hardware.count} × {hardware.name}, {parallelism.label}" if hardware else "CPU"
    lines = _lines(geometry, hardware, parallelism, settings, max(lengths))
    sizes = [line.size for line in lines]
    ladder = _ladder(geometry, lengths, min(sizes))
    title = "KV cache of one sequence against context length"
    with style.theme():
        figure, axes = style.new(title, f"{geometry.name} · {system}", height=5.0)
        for kv_dtype, label, color in CURVES:
            kv_bytes = [geometry.kv_bytes(n, kv_dtype) for n in ladder]
            axes.plot(ladder, kv_bytes, color=color, label=f"KV cache, {label}", zorder=3)
        above = inf
        for line in sorted(lines, key=lambda line: -line.size):
            axes.axhline(line.size, color=line.colour, linestyle=line.dashes, linewidth=1.3, zorder=2)
            _line_label(axes, geometry, ladder, line, under=above < 1.6 * line.size)
            above = line.size
        _scale(axes, ladder, sizes, geometry)
        _operating_point(figure, axes, geometry, settings, max(lengths), max(sizes))
        if synthetic_weights:
            style.mark_synthetic(axes, [RANDOM_WEIGHTS])
        axes.legend(loc="lower right" if geometry.kv_bytes_per_token("fp8") else "center right")
        return style.save(figure, stem)


class _Line(NamedTuple):
    """A horizontal line: label, bytes, colour and line style."""

    label: str
    size: float
    colour: str
    dashes: str


def _ladder(geometry: Geometry, lengths: Sequence[int], smallest_line: float) -> list[int]:
    """Return 120 lengths from where the cache begins to matter to one doubling beyond the longest."""
    matters = crossing_tokens(geometry, smallest_line / 30, "bfloat16") or min(lengths)
    low = max(log2(min(lengths)), min(floor(log2(matters)), log2(max(lengths)) - 3))
    return [round(2**x) for x in np.linspace(low, log2(max(lengths)) + 1, 120)]


def _lines(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings, longest: int
) -> list[_Line]:
    """Return the lines of the parameters and of the memory that all shards of one copy have together."""
    lines = [
        _Line("active parameters", geometry.active_weight_bytes, palette.GREEN, ":"),
        _Line("all parameters", float(geometry.weight_bytes), palette.GREEN, "-"),
    ]
    if geometry.active_weight_bytes > geometry.weight_bytes / 2:
        lines = lines[1:]
    memory = split_memory(geometry, hardware, parallelism, settings)
    whole = geometry.kv_bytes(longest, settings.kv_dtype)
    rank = kv_bytes_per_rank(geometry, parallelism, longest, settings.kv_dtype)
    shards = max(1, round(whole / rank)) if rank else 1
    if hardware is not None:
        label = f"HBM of {shards} GPU{'s' if shards > 1 else ''}"
        lines.append(_Line(label, float(shards * hardware.hbm_bytes), palette.INK, "-"))
    if memory is not None and memory.kv > 0:
        lines.append(_Line("left for KV cache", float(shards * memory.kv), palette.MUTED, "--"))
    return lines


def _line_label(axes: Axes, geometry: Geometry, ladder: Sequence[int], line: _Line, *, under: bool) -> None:
    """Name a horizontal line and mark where the curves cross it."""
    crossings, first = [], inf
    for kv_dtype, name, color in CURVES:
        tokens = crossing_tokens(geometry, line.size, kv_dtype)
        if tokens is not None and ladder[0] <= tokens <= ladder[-1]:
            axes.plot([tokens], [line.size], "o", color=palette.PAPER, markeredgecolor=color, markersize=6, zorder=4)
            crossings.append(f"{name} at {length_name(tokens)}")
            first = min(first, tokens)
    # Where the curves cross early, the room for text is to their right and under the line.
    early = first < ladder[0] ** 0.4 * ladder[-1] ** 0.6
    x, below = (ladder[-1], True) if early else (ladder[0], under)
    text = f"{line.label}, {size_name(line.size)}"
    if crossings:
        text += ("\n" if early else " — ") + f"reached by {', '.join(crossings)}"
    place: Any = {"va": "top" if below else "bottom", "ha": "right" if early else "left", "zorder": 2.5}
    look: Any = {"fontsize": 8, "color": palette.INK, "bbox": style.paper_box(0.1, alpha=0.8)}
    axes.annotate(text, (x, line.size), (2, -4 if below else 3), textcoords="offset points", **place, **look)


def _operating_point(
    figure: Figure, axes: Axes, geometry: Geometry, settings: Settings, longest: int, highest_line: float
) -> None:
    """Mark the longest length, and name it where no line's name stands."""
    size = geometry.kv_bytes(longest, settings.kv_dtype)
    if not size:
        return
    axes.plot([longest], [size], "*", color=palette.INK, markersize=13, zorder=5)
    upwards, named = highest_line > 30 * size, list(axes.texts)
    text = f"operating point: {length_name(longest)}\n{size_name(size)} in {settings.kv_dtype}"
    arrow = {"arrowstyle": "-", "color": palette.INK, "lw": 0.8, "relpos": (0.75, 0 if upwards else 1)}
    look: Any = {"fontsize": 8.5, "fontweight": "bold", "bbox": style.paper_box(0.15, alpha=0.9), "arrowprops": arrow}
    place: Any = {"textcoords": "offset points", "ha": "right", "va": "bottom" if upwards else "top", "zorder": 5}
    note = axes.annotate(text, (longest, size), (0, 0), **place, **look)
    for distance in (56, 88, 120) if upwards else (-44, -80, -116):
        note.xyann = (34, distance)
        figure.draw_without_rendering()
        if not any(overlap(note, other) for other in named):
            break


def overlap(one: Text, other: Text) -> bool:
    """Whether two texts of a drawn figure cover each other, their arrows left out."""
    return bool(Text.get_window_extent(one).overlaps(Text.get_window_extent(other)))


def _scale(axes: Axes, ladder: Sequence[int], sizes: Sequence[float], geometry: Geometry) -> None:
    style.length_axis(axes, ladder, "Context length (tokens)")
    axes.set_yscale("log", base=2)
    low = min(size for size in (geometry.kv_bytes(ladder[0], "fp8"), *sizes) if size) / 1.6  # pure Mamba has no cache
    high = max(geometry.kv_bytes(ladder[-1], "bfloat16"), *sizes) * 2.2
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([2.0**p for p in range(0, 80, 2 if high / low < 2**14 else 4)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size_name(value)))
    axes.set_ylabel("Memory")
