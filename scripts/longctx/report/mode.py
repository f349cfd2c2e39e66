"""What a mode brings to figures and reports: its names, its look, its sentences, tables and figures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longctx.campaign.mode import load_facet
from longctx.report.palette import Look
from longctx.report.table_cells import Columns, Table, decode_cell, ttft_cell
from longctx.results.campaign_results import RANDOM_WEIGHTS, CampaignResults
from longctx.storage.schemas import ModeName


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """One figure of a campaign: `name` is the stem of its .png and .svg.

    draw: makes it from CampaignResults and a sequence of RunCurve; None where another rule makes it. shows: takes the
    same and is false where there is nothing to show: the file says `empty` then, and the reports leave it out.
    compares: exists only beside runs to compare with. synthetic: the labels that may apply to its numbers.
    """

    name: str
    caption: str
    draw: Callable[..., Any] | None = None
    shows: Callable[..., Any] = lambda results, others: True
    empty: str = "nothing measured"
    compares: bool = False
    synthetic: tuple[str, ...] = (RANDOM_WEIGHTS,)


class ReportFacet:
    """How a mode is named, drawn and explained. Defaults are those of a mode that adds nothing of its own.

    ttft_column: head of the TTFT column, None where the mode has no TTFT. overlay: what follows another run's name and
    the size of its markers, None where its points are not drawn. limit_series: (look, column of SUMMARY with measured /
    bound) in drawing order. in_decode_limits: whether a table compares its decode with the bandwidth limit.
    decode_condition: follows a length in sentences about decode. energy_note: follows the note of the energy table.
    table_note: stands under the mode's own table.
    """

    name: ModeName
    display_name: str
    table_title: str
    look: Look
    ttft_column: str | None = "TTFT s"
    overlay: tuple[str, float] | None = None
    limit_series: tuple[tuple[Look, str], ...] = ()
    in_decode_limits = True
    decode_condition = ""
    energy_note = ""
    table_note = ""
    figures: tuple[FigureSpec, ...] = ()

    def value_columns(self, results: CampaignResults) -> Columns:
        """Return the columns of the mode's table that hold its values."""
        ttft: Columns = ((self.ttft_column, ttft_cell),) if self.ttft_column else ()
        return (*ttft, ("Decode tok/s", decode_cell))

    def alerts(self, results: CampaignResults) -> list[str]:
        """Return what must not be overlooked about the mode's numbers."""
        return []

    def reach(self, results: CampaignResults) -> list[str]:
        """Return sentences about the longest prompt that was measured."""
        return []

    def gain(self, results: CampaignResults) -> list[str]:
        """Return sentences about what the mode saves against cold prompts."""
        return []

    def checks(self, results: CampaignResults) -> list[Table]:
        """Return tables that compare the mode's numbers with another mode's; they follow those of the limits."""
        return []

    def gain_tables(self, results: CampaignResults) -> list[Table]:
        """Return tables of what the mode saves; they stand before the costs."""
        return []


def report_facet(mode: str) -> ReportFacet:
    """Return what `mode` brings to figures and reports."""
    facet: ReportFacet = load_facet(mode, "report")
    return facet
