#!/usr/bin/env python3
"""Compare a campaign with other runs; exits 3 where a release gate should stay shut: on a significant slowdown beyond
the threshold, where a value is lost that the other run has, or where nothing could be compared. Either side may be a
summary.parquet, a summary.csv or a published .csv (docs/compare.md says which columns).
"""

import argparse
import contextlib
import math
from functools import partial
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import ConfigError, run_program
from longctx.results.compare.comparison import compare_files, comparison_rows, to_text
from longctx.storage import parquet, schemas

SHUT = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, share = parser.add_argument, partial(share_below, math.inf)
    add("--config-file", type=Path, help="campaign: its summary, compare and compare_threshold")
    add("--ours", type=Path, help="default: the campaign's summary.parquet")
    add("--against", type=Path, action="append", default=[], help="repeatable; default: compare")
    add("--threshold", type=share, help="slowdown that counts, as a share; default: compare_threshold or 0.03")
    add("--confidence", type=partial(share_below, 1.0), default=0.95, help="of the intervals, as a share")
    add("--per-gpu", action="store_true", help="compare GPU-seconds and tok/s per GPU")
    add("--strict", action="store_true", help="also fail on slowdowns that too few runs cannot prove")
    add("--out", type=Path, help="write the ratios as Parquet")
    args = parser.parse_args()
    campaign = load(args.config_file) if args.config_file else None
    ours: Path | None = args.ours or (campaign.results / "summary.parquet" if campaign else None)
    against = args.against or [Path(path) for path in (campaign.config.compare if campaign else ())]
    if ours is None or not against:
        raise ConfigError("config key compare: nothing to compare with; list runs there or give --against FILE")
    threshold = args.threshold or (float(campaign.config.compare_threshold) if campaign else 0.03)
    found = compare_files(ours, against, threshold=threshold, confidence=args.confidence, normalise=args.per_gpu)
    print(to_text(found))
    if args.out:
        parquet.write_rows(args.out, schemas.COMPARISON, comparison_rows(found), campaign.labels if campaign else None)
    return SHUT if any(comparison.shuts(args.strict) for comparison in found) else 0


def share_below(most: float, text: str) -> float:
    """Return the number in `text`, which is above 0 and below `most`."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < most:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not above 0" + (f" and below {most:g}" if most < 2 else ""))


if __name__ == "__main__":
    run_program(main)
