"""What a report is made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.report.figures.draw import shown_figures
from longctx.report.mode import FigureSpec
from longctx.results import comparison, curves
from longctx.results.campaign_results import CampaignResults
from longctx.results.comparison import Comparison
from longctx.results.curves import RunCurve
from longctx.storage import provenance


@dataclass(frozen=True, slots=True)
class ReportInput:
    """A campaign's results and what its reports say beside them; nothing else is read from disk but the figures.

    figures: each figure that shows something, with the stem of its .png and .svg. command: reproduces the campaign.
    revision: of longctx. results_folder: the links to traces, progress and server facts start from it.
    """

    results: CampaignResults
    comparisons: Sequence[Comparison] = ()
    figures: Sequence[tuple[FigureSpec, Path]] = ()
    command: str = ""
    revision: str = ""
    results_folder: Path = Path("results")


def report_input(
    campaign: Campaign, results: CampaignResults, others: Sequence[RunCurve], figures: Path, command: str
) -> ReportInput:
    """Compare a campaign's results with other runs; `figures` is the folder in which draw_all left its files."""
    ours, threshold = curves.curve_from_summary(results.summary), float(campaign.config.compare_threshold)
    comparisons = [comparison.compare(ours, other, threshold=threshold) for other in others]
    comparisons += [
        comparison.compare(ours, other, threshold=threshold, normalise=True)
        for other in others
        if ours.gpu_count and other.gpu_count and other.gpu_count != ours.gpu_count
    ]
    return ReportInput(
        results,
        comparisons,
        [(figure, figures / figure.name) for figure in shown_figures(results, others)],
        command,
        provenance.git_revision(),
        campaign.results,
    )
