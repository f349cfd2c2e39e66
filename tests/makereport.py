"""A whole report's input from makerows' campaign, with figures drawn and every linked file in place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import makerows
from longctx.lengths import format_length
from longctx.report.figures import draw
from longctx.report.sections import ReportInput
from longctx.results import fits as fitting
from longctx.results import summary
from longctx.results.campaign_results import CampaignResults
from longctx.results.compare import comparison, curves
from longctx.results.cost import Price
from longctx.storage import atomic

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "resources" / "results" / "mi355x-published.csv"
RECIPE = {"name": "h200", "from": "1Ki", "to": "2Mi", "passes": 3, "max_new_tokens": 128}
COMMAND = "snakemake --cores 1 --configfile workflow/campaigns/h200.yaml"
Rows = list[dict[str, Any]]


def small(rows: Rows, expected: Mapping[tuple[str, int], int] | None = None, **more: Any) -> CampaignResults:
    """Return the results of a campaign with these rows and no fits."""
    return CampaignResults("small", rows, summary=summary.summarise(rows, expected or {}), **more)


def of_summary(rows: Rows, **more: Any) -> CampaignResults:
    """Return results with these summary rows and their fits."""
    return CampaignResults("small", summary=rows, fits=fitting.fits(rows), **more)


def campaign_results(results: Path, faults: bool = True) -> CampaignResults:
    """Return makerows' campaign; its rows and logs name files in `results`, the rows' files exist."""
    rows = [row | {"source": str(_path(results, "measurements", row))} for row in makerows.campaign(faults=faults)]
    servers = makerows.servers(rows)
    for server in servers:
        server["log_path"] = str(_path(results, "logs", server).with_suffix(".server.log"))
    for row in rows:
        atomic.write_atomic(Path(row["source"]), b"rows")
    price, plan = Price(3.5, 1), makerows.plan()
    summarised = summary.summarise(rows, makerows.expected(), plan, price)
    return CampaignResults(
        name="h200",
        rows=rows,
        servers=servers,
        summary=summarised,
        fits=fitting.fits(summarised),
        plan=plan,
        validation=makerows.validation(),
        recipe=RECIPE,
        price=price,
        subtitle="Kimi Linear 48B-A3B · 1 × NVIDIA H200 · vLLM 0.25.1 · fp8_e4m3 KV",
    )


def report_input(results_folder: Path, faults: bool = True) -> ReportInput:
    """Return the input of a report that will lie in `results_folder`, beside its figures."""
    results, published = campaign_results(results_folder, faults), curves.read_curve(PUBLISHED)
    ours = curves.curve_from_summary(results.summary)
    figures = results_folder / "figures"
    draw.draw_all(results, [published], figures)
    return ReportInput(
        results,
        comparisons=[comparison.compare(ours, published, normalise=per_gpu) for per_gpu in (False, True)],
        figures=[(figure, figures / figure.name) for figure in draw.shown_figures(results, [published]) if figure.draw],
        command=COMMAND,
        revision="0123456789abcdef",
        results_folder=results_folder,
    )


def _path(results: Path, table: str, row: dict[str, object]) -> Path:
    prefix = "" if row["mode"] == "prefill" else f"{row['mode']}-"
    return results / table / format_length(int(str(row["length"]))) / f"{prefix}pass{row['pass_index']}.parquet"
