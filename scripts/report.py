#!/usr/bin/env python3
"""Write a campaign's Markdown and HTML reports from what is there; missing rungs are shown as missing."""

import argparse
import sys
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.report.html import to_html
from longctx.report.inputs import report_input
from longctx.report.markdown import to_markdown
from longctx.results import collect, curves
from longctx.results.campaign_results import CampaignResults
from longctx.results.cost import Price
from longctx.storage import atomic, parquet, schemas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--command", help="what reproduces the campaign; default: snakemake with this configuration")
    parser.add_argument("--md", type=Path, help="default: <results>/report.md")
    parser.add_argument("--html", type=Path, help="default: <results>/report.html")
    args = parser.parse_args()
    campaign = load(args.config_file)
    tables = collect.collect(campaign, tolerant=True)
    results = CampaignResults(
        campaign.name,
        rows=tables.rows,
        servers=tables.servers,
        summary=parquet.read_rows(campaign.results / "summary.parquet", schemas.SUMMARY),
        fits=parquet.read_rows(campaign.results / "fits.parquet", schemas.FITS),
        plan=tables.plan,
        validation=tables.validation,
        damaged=tables.damaged,
        recipe=campaign.raw,
        price=Price.from_campaign(campaign),
        subtitle=collect.subtitle(tables.rows),
    )
    command = args.command or f"snakemake --cores 1 --configfile {args.config_file}"
    report = report_input(campaign, results, curves.load_curves(campaign), campaign.results / "figures", command)
    markdown, page = args.md or campaign.results / "report.md", args.html or campaign.results / "report.html"
    atomic.write_atomic(markdown, to_markdown(report, markdown.parent).encode())
    atomic.write_atomic(page, to_html(report, page.parent).encode())
    print(markdown, page, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
