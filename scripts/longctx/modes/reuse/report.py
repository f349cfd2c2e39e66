"""A resident prefix in figures and reports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longctx import units
from longctx.campaign.mode import COLD_MODE
from longctx.lengths import format_length
from longctx.modes.reuse import amortisation
from longctx.report import palette
from longctx.report.cells import Table
from longctx.report.mode import FigureSpec, ReportFacet
from longctx.report.palette import Look
from longctx.results import cost
from longctx.results.campaign_results import CampaignResults
from longctx.results.curves import RunCurve
from longctx.storage.schemas import ModeName

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _draw(results: CampaignResults, others: Sequence[RunCurve]) -> "Figure":
    return amortisation.amortisation_figure(results)


def _shows(results: CampaignResults, others: Sequence[RunCurve]) -> bool:
    return bool(amortisation.query_pairs(results))


class ReuseReport(ReportFacet):
    """Its queries are compared with cold prompts: what the prefix saves, and from which query on."""

    name = ModeName.REUSE
    display_name = "resident prefix"
    table_title = "Queries behind a resident prefix"
    look = Look("behind a resident prefix", palette.GREEN, "D", 7.0)
    ttft_column = "Hot TTFT s"
    in_decode_limits = False
    figures = (FigureSpec("amortisation", amortisation.TITLE, _draw, _shows),)

    def gain(self, results: CampaignResults) -> list[str]:
        prefill = {row["length"]: row for row in results.of_mode(COLD_MODE)}
        sentences = [
            f"Behind a resident prefix of {format_length(row['length'])}: first token after"
            f" {units.human_seconds(row['ttft_s_mean'])} instead of {units.human_seconds(cold_s)}"
            f" ({cold_s / row['ttft_s_mean']:.0f} times sooner)."
            for row in results.of_mode(self.name)
            if (cold_s := cost.cold_row(row, prefill.get(row["length"]))["ttft_s_mean"]) and row["ttft_s_mean"]
        ]
        return sentences[-1:]

    def gain_tables(self, results: CampaignResults) -> list[Table]:
        return [amortisation.amortisation_table(results)]


FACET = ReuseReport()
