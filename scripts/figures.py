#!/usr/bin/env python3
"""Draw a campaign's figures from its summary, as PNG and SVG."""

import argparse
import sys
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.report.figures import draw, look
from longctx.results import campaign_results, curves
from longctx.results.cost import Price
from longctx.storage import parquet, schemas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--out-dir", type=Path, help="default: <results>/figures")
    args = parser.parse_args()
    campaign = load(args.config_file)
    given = look.FigureInput(
        summary=parquet.read_rows(campaign.results / "summary.parquet", schemas.SUMMARY),
        fits=parquet.read_rows(campaign.results / "fits.parquet", schemas.FITS),
        others=[curves.read_curve(path) for path in campaign.raw["compare"]],
        subtitle=campaign_results.subtitle(parquet.read_rows(campaign.results / "rows.parquet")),
        price=Price.from_campaign(campaign),
    )
    for paths in draw.draw_all(given, args.out_dir or campaign.results / "figures").values():
        for path in paths:
            print(path)


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
