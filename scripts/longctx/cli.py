"""The `longctx` command: shows a campaign without Snakemake."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from longctx import __version__
from longctx.errors import escape_what_cannot_be_shown
from longctx.progress.watch import watch


def main(arguments: Sequence[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="longctx", description=__doc__)
    top.add_argument("--version", action="version", version=f"longctx {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shown = "points done, tokens prefilled, rate, ETA"
    more = f"Show where a campaign stands, from R/status.json: {shown}."
    show = commands.add_parser("watch", help=f"show where a campaign stands: {shown}", description=more)
    show.add_argument("results", type=Path, metavar="R", help="the campaign's results folder, such as results/")
    show.add_argument("--once", action="store_true", help="print it once; exit 1 where there is nothing")
    show.add_argument("--interval", type=_seconds, default=1.0, metavar="S", help="seconds between looks (default 1)")
    options = top.parse_args(arguments)
    escape_what_cannot_be_shown()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        return watch(options.results, once=options.once, interval_s=options.interval)
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600 seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
