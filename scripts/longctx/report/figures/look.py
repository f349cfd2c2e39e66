"""What all figures share: their input, colours, markers and marks for missing points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from longctx.report import style
from longctx.results.cost import Price
from longctx.results.curves import RunCurve

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
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": self.size,
            "markerfacecolor": face,
            "markeredgecolor": self.colour,
            "markeredgewidth": 1.4,
            "linewidth": 1.2,
        }


LOOK = {
    "decode_only": Look("KV cache filled, no prefill", style.VERMILLION, "s", 9.5, hollow=True),
    "reuse": Look("behind a resident prefix", style.GREEN, "D", 7.0),
    "prefill": Look("cold prompt", style.BLUE, "o", 5.0),
}
OTHERS = ((style.PURPLE, "^"), (style.ORANGE, "v"), (style.SKY, "P"), (style.MUTED, "X"))
# A rung without a value: why, and how it is marked.
EMPTY = (
    ("failed or doubtful", "x", style.VERMILLION),
    ("continued after a crash", "d", style.MUTED),
    ("a kernel compiled meanwhile", "s", style.MUTED),
    ("not measured", "o", style.MUTED),
)


@dataclass(frozen=True, slots=True)
class FigureInput:
    """What the figures show: tables.SUMMARY and tables.FITS rows, curves to overlay, and a line under each title."""

    summary: Sequence[Row]
    fits: Sequence[Row] = ()
    others: Sequence[RunCurve] = ()
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


def mark_empty(axes: Axes, given: FigureInput, metric: str) -> bool:
    """Mark at the foot of the plot, with room for it, the rungs without a value of `metric` in any mode that could
    give one; return whether there are any."""
    rows: dict[int, list[Row]] = {}
    for row in given.summary:
        if metric != "ttft_s" or row["mode"] == "prefill":
            rows.setdefault(row["length"], []).append(row)
    empty = {x: group for x, group in rows.items() if all(row[f"{metric}_mean"] is None for row in group)}
    states: dict[str, list[int]] = {}
    for length, group in empty.items():
        states.setdefault(emptiness(group, metric), []).append(length)
    for state, marker, colour in EMPTY:
        if x := states.get(state):
            axes.plot(
                x,
                [0.035] * len(x),
                transform=axes.get_xaxis_transform(),
                linestyle="",
                marker=marker,
                markersize=7,
                color=colour,
                markerfacecolor="none",
                markeredgewidth=1.8,
                label=state,
                clip_on=False,
                zorder=4,
            )
    if empty:
        low, high = axes.get_ylim()
        axes.set_ylim(low / (high / low) ** 0.08, high)
    return bool(empty)


def say_nothing_measured(axes: Axes) -> None:
    axes.text(
        0.5,
        0.5,
        "nothing measured",
        transform=axes.transAxes,
        ha="center",
        color=style.MUTED,
        fontsize=12,
        bbox={"boxstyle": "square,pad=0.2", "fc": style.PAPER, "ec": "none"},
    )


def looks(others: Sequence[RunCurve]) -> list[tuple[RunCurve, str, str]]:
    """Give each other run its colour and marker."""
    return [(other, *look) for look, other in zip(OTHERS * len(others), others, strict=False)]


def unreal(other: RunCurve) -> str:
    return f" ({style.RANDOM_WEIGHTS})" if other.synthetic_weights else ""


def emptiness(rows: Sequence[Row], metric: str) -> str:
    """Say why a rung has no value: one of EMPTY's states."""
    if any(row["n_failed"] or row["n_doubtful"] for row in rows):
        return "failed or doubtful"
    marks = {mark for row in rows for mark in row.get("reasons") or ()}
    if metric == "decode_tok_s" and "compiled" in marks:
        return "a kernel compiled meanwhile"
    return "continued after a crash" if "resumed" in marks else "not measured"
