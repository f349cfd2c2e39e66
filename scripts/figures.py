#!/usr/bin/env python3
"""Draw a campaign's figures from its summary, as PNG and SVG."""

import argparse
import sys
from pathlib import Path

from longctx import config, figures, gather, tables
from longctx.errors import LongctxError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--out-dir", type=Path, help="default: <results>/figures")
    args = parser.parse_args()
    campaign = config.load(args.config_file)
    given = figures.FigureInput(
        summary=tables.read_rows(campaign.results / "summary.parquet", tables.SUMMARY),
        fits=tables.read_rows(campaign.results / "fits.parquet", tables.FITS),
        others=gather.curves_of(campaign),
        subtitle=gather.subtitle(gather.gather(campaign, tolerant=True).rows),
        price=gather.price_of(campaign),
    )
    for paths in figures.draw_all(given, args.out_dir or campaign.results / "figures").values():
        for path in paths:
            print(path)


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
