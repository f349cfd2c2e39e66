#!/usr/bin/env python3
"""Compare a campaign with other runs; exits 3 on a significant slowdown beyond the threshold, for release gates.

Either side may be a summary.parquet, a summary.csv or a published .csv (longctx.compare says which columns).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from longctx import compare, config, tables
from longctx.compare import Comparison
from longctx.errors import ConfigError, LongctxError
from longctx.lengths import format_length

SLOWER = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", type=Path, help="campaign: its summary, compare and compare_threshold")
    parser.add_argument("--ours", type=Path, help="default: the campaign's summary.parquet")
    parser.add_argument("--against", type=Path, action="append", default=[], help="repeatable; default: compare")
    parser.add_argument("--threshold", type=float, help="slowdown that counts, as a share; default: 0.03")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the intervals")
    parser.add_argument("--per-gpu", action="store_true", help="compare GPU-seconds and tok/s per GPU")
    parser.add_argument("--strict", action="store_true", help="also fail on slowdowns that one run cannot prove")
    parser.add_argument("--out", type=Path, help="write the ratios as Parquet")
    args = parser.parse_args()
    campaign = config.load(args.config_file) if args.config_file else None
    ours: Path | None = args.ours or (campaign.results / "summary.parquet" if campaign else None)
    against = args.against or ([Path(path) for path in campaign.raw["compare"]] if campaign else [])
    if ours is None or not against:
        raise ConfigError("config key compare: nothing to compare with; list runs there or give --against FILE")
    threshold = args.threshold or (float(campaign.raw["compare_threshold"]) if campaign else 0.03)
    mine = compare.read_curve(ours)
    found = [
        compare.compare(
            mine, compare.read_curve(path), threshold=threshold, confidence=args.confidence, normalise=args.per_gpu
        )
        for path in against
    ]
    show(found)
    if args.out:
        tables.write_rows(args.out, tables.COMPARISON, compare.rows_of(found), campaign.labels if campaign else None)
    failed = any(c.having("slower") or (args.strict and c.slower_unproven()) for c in found)
    return SLOWER if failed else 0


def show(found: Sequence[Comparison]) -> None:
    """Print a line per ratio, then the verdict."""
    for comparison in found:
        print(f"{comparison.ours.name} / {comparison.theirs.name}{' per GPU' if comparison.per_gpu else ''}")
        for row in comparison.rows:
            if row.ratio is not None:
                name = f"{row.mode} {compare.METRICS[row.metric]}"
                ratio = f"{row.ratio.value:8.3f}  {interval(row):<16}  {row.verdict}"
                print(f"  {name:<22} {format_length(row.length):>7}  {ratio}")
    print(compare.verdict_sentence(found))


def interval(row: compare.Compared) -> str:
    low, high = (row.ratio.low, row.ratio.high) if row.ratio else (None, None)
    return "(no spread)" if low is None else f"[{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LongctxError as error:
        sys.exit(f"error: {error}")
