"""A resident prefix in figures and reports."""

from longctx import units
from longctx.lengths import format_length
from longctx.modes.reuse import amortisation
from longctx.report import palette
from longctx.report.cells import Table
from longctx.report.mode import FigureSpec, ReportFacet
from longctx.report.palette import Look
from longctx.results.campaign_results import CampaignResults
from longctx.storage.schemas import ModeName


class ReuseReport(ReportFacet):
    """Its queries are compared with cold prompts: what the prefix saves, and from which query on."""

    name = ModeName.REUSE
    display_name = "resident prefix"
    table_title = "Queries behind a resident prefix"
    look = Look("behind a resident prefix", palette.GREEN, "D", 7.0)
    ttft_column = "Hot TTFT s"
    in_decode_limits = False
    figures = (
        FigureSpec(
            "amortisation",
            amortisation.TITLE,
            draw=lambda results, others: amortisation.amortisation_figure(results),
            shows=lambda results, others: amortisation.query_pairs(results),
        ),
    )

    def gain(self, results: CampaignResults) -> list[str]:
        sentences = [
            f"Behind a resident prefix of {format_length(hot['length'])}: first token after"
            f" {units.human_seconds(hot['ttft_s_mean'])} instead of {units.human_seconds(cold['ttft_s_mean'])}"
            f" ({cold['ttft_s_mean'] / hot['ttft_s_mean']:.0f} times sooner)."
            for hot, cold in amortisation.hot_and_cold(results)
            if hot["ttft_s_mean"] and cold["ttft_s_mean"]
        ]
        return sentences[-1:]

    def gain_tables(self, results: CampaignResults) -> list[Table]:
        return [amortisation.amortisation_table(results)]


FACET = ReuseReport()
