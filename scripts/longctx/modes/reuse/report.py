"""A resident prefix in figures and reports: what a query costs as the number of queries on one prompt grows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longctx import units
from longctx.campaign.mode import COLD_MODE
from longctx.lengths import format_length
from longctx.report import palette
from longctx.report.mode import FigureSpec, ReportFacet
from longctx.report.palette import Look
from longctx.report.table_cells import Cell, Row, Table, count, prompt_cell, tabulate
from longctx.results import cost
from longctx.results.campaign_results import CampaignResults
from longctx.results.compare.curves import RunCurve
from longctx.results.ttft.first_token import FirstToken, on_one_clock
from longctx.storage.schemas import ModeName

if TYPE_CHECKING:  # figures import matplotlib, the table does not
    from matplotlib.figure import Figure

TITLE = "What a resident prefix buys"
NOTE = (
    "Queries include their answer. The cold one is of mode prefill, or where that was not measured at this length,"
    " the prefill that made the prefix resident."
)
BY_SERVER = " Where the client read every first token late, the server's prefill time stands for TTFT on both sides."
MOST_LENGTHS = 4
DASHED: Any = {"linestyle": (0, (5, 3)), "linewidth": 1.2}


@dataclass(frozen=True, slots=True)
class QueryPair:
    """The summary row of the hot queries of one length, and the seconds of a hot and a cold query with its answer.

    by_server: both prefills are timed by the server, since the client read the first tokens late.
    """

    hot: Row
    hot_s: float
    cold_s: float
    by_server: bool = False

    def total_s(self, queries: int) -> float:
        """Return the seconds of so many queries on the prompt, the first of which prefills."""
        return self.cold_s + (queries - 1) * self.hot_s

    def total_cell(self, queries: int) -> Cell:
        total_s = self.total_s(queries)
        return Cell(units.human_seconds(total_s), total_s, f"{queries * self.cold_s / total_s:.1f}× less")


def hot_and_cold(results: CampaignResults) -> list[tuple[Row, Row]]:
    """Return the summary rows of hot queries, each with its cold side (cost.cold_row), shortest prompts first."""
    cold = {row["length"]: row for row in results.of_mode(COLD_MODE)}
    return [(hot, cost.cold_row(hot, cold.get(hot["length"]))) for hot in results.of_mode(ModeName.REUSE)]


def query_pairs(results: CampaignResults, others: Sequence[RunCurve] = ()) -> list[QueryPair]:
    """Return the lengths at which a cold and a hot query were measured with their answers."""
    pairs = []
    for hot, cold in hot_and_cold(results):
        if first := on_one_clock(hot, cold):
            hot_s, cold_s = (cost.query_s(row, time.seconds) for row, time in zip((hot, cold), first, strict=True))
            pairs += [QueryPair(hot, hot_s, cold_s, first[0].by_server)] if hot_s and cold_s else []
    return pairs


def amortisation_table(results: CampaignResults) -> Table:
    """Return what 10 and 100 queries on one prompt take."""
    columns: tuple[tuple[str, Callable[[QueryPair], Cell]], ...] = (
        ("Prompt", lambda pair: prompt_cell(pair.hot)),
        ("Cold query", lambda pair: Cell(units.human_seconds(pair.cold_s), pair.cold_s)),
        ("Hot query", lambda pair: Cell(units.human_seconds(pair.hot_s), pair.hot_s)),
        ("10 queries", lambda pair: pair.total_cell(10)),
        ("100 queries", lambda pair: pair.total_cell(100)),
        ("Cached tokens ≥", lambda pair: count(pair.hot["cached_tokens_min"])),
    )
    pairs = query_pairs(results)
    return tabulate(TITLE, columns, pairs, NOTE + (BY_SERVER if any(pair.by_server for pair in pairs) else ""))


def amortisation_figure(results: CampaignResults, others: Sequence[RunCurve] = ()) -> "Figure":
    """Draw time per query against the number of queries on one prompt, with a resident prefix and without."""
    from longctx.report import style

    figure, axes = style.new(TITLE, results.subtitle)
    counts = [2**i for i in range(11)]
    pairs = query_pairs(results)[-MOST_LENGTHS:]
    for pair, colour, marker in zip(pairs, palette.CYCLE, palette.MARKERS, strict=False):
        clock = ", server's clock" if pair.by_server else ""
        label = f"{format_length(pair.hot['length'])} ({pair.cold_s / pair.hot_s:.0f}× less per further query{clock})"
        resident = [pair.total_s(count) / count for count in counts]
        axes.plot(counts, resident, color=colour, marker=marker, label=label, markersize=5)
        axes.plot(counts, [pair.cold_s] * len(counts), color=colour, **DASHED)
    axes.plot([], [], color=palette.MUTED, label="prefilled for each query", **DASHED)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xlabel("Queries on the same prompt")
    style.time_axis(axes, "Time per query, answer included")
    if price := results.price:  # the same scale in dollars on the right
        usd_per_s = price.usd(1.0) or 1.0
        scales: Any = (lambda seconds: seconds * usd_per_s, lambda usd: usd * (1 / usd_per_s))
        right = axes.secondary_yaxis("right", functions=scales)
        right.yaxis.set_major_formatter(lambda value, _: rf"\${value:.4g}")
        right.set_ylabel(rf"Price per query at \${price.usd_per_gpu_hour:g} per GPU-hour × {price.gpu_count} GPU")
    axes.set_ylim(bottom=axes.get_ylim()[0] / 3)
    axes.legend(loc="lower left", title="prefix resident", alignment="left")
    style.mark_synthetic(axes, results.synthetic_labels(COLD_MODE, ModeName.REUSE))
    return figure


def _sooner(length: int, hot: FirstToken, cold: FirstToken) -> str:
    """Return how much sooner a query's first token comes; both times are of one clock."""
    hot_time, cold_time = units.human_seconds(hot.seconds), units.human_seconds(cold.seconds)
    gain = f"{cold.seconds / hot.seconds:.0f} times sooner"
    if hot.by_server:
        late = "since the client read every first token of one of them late"
        gain += f", by the server's prefill times of n = {hot.n} and {cold.n}, {late}"
    else:
        hot_time, cold_time = hot_time + hot.note(), cold_time + cold.note()
    times = f"first token after {hot_time} instead of {cold_time}"
    return f"Behind a resident prefix of {format_length(length)}: {times} ({gain})."


class ReuseReport(ReportFacet):
    """Its queries are compared with cold prompts: what the prefix saves."""

    name = ModeName.REUSE
    display_name = "resident prefix"
    table_title = "Queries behind a resident prefix"
    look = Look("behind a resident prefix", palette.GREEN, "D", 7.0)
    ttft_column = "Hot TTFT s"
    in_decode_limits = False
    figures = (FigureSpec("amortisation", TITLE, amortisation_figure, query_pairs),)

    def gain(self, results: CampaignResults) -> list[str]:
        for hot, cold in reversed(hot_and_cold(results)):
            if first := on_one_clock(hot, cold):
                return [_sooner(hot["length"], *first)]
        return []

    def gain_tables(self, results: CampaignResults) -> list[Table]:
        return [amortisation_table(results)]


FACET = ReuseReport()
