#!/usr/bin/env python3
"""Write a campaign's Markdown and HTML reports from its tables; missing rungs are shown as missing."""

import argparse
from dataclasses import replace
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import run_program
from longctx.report.documents.pages import write_reports
from longctx.report.sections import report_input
from longctx.results.campaign_results import CampaignResults
from longctx.results.compare.curves import read_curves

TABLES = ("summary", "fits", "estimates", "chunks", "rows", "servers", "plan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    for table in TABLES:
        parser.add_argument(f"--{table}", type=Path, required=True, metavar="PARQUET")
    parser.add_argument("--validation", type=Path, nargs="*", default=[], help="of every prompt", metavar="PARQUET")
    parser.add_argument("--figures", type=Path, required=True, help="folder of the figures")
    parser.add_argument("--compare", type=Path, nargs="*", default=[], help="summaries of other runs")
    parser.add_argument("--command", help="what reproduces the campaign; default: snakemake with this configuration")
    parser.add_argument("--md", type=Path, required=True, help="the Markdown report to write")
    parser.add_argument("--html", type=Path, required=True, help="the HTML report to write")
    args = parser.parse_args()
    campaign = load(args.config_file)
    tables = {table: getattr(args, table) for table in TABLES}
    others, faults = read_curves(args.compare)
    results = CampaignResults.read(campaign, **tables, validation=args.validation)
    results = replace(results, damaged=(*results.damaged, *faults))
    command = args.command or f"snakemake --cores 1 --configfile {args.config_file}"
    write_reports(report_input(campaign, results, others, args.figures, command), args.md, args.html)
    print(args.md, args.html, sep="\n")


if __name__ == "__main__":
    run_program(main)
