#!/usr/bin/env python3
"""Summarise a campaign's rows: statistics per mode and length as Parquet and CSV, and the fits over lengths."""

import argparse
import sys
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.lengths import parse_length
from longctx.results import collect, fits, summary
from longctx.results.cost import Price
from longctx.storage import parquet, schemas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--length", type=parse_length, help="summarise this length only, into --out")
    parser.add_argument("--partial", action="store_true", help="name damaged files instead of stopping at them")
    parser.add_argument("--out", type=Path, help="default: <results>/summary.parquet, with .csv and fits.parquet")
    args = parser.parse_args()
    campaign = load(args.config_file)
    found = collect.collect(campaign, args.length, tolerant=args.partial)
    rows = summary.summarise(found.rows, found.expected, found.plan, Price.from_campaign(campaign))
    out = args.out or campaign.results / "summary.parquet"
    if args.length is None:
        summary.write_csv(out.with_suffix(".csv"), rows)
        parquet.write_rows(out.with_name("fits.parquet"), schemas.FITS, fits.fits(rows), campaign.labels)
    parquet.write_rows(out, schemas.SUMMARY, rows, campaign.labels)


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
