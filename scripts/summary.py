#!/usr/bin/env python3
"""Summarise a campaign's rows: statistics per mode and length as Parquet and CSV, and the fits over lengths.

The rows themselves and the servers' facts are written next to them, each with the file it came from.
"""

import argparse
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import run_program
from longctx.lengths import parse_length
from longctx.results.collect import collect, collect_partial
from longctx.results.export import write_summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--rows", type=Path, nargs="+", help="measurements of the points, Parquet")
    parser.add_argument("--servers", type=Path, nargs="+", default=[], help="servers of the points, Parquet")
    parser.add_argument("--progress", type=Path, nargs="+", default=[], help="progress of the points, Parquet")
    parser.add_argument("--plan", type=Path, help="plan.parquet, for the bounds; default: no plan is known")
    parser.add_argument("--length", type=parse_length, help="the rows are of this length; write its summary only")
    what = "take what the results folder and its journals have, and name damaged files instead of stopping at them"
    parser.add_argument(
        "--partial", action="store_true", help=f"instead of --rows, --servers, --progress, --plan: {what}"
    )
    parser.add_argument("--out", type=Path, help="default: <results>/summary.parquet; other tables go beside it")
    args = parser.parse_args()
    if not args.rows and not args.partial:
        parser.error("--rows: missing; only --partial looks for rows itself")
    campaign = load(args.config_file)
    if args.partial:
        collected = collect_partial(campaign, args.length)
    else:
        collected = collect(campaign, args.rows, args.servers, args.plan, args.progress)
    write_summary(campaign, collected, args.out or campaign.results / "summary.parquet", args.length)


if __name__ == "__main__":
    run_program(main)
