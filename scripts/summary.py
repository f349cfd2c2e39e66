#!/usr/bin/env python3
"""Summarise a campaign's rows: statistics per mode and length as Parquet and CSV, and the fits over lengths."""

import argparse
import sys
from pathlib import Path

from longctx import config, gather, summary, tables
from longctx.errors import LongctxError
from longctx.lengths import parse_length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--length", type=parse_length, help="summarise this length only, into --out")
    parser.add_argument("--partial", action="store_true", help="name damaged files instead of stopping at them")
    parser.add_argument("--out", type=Path, help="default: <results>/summary.parquet, with .csv and fits.parquet")
    args = parser.parse_args()
    campaign = config.load(args.config_file)
    found = gather.gather(campaign, args.length, tolerant=args.partial)
    rows = summary.summarise(found.rows, found.expected, found.plan, gather.price_of(campaign))
    out = args.out or campaign.results / "summary.parquet"
    if args.length is None:
        summary.write_csv(out.with_suffix(".csv"), rows)
        tables.write_rows(out.with_name("fits.parquet"), tables.FITS, summary.fits(rows), campaign.labels)
    tables.write_rows(out, tables.SUMMARY, rows, campaign.labels)


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
