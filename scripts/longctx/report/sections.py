"""The sections that the Markdown and the HTML report share, in order. A section that fails costs itself alone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import yaml

from longctx.campaign.mode import MODES
from longctx.report import evidence, faults, provenance, tables
from longctx.report.cells import Table, make
from longctx.report.inputs import ReportInput
from longctx.report.mode import FigureSpec, report_facet
from longctx.results.campaign_results import RANDOM_WEIGHTS, CampaignResults


def _attempt(build: Callable[[Any], Table | Iterable[Table]], subject: Any, name: str) -> list[Table]:
    """Return the tables that `build` makes of `subject`, or one that says why they could not be made."""
    try:
        built = build(subject)
        return [built] if isinstance(built, Table) else list(built)
    except Exception as error:
        return [make(name, ("This section could not be made",), [[f"{type(error).__name__}: {error}"]])]


def _tables(builders: Iterable[Callable[[CampaignResults], Table]], results: CampaignResults) -> list[Table]:
    names = ((build, build.__name__.replace("_", " ").capitalize()) for build in builders)
    return [table for build, name in names for table in _attempt(build, results, name)]


def mode_tables(results: CampaignResults) -> list[Table]:
    """Return Table 1 and one table for each further mode."""
    return [*_tables([tables.table_1], results), *_attempt(tables.other_mode_tables, results, "Other modes")]


def evidence_tables(report: ReportInput) -> list[Table]:
    """Return the tables between the figures and the failures, in order; empty ones have nothing to say."""
    results, facets = report.results, [report_facet(mode) for mode in MODES]
    ours = [
        *_tables([evidence.two_clocks, evidence.prefill_limits, evidence.decode_limits], results),
        *(table for facet in facets for table in _attempt(facet.checks, results, facet.display_name)),
        *_tables([evidence.fits], results),
        *(table for facet in facets for table in _attempt(facet.gain_tables, results, facet.display_name)),
        *_tables([evidence.costs, evidence.energy], results),
    ]
    comparisons = [
        table
        for compared in report.comparisons
        for table in _attempt(evidence.comparison_table, compared, f"Against {compared.theirs.name}")
    ]
    hosts = _tables([provenance.hosts], results)
    return [*_labelled(ours, results), *comparisons, *_labelled(hosts, results)]


def _labelled(shown: Iterable[Table], results: CampaignResults) -> list[Table]:
    """Return tables whose notes name random weights where there are any; filled caches are named in the rows."""
    label = "Synthetic: random weights." if RANDOM_WEIGHTS in results.synthetic_labels() else ""
    return [replace(table, note=f"{table.note} {label}".strip()) for table in shown]


def fault_tables(results: CampaignResults) -> list[Table]:
    """Return failures, marks, outliers and resumed prefills; the first is shown even where it is empty."""
    return _tables([faults.failures, faults.marks, faults.outliers, faults.resumed], results)


def system_tables(results: CampaignResults) -> list[Table]:
    """Return what ran and where: the contract and the environment."""
    return _tables([provenance.contract, provenance.environment], results)


def figure_labels(results: CampaignResults, figure: FigureSpec) -> list[str]:
    """Return what is not real about a figure's numbers."""
    return [label for label in results.synthetic_labels() if label in figure.synthetic]


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """Return the configuration as YAML in its own order."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=100)
