"""What the figures share: the looks of other runs, marks for missing points, and the figure that shows nothing."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from longctx.campaign.mode import COLD_MODE
from longctx.report import palette, style
from longctx.report.cells import Row
from longctx.results.campaign_results import RANDOM_WEIGHTS, CampaignResults
from longctx.results.curves import RunCurve

OTHERS = ((palette.PURPLE, "^"), (palette.ORANGE, "v"), (palette.SKY, "P"), (palette.MUTED, "X"))
# A rung without a value: why, and how it is marked.
EMPTY = (
    ("failed or doubtful", "x", palette.VERMILLION),
    ("continued after a crash", "d", palette.MUTED),
    ("a kernel compiled meanwhile", "s", palette.MUTED),
    ("not measured", "o", palette.MUTED),
)


def looks(others: Sequence[RunCurve]) -> list[tuple[RunCurve, str, str]]:
    """Give each other run its colour and marker."""
    return [(other, *look) for look, other in zip(OTHERS * len(others), others, strict=False)]


def synthetic_note(other: RunCurve) -> str:
    """Return what follows the name of another run in a legend."""
    return f" ({RANDOM_WEIGHTS})" if other.synthetic_weights else ""


def mark_synthetic(axes: Axes, results: CampaignResults, *modes: str) -> None:
    """Mark random weights in any of these modes, all by default; filled caches are named in the legend."""
    style.mark_synthetic(axes, [label for label in results.synthetic_labels(*modes) if label == RANDOM_WEIGHTS])


def mark_empty(axes: Axes, summary: Sequence[Row], metric: str) -> bool:
    """Mark at the foot of the plot, with room for it, the rungs without a value of `metric` in any mode that could
    give one; return whether there are any."""
    rungs: dict[int, list[Row]] = defaultdict(list)
    for row in summary:
        if metric != "ttft_s" or row["mode"] == COLD_MODE:
            rungs[row["length"]].append(row)
    states: dict[str, list[int]] = defaultdict(list)
    for length, rows in rungs.items():
        if all(row[f"{metric}_mean"] is None for row in rows):
            states[emptiness(rows, metric)].append(length)
    for state, marker, colour in EMPTY:
        if x := states.get(state):
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
        return "failed or doubtful"
    marks = {mark for row in rows for mark in row.get("reasons") or ()}
    if metric == "decode_tok_s" and "compiled" in marks:
        return "a kernel compiled meanwhile"
    return "continued after a crash" if "resumed" in marks else "not measured"


def write_in_the_middle(axes: Axes, text: str) -> None:
    look: Any = {"ha": "center", "color": palette.MUTED, "fontsize": 12, "bbox": style.paper_box(0.2)}
    axes.text(0.5, 0.5, text, transform=axes.transAxes, **look)


def empty_figure(title: str, subtitle: str, text: str) -> Figure:
    """Return a figure that says why it shows nothing."""
    figure, axes = style.new(title, subtitle)
    axes.set_axis_off()
    write_in_the_middle(axes, text)
    return figure
