"""What a query costs as the number of queries on one prompt grows, as a table and as a figure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longctx import units
from longctx.campaign.mode import COLD_MODE
from longctx.lengths import format_length
from longctx.report import palette
from longctx.report.cells import Cell, Row, Table, count, percent, prompt_cell, tabulate
from longctx.results import cost
from longctx.results.campaign_results import CampaignResults
from longctx.results.cost import Price
from longctx.storage.schemas import ModeName

if TYPE_CHECKING:  # figures import matplotlib, the table does not
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "What a resident prefix buys"
NOTE = (
    "Queries include their answer. The cold one is of mode prefill, or where that was not measured at this length,"
    " the prefill that made the prefix resident. 'Pays from query': the prefix is prefilled ahead, without a"
    " question, and has paid for itself by that query. 'May idle': a node kept waiting between two queries for"
    " longer would have been cheaper to prefill again. '1Ki answer / prefill': time to decode 1024 tokens as a"
    " share of the cold TTFT."
)
MOST_LENGTHS = 4
DASHED: Any = {"linestyle": (0, (5, 3)), "linewidth": 1.2}


@dataclass(frozen=True, slots=True)
class QueryPair:
    """Summary rows of the hot and the cold query of one length, and the seconds of each with its answer."""

    hot: Row
    cold: Row
    hot_s: float
    cold_s: float

    def totals(self, *queries: int) -> list[cost.Amortisation]:
        """Return what so many queries on the prompt take."""
        return cost.amortise(self.hot["length"], self.cold_s, self.hot_s, queries)

    def total_cell(self, queries: int) -> Cell:
        (total,) = self.totals(queries)
        return _seconds(total.resident_total_s, f"{total.speedup:.1f}× less")

    def pays_from(self) -> Cell:
        """Return by which query a prefix that was prefilled ahead has paid for itself."""
        queries = cost.break_even(self.cold["ttft_s_mean"], self.cold_s, self.hot_s)
        return Cell(str(queries) if queries else "never", queries)

    def answer_share(self) -> Cell:
        return percent(cost.answer_share(self.cold["ttft_s_mean"], self.cold["decode_tok_s_mean"]), 2)


def _seconds(seconds: float, small: str = "") -> Cell:
    return Cell(units.human_seconds(max(seconds, 0)), seconds, small)


def hot_and_cold(results: CampaignResults) -> list[tuple[Row, Row]]:
    """Return the summary rows of hot queries, each with its cold side (cost.cold_row), shortest prompts first."""
    cold = {row["length"]: row for row in results.of_mode(COLD_MODE)}
    return [(hot, cost.cold_row(hot, cold.get(hot["length"]))) for hot in results.of_mode(ModeName.REUSE)]


def query_pairs(results: CampaignResults) -> list[QueryPair]:
    """Return the lengths at which a cold and a hot query were measured with their answers."""
    timed = [(hot, cold, cost.query_s(hot), cost.query_s(cold)) for hot, cold in hot_and_cold(results)]
    return [QueryPair(hot, cold, hot_s, cold_s) for hot, cold, hot_s, cold_s in timed if hot_s and cold_s]


def amortisation_table(results: CampaignResults) -> Table:
    """Return what 10 and 100 queries on one prompt take, and how long a node may idle between two."""
    columns: tuple[tuple[str, Callable[[QueryPair], Cell]], ...] = (
        ("Prompt", lambda pair: prompt_cell(pair.hot)),
        ("Cold query", lambda pair: _seconds(pair.cold_s)),
        ("Hot query", lambda pair: _seconds(pair.hot_s)),
        ("10 queries", lambda pair: pair.total_cell(10)),
        ("100 queries", lambda pair: pair.total_cell(100)),
        ("Pays from query", QueryPair.pays_from),
        ("May idle", lambda pair: _seconds(pair.cold_s - pair.hot_s)),
        ("1Ki answer / prefill", QueryPair.answer_share),
        ("Cached tokens ≥", lambda pair: count(pair.hot["cached_tokens_min"])),
    )
    return tabulate(TITLE, columns, query_pairs(results), NOTE)


def amortisation_figure(results: CampaignResults) -> "Figure":
    """Draw time per query against the number of queries on one prompt, with a resident prefix and without."""
    from longctx.report import style
    from longctx.report.figures.look import mark_synthetic

    figure, axes = style.new(TITLE, results.subtitle)
    counts = [2**i for i in range(11)]
    pairs = query_pairs(results)[-MOST_LENGTHS:]
    for pair, colour, marker in zip(pairs, palette.CYCLE, palette.MARKERS, strict=False):
        label = f"{format_length(pair.hot['length'])} ({pair.cold_s / pair.hot_s:.0f}× less per further query)"
        resident = [total.resident_per_query_s for total in pair.totals(*counts)]
        axes.plot(counts, resident, color=colour, marker=marker, label=label, markersize=5)
        axes.plot(counts, [pair.cold_s] * len(counts), color=colour, **DASHED)
    axes.plot([], [], color=palette.MUTED, label="prefilled for each query", **DASHED)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xlabel("Queries on the same prompt")
    style.time_axis(axes, "Time per query, answer included")
    if results.price:
        _price_axis(axes, results.price)
    axes.set_ylim(bottom=axes.get_ylim()[0] / 3)
    axes.legend(loc="lower left", title="prefix resident", alignment="left")
    mark_synthetic(axes, results, COLD_MODE, ModeName.REUSE)
    return figure


def _price_axis(axes: "Axes", price: Price) -> None:
    """Add the same scale in dollars on the right."""
    usd_per_s = price.usd(1.0) or 1.0
    scales: Any = (lambda seconds: seconds * usd_per_s, lambda usd: usd * (1 / usd_per_s))
    right = axes.secondary_yaxis("right", functions=scales)
    right.yaxis.set_major_formatter(lambda value, _: rf"\${value:.4g}")
    right.set_ylabel(rf"Price per query at \${price.usd_per_gpu_hour:g} per GPU-hour × {price.gpu_count} GPU")
