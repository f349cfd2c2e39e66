#!/usr/bin/env python3
"""Write a campaign's Markdown and HTML reports from what is there; missing rungs are shown as missing."""

import argparse
import sys
from pathlib import Path

from longctx.campaign import campaign
from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.report import html
from longctx.report.inputs import ReportInput
from longctx.report.markdown import to_markdown
from longctx.results import campaign_results, collect, comparison, curves
from longctx.results.cost import Price
from longctx.storage import atomic, parquet, provenance, schemas

FIGURES = ("ttft", "decode", "kv_footprint", "limits", "amortisation", "ttft_per_gpu", "decode_per_gpu")


def report_input(campaign: campaign.Campaign, command: str) -> ReportInput:
    """Collect what the reports say about a campaign whose summary has been made."""
    results = campaign.results
    found = collect.collect(campaign, tolerant=True)
    summary = parquet.read_rows(results / "summary.parquet", schemas.SUMMARY)
    ours, threshold = curves.curve_from_summary(summary), float(campaign.raw["compare_threshold"])
    others = curves.load_curves(campaign)
    comparisons = [comparison.compare(ours, other, threshold=threshold) for other in others]
    comparisons += [
        comparison.compare(ours, other, threshold=threshold, normalise=True)
        for other in others
        if ours.gpu_count and other.gpu_count and other.gpu_count != ours.gpu_count
    ]
    return ReportInput(
        name=campaign.name,
        rows=found.rows,
        summary=summary,
        fits=parquet.read_rows(results / "fits.parquet", schemas.FITS),
        plan=found.plan,
        servers=found.servers,
        validation=found.validation,
        recipe=campaign.raw,
        command=command,
        comparisons=comparisons,
        price=Price.from_campaign(campaign),
        figures={name: results / "figures" / name for name in FIGURES},
        results=results,
        subtitle=campaign_results.subtitle(found.rows),
        revision=provenance.git_revision(),
        damaged=found.damaged,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--command", help="what reproduces the campaign; default: snakemake with this configuration")
    parser.add_argument("--md", type=Path, help="default: <results>/report.md")
    parser.add_argument("--html", type=Path, help="default: <results>/report.html")
    args = parser.parse_args()
    campaign = load(args.config_file)
    given = report_input(campaign, args.command or f"snakemake --cores 1 --configfile {args.config_file}")
    markdown, page = args.md or campaign.results / "report.md", args.html or campaign.results / "report.html"
    atomic.write_atomic(markdown, to_markdown(given, markdown.parent).encode())
    atomic.write_atomic(page, html.to_html(given, page.parent).encode())
    print(markdown, page, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
