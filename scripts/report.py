#!/usr/bin/env python3
"""Write a campaign's Markdown and HTML reports from what is there; missing rungs are shown as missing."""

import argparse
import sys
from pathlib import Path

from longctx.campaign import campaign
from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.lengths import format_length
from longctx.report import html
from longctx.report.inputs import ReportInput
from longctx.report.markdown import to_markdown
from longctx.results import comparison, curves
from longctx.results.campaign_results import CampaignResults
from longctx.storage import atomic, provenance

FIGURES = ("ttft", "decode", "kv_footprint", "limits", "amortisation", "ttft_per_gpu", "decode_per_gpu")


def report_input(campaign: campaign.Campaign, command: str) -> ReportInput:
    """Collect what the reports say about a campaign whose summary has been made."""
    results = campaign.results
    names = ("summary", "fits", "rows", "servers", "plan")
    found = CampaignResults.read(
        campaign,
        **{name: results / f"{name}.parquet" for name in names},
        validation=[results / "validation" / f"{format_length(n)}.parquet" for n in campaign.all_lengths()],
    )
    summary = found.summary
    ours, threshold = curves.curve_from_summary(summary), float(campaign.raw["compare_threshold"])
    others = [curves.read_curve(path) for path in campaign.raw["compare"]]
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
        fits=found.fits,
        plan=found.plan,
        servers=found.servers,
        validation=found.validation,
        recipe=campaign.raw,
        command=command,
        comparisons=comparisons,
        price=found.price,
        figures={name: results / "figures" / name for name in FIGURES},
        results=results,
        subtitle=found.subtitle,
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
