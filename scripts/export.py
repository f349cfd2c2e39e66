#!/usr/bin/env python3
"""Copy a campaign's results into one small folder to keep or publish: rows, servers, summary, fits, recipe, figures."""

import argparse
import shutil
import sys
from pathlib import Path

import yaml
from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.results import collect
from longctx.storage import parquet, schemas

FILES = ("summary.parquet", "summary.csv", "fits.parquet", "plan.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder; its files are replaced")
    parser.add_argument("--no-figures", action="store_true", help="tables only, for a campaign of one or two lengths")
    args = parser.parse_args()
    campaign = load(args.config_file)
    found = collect.collect(campaign)
    rows = [{name: row.get(name) for name in schemas.MEASUREMENTS.names} for row in found.rows]
    servers = [{name: row.get(name) for name in schemas.SERVERS.names} for row in found.servers]
    args.out.mkdir(parents=True, exist_ok=True)
    parquet.write_rows(args.out / "rows.parquet", schemas.MEASUREMENTS, rows, campaign.labels)
    parquet.write_rows(args.out / "servers.parquet", schemas.SERVERS, servers, campaign.labels)
    (args.out / "recipe.yaml").write_text(yaml.safe_dump(campaign.raw, sort_keys=False))
    for name in FILES:
        shutil.copyfile(campaign.results / name, args.out / name)
    if not args.no_figures:
        shutil.copytree(campaign.results / "figures", args.out / "figures", dirs_exist_ok=True)


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
