#!/usr/bin/env python3
"""Write a campaign's Markdown and HTML reports from what is there; missing rungs are shown as missing."""

import argparse
import sys
from pathlib import Path

from longctx import compare, config, gather, html, report, tables
from longctx.errors import LongctxError
from longctx.views import ReportInput

FIGURES = ("ttft", "decode", "kv_footprint", "limits", "amortisation", "ttft_per_gpu", "decode_per_gpu")


def report_input(campaign: config.Campaign, command: str) -> ReportInput:
    """Collect what the reports say about a campaign whose summary has been made."""
    results = campaign.results
    found = gather.gather(campaign, tolerant=True)
    summary = tables.read_rows(results / "summary.parquet", tables.SUMMARY)
    ours, threshold = compare.curve_of(summary), float(campaign.raw["compare_threshold"])
    others = gather.curves_of(campaign)
    comparisons = [compare.compare(ours, other, threshold=threshold) for other in others]
    comparisons += [
        compare.compare(ours, other, threshold=threshold, normalise=True)
        for other in others
        if ours.gpu_count and other.gpu_count and other.gpu_count != ours.gpu_count
    ]
    return ReportInput(
        name=campaign.name,
        rows=found.rows,
        summary=summary,
        fits=tables.read_rows(results / "fits.parquet", tables.FITS),
        plan=found.plan,
        servers=found.servers,
        validation=found.validation,
        recipe=campaign.raw,
        command=command,
        comparisons=comparisons,
        price=gather.price_of(campaign),
        figures={name: results / "figures" / name for name in FIGURES},
        results=results,
        subtitle=gather.subtitle(found.rows),
        revision=tables.git_revision(),
        damaged=found.damaged,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--command", help="what reproduces the campaign; default: snakemake with this configuration")
    parser.add_argument("--md", type=Path, help="default: <results>/report.md")
    parser.add_argument("--html", type=Path, help="default: <results>/report.html")
    args = parser.parse_args()
    campaign = config.load(args.config_file)
    given = report_input(campaign, args.command or f"snakemake --cores 1 --configfile {args.config_file}")
    markdown, page = args.md or campaign.results / "report.md", args.html or campaign.results / "report.html"
    tables.write_atomic(markdown, report.to_markdown(given, markdown.parent).encode())
    tables.write_atomic(page, html.to_html(given, page.parent).encode())
    print(markdown, page, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
