"""A whole report's input from makerows' campaign, with figures drawn and every linked file in place."""

from pathlib import Path

import makerows
from longctx.lengths import format_length
from longctx.report.figures import draw, look
from longctx.report.inputs import ReportInput
from longctx.results import comparison, curves, summary
from longctx.results import fits as fitting
from longctx.results.cost import Price
from longctx.storage import atomic

ROOT = Path(__file__).parents[1]
RECIPE = {"name": "h200", "from": "1Ki", "to": "2Mi", "passes": 3, "max_new_tokens": 128}
COMMAND = "snakemake --cores 1 --configfile workflow/campaigns/h200.yaml"


def report_input(results: Path, faults: bool = True) -> ReportInput:
    """Return the input of a report that will lie in `results`."""
    rows = [row | {"source": str(_path(results, "measurements", row))} for row in makerows.campaign(faults=faults)]
    servers = makerows.servers(rows)
    for server in servers:
        server["log_path"] = str(_path(results, "logs", server).with_suffix(".server.log"))
    for row in rows:
        atomic.write_atomic(Path(row["source"]), b"rows")
    price, plan = Price(3.5, 1), makerows.plan()
    summarised = summary.summarise(rows, makerows.expected(), plan, price)
    published = curves.read_curve(ROOT / "resources" / "results" / "mi355x-published.csv")
    ours, fits = curves.curve_from_summary(summarised), fitting.fits(summarised)
    subtitle = "Kimi Linear 48B-A3B · 1 × NVIDIA H200 · vLLM 0.25.1 · fp8_e4m3 KV"
    drawn = draw.draw_all(look.FigureInput(summarised, fits, [published], subtitle, price), results / "figures")
    return ReportInput(
        name="h200",
        rows=rows,
        summary=summarised,
        fits=fits,
        plan=plan,
        servers=servers,
        validation=makerows.validation(),
        recipe=RECIPE,
        command=COMMAND,
        comparisons=[comparison.compare(ours, published, normalise=per_gpu) for per_gpu in (False, True)],
        price=price,
        figures={name: results / "figures" / name for name in drawn},
        results=results,
        subtitle=subtitle,
        revision="0123456789abcdef",
    )


def _path(results: Path, table: str, row: dict[str, object]) -> Path:
    prefix = "" if row["mode"] == "prefill" else f"{row['mode']}-"
    return results / table / format_length(int(str(row["length"]))) / f"{prefix}pass{row['pass_index']}.parquet"
