"""What a report is made from, and the sections that the Markdown and the HTML report share, in order.

A section that fails costs itself alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from longctx.campaign.campaign import Campaign
from longctx.campaign.mode import MODES
from longctx.report import evidence, faults, provenance
from longctx.report.figures.draw import shown_figures
from longctx.report.mode import FigureSpec, report_facet
from longctx.report.table_cells import Table, tabulate
from longctx.results.campaign_results import RANDOM_WEIGHTS, CampaignResults
from longctx.results.compare.comparison import Comparison, compare
from longctx.results.compare.curves import RunCurve, curve_from_summary
from longctx.storage.provenance import git_revision

Builder = Callable[[Any], Table | list[Table]]


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
    ours, threshold = curve_from_summary(results.summary), float(campaign.config.compare_threshold)
    counted = [other for other in others if ours.gpu_count and other.gpu_count not in (None, 0, ours.gpu_count)]
    comparisons, faults = [], []
    for other, normalise in [*((other, False) for other in others), *((other, True) for other in counted)]:
        try:
            comparisons.append(compare(ours, other, threshold=threshold, normalise=normalise))
        except Exception as error:
            faults.append(f"the comparison with {other.name} could not be made: {error!r}")
    results = replace(results, damaged=(*results.damaged, *faults))
    stems = [(figure, figures / figure.name) for figure in shown_figures(results, others)]
    return ReportInput(results, comparisons, stems, command, git_revision(), campaign.results)


def _tables(builders: Iterable[Builder], subject: Any) -> list[Table]:
    """Return the tables that the builders make of `subject`; for one that fails, a table that says so."""
    made: list[Table] = []
    for build in builders:
        try:
            built = build(subject)
            made += [built] if isinstance(built, Table) else built
        except Exception as error:
            columns = (("This section could not be made", str),)
            title = build.__name__.replace("_", " ").capitalize()
            made.append(tabulate(title, columns, [f"{type(error).__name__}: {error}"]))
    return made


def mode_tables(results: CampaignResults) -> list[Table]:
    """Return Table 1 and one table for each further mode."""
    return _tables([evidence.table_1, evidence.other_mode_tables], results)


def evidence_tables(report: ReportInput) -> list[Table]:
    """Return the tables between the figures and the failures, in order; empty ones have nothing to say."""
    results, facets = report.results, [report_facet(mode) for mode in MODES]
    checks, gains = [facet.checks for facet in facets], [facet.gain_tables for facet in facets]
    limits: list[Builder] = [evidence.two_clocks, evidence.prefill_limits, evidence.decode_limits, *checks]
    costs: list[Builder] = [evidence.fits, *gains, evidence.costs, evidence.energy]
    comparisons = [table for run in report.comparisons for table in _tables([evidence.comparison_table], run)]
    # Filled caches are named in the rows.
    label = "Synthetic: random weights." if RANDOM_WEIGHTS in results.synthetic_labels() else ""
    ours = _tables([*limits, *costs, provenance.hosts], results)
    *ours, hosts = [replace(table, note=f"{table.note} {label}".strip()) for table in ours]
    return [*ours, *comparisons, hosts]


def fault_tables(results: CampaignResults) -> list[Table]:
    """Return failures, marks, outliers and resumed prefills; the first is shown even where it is empty."""
    return _tables([faults.failures, faults.marks, faults.outliers, faults.resumed], results)


def system_tables(results: CampaignResults) -> list[Table]:
    """Return what ran and where: the plan beside the servers, the contract and the environment."""
    return _tables([provenance.plan_against_server, provenance.contract, provenance.environment], results)


def figure_labels(results: CampaignResults, figure: FigureSpec) -> list[str]:
    """Return what is not real about a figure's numbers."""
    return [label for label in results.synthetic_labels() if label in figure.synthetic]


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """Return the configuration as YAML in its own order."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=100)
