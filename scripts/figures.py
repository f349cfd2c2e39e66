#!/usr/bin/env python3
"""Draw a campaign's figures from its tables, as PNG and SVG."""

import argparse
import sys
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.report.figures.draw import draw_all
from longctx.results.campaign_results import CampaignResults
from longctx.results.curves import read_curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    for table in ("summary", "fits", "rows", "servers", "plan"):
        parser.add_argument(f"--{table}", type=Path, required=True, metavar="PARQUET")
    parser.add_argument("--compare", type=Path, nargs="*", default=[], help="summaries of other runs, drawn beside it")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for the figures")
    args = parser.parse_args()
    results = CampaignResults.read(
        load(args.config_file),
        summary=args.summary,
        fits=args.fits,
        rows=args.rows,
        servers=args.servers,
        plan=args.plan,
    )
    print(*draw_all(results, [read_curve(path) for path in args.compare], args.out_dir), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
