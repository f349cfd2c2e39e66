#!/usr/bin/env python3
"""Draw a campaign's figures from its tables, as PNG and SVG."""

import argparse
import sys
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import run_program
from longctx.report.figures.draw import draw_all
from longctx.results.campaign_results import CampaignResults
from longctx.results.compare.curves import read_curves

TABLES = ("summary", "fits", "estimates", "chunks", "rows", "servers", "plan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    for table in TABLES:
        parser.add_argument(f"--{table}", type=Path, required=True, metavar="PARQUET")
    parser.add_argument("--compare", type=Path, nargs="*", default=[], help="summaries of other runs, drawn beside it")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for the figures")
    args = parser.parse_args()
    tables = {table: getattr(args, table) for table in TABLES}
    results = CampaignResults.read(load(args.config_file), **tables)
    others, faults = read_curves(args.compare)
    for fault in faults:
        print(f"warning: {fault}", file=sys.stderr)
    print(*draw_all(results, others, args.out_dir), sep="\n")


if __name__ == "__main__":
    run_program(main)
