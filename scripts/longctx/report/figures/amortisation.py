"""Figure: what one query costs as the number of queries behind a prefix grows."""

from collections.abc import Callable, Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from longctx.lengths import format_length
from longctx.report import style
from longctx.report.figures.look import FigureInput
from longctx.results import cost
from longctx.results.cost import Price


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
