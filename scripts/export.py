#!/usr/bin/env python3
"""Copy a campaign's results into one small folder to keep or publish: rows, servers, summary, fits, recipe, figures."""

import argparse
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import run_program
from longctx.results.export import export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config-file", type=Path, required=True, help="configuration, YAML or JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder; its files are replaced")
    parser.add_argument("--no-figures", action="store_true", help="tables only, for a campaign of one or two lengths")
    args = parser.parse_args()
    export(load(args.config_file), args.out, figures=not args.no_figures)


if __name__ == "__main__":
    run_program(main)
