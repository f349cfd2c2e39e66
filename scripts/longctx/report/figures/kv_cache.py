"""Figure 1: the KV cache against the context length, with lines for the parameters and the memory of the GPUs."""

from bisect import bisect_left
from collections.abc import Sequence
from math import floor, inf, log2
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from longctx.model.geometry import Geometry
from longctx.plan.system import System
from longctx.report import palette, style
from longctx.results.campaign_results import RANDOM_WEIGHTS
from longctx.units import human_bytes, human_length

CURVES = (("bfloat16", "BF16", palette.VERMILLION), ("fp8", "FP8", palette.BLUE))


def crossing_tokens(geometry: Geometry, size_bytes: float, kv_dtype: str, longest: int = 2**40) -> int | None:
    """Return the first context length whose KV cache reaches `size_bytes`, None if it never does."""
    tokens = bisect_left(range(longest + 1), size_bytes, lo=1, key=lambda n: geometry.kv_bytes(n, kv_dtype))
    return tokens if tokens <= longest else None


def draw(system: System, lengths: Sequence[int], stem: Path | str, *, synthetic_weights: bool = False) -> list[Path]:
    """Write the figure as `stem`.png and `stem`.svg and return both paths. The cache is that of one whole sequence.

    The memory lines are what all shards of one copy have together: one GPU where the cache is replicated.
    """
    geometry, hardware, lines = system.geometry, system.hardware, _lines(system, max(lengths))
    where = f"{hardware.count} × {hardware.name}, {system.parallelism.label}" if hardware else "CPU"
    sizes = [size for _, size, _, _ in lines]
    # 120 lengths from where the cache begins to matter to one doubling beyond the longest.
    matters = crossing_tokens(geometry, min(sizes) / 30, "bfloat16") or min(lengths)
    low = max(log2(min(lengths)), min(floor(log2(matters)), log2(max(lengths)) - 3))
    ladder = [round(2**x) for x in np.linspace(low, log2(max(lengths)) + 1, 120)]
    with style.theme():
        title = "KV cache of one sequence against context length"
        figure, axes = style.new(title, f"{geometry.name} · {where}", height=5.0)
        for kv_dtype, label, color in CURVES:
            kv_bytes = [geometry.kv_bytes(n, kv_dtype) for n in ladder]
            axes.plot(ladder, kv_bytes, color=color, label=f"KV cache, {label}", zorder=3)
        above = inf
        for label, size, color, dashes in sorted(lines, key=lambda line: -line[1]):
            axes.axhline(size, color=color, linestyle=dashes, linewidth=1.3, zorder=2)
            _line_label(axes, geometry, ladder, label, size, under=above < 1.6 * size)
            above = size
        _scale(axes, ladder, sizes, geometry)
        _operating_point(figure, axes, system, max(lengths), max(sizes))
        style.mark_synthetic(axes, [RANDOM_WEIGHTS] if synthetic_weights else [])
        axes.legend(loc="lower right" if geometry.kv_bytes_per_token("fp8") else "center right")
        return style.save(figure, stem)


def _lines(system: System, longest: int) -> list[tuple[str, float, str, str]]:
    """Return (label, bytes, colour, line style) of the horizontal lines."""
    geometry, hardware, memory = system.geometry, system.hardware, system.memory()
    lines = [("all parameters", float(geometry.weight_bytes), palette.GREEN, "-")]
    if geometry.active_weight_bytes <= geometry.weight_bytes / 2:
        lines.insert(0, ("active parameters", geometry.active_weight_bytes, palette.GREEN, ":"))
    rank = system.kv_bytes_per_rank(longest)
    shards = max(1, round(geometry.kv_bytes(longest, system.settings.kv_dtype) / rank)) if rank else 1
    if hardware is not None:
        label = f"HBM of {shards} GPU{'s' if shards > 1 else ''}"
        lines.append((label, float(shards * hardware.hbm_bytes), palette.INK, "-"))
    if memory is not None and memory.kv > 0:
        lines.append(("left for KV cache", float(shards * memory.kv), palette.MUTED, "--"))
    return lines


def _line_label(axes: Axes, geometry: Geometry, ladder: Sequence[int], label: str, size: float, *, under: bool) -> None:
    """Name a horizontal line and mark where the curves cross it."""
    crossings: dict[str, int] = {}
    for kv_dtype, name, color in CURVES:
        tokens = crossing_tokens(geometry, size, kv_dtype)
        if tokens is not None and ladder[0] <= tokens <= ladder[-1]:
            axes.plot([tokens], [size], "o", color=palette.PAPER, markeredgecolor=color, markersize=6, zorder=4)
            crossings[f"{name} at {human_length(tokens)}"] = tokens
    # Where the curves cross early, the room for text is to their right and under the line.
    early = min(crossings.values(), default=inf) < ladder[0] ** 0.4 * ladder[-1] ** 0.6
    x, below = (ladder[-1], True) if early else (ladder[0], under)
    reached = ("\n" if early else " — ") + f"reached by {', '.join(crossings)}" if crossings else ""
    look: Any = {"fontsize": 8, "color": palette.INK, "zorder": 2.5, "bbox": style.paper_box(0.1, alpha=0.8)}
    place: Any = {"va": "top" if below else "bottom", "ha": "right" if early else "left"}
    text, offset = f"{label}, {human_bytes(size)}{reached}", (2, -4 if below else 3)
    axes.annotate(text, (x, size), offset, textcoords="offset points", **look, **place)


def _operating_point(figure: Figure, axes: Axes, system: System, longest: int, highest_line: float) -> None:
    """Mark the longest length, and label it where it covers no line's name."""
    kv_dtype = system.settings.kv_dtype
    size = system.geometry.kv_bytes(longest, kv_dtype)
    if not size:
        return
    axes.plot([longest], [size], "*", color=palette.INK, markersize=13, zorder=5)
    upwards, named = highest_line > 30 * size, list(axes.texts)
    text = f"operating point: {human_length(longest)}\n{human_bytes(size)} in {kv_dtype}"
    arrow = {"arrowstyle": "-", "color": palette.INK, "lw": 0.8, "relpos": (0.75, 0 if upwards else 1)}
    box = style.paper_box(0.15, alpha=0.9)
    look: dict[str, Any] = {"fontsize": 8.5, "fontweight": "bold", "zorder": 5, "arrowprops": arrow, "bbox": box}
    place: dict[str, Any] = {"ha": "right", "va": "bottom" if upwards else "top"}
    note = axes.annotate(text, (longest, size), (0, 0), textcoords="offset points", **look, **place)
    for distance in (56, 88, 120) if upwards else (-44, -80, -116):
        note.xyann = (34, distance)
        figure.draw_without_rendering()
        if not any(overlap(note, other) for other in named):
            break


def overlap(first: Text, second: Text) -> bool:
    """Return whether two texts of a drawn figure cover each other, without their arrows."""
    return bool(Text.get_window_extent(first).overlaps(Text.get_window_extent(second)))


def _scale(axes: Axes, ladder: Sequence[int], sizes: Sequence[float], geometry: Geometry) -> None:
    style.length_axis(axes, ladder, "Context length (tokens)")
    axes.set_yscale("log", base=2)
    low = min(size for size in (geometry.kv_bytes(ladder[0], "fp8"), *sizes) if size) / 1.6  # pure Mamba has no cache
    high = max(geometry.kv_bytes(ladder[-1], "bfloat16"), *sizes) * 2.2
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([2.0**p for p in range(0, 80, 2 if high / low < 2**14 else 4)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))
    axes.set_ylabel("Memory")
