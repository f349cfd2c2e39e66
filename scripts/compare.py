#!/usr/bin/env python3
"""Compare a campaign with other runs; exits 3 where a release gate should stay shut: on a significant slowdown beyond
the threshold, where a value is lost that the other run has, or where nothing could be compared (docs/compare.md).

Either side may be a summary.parquet, a summary.csv or a published .csv (longctx.compare says which columns).
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from longctx.campaign.campaign import load
from longctx.errors import ConfigError, LongctxError
from longctx.lengths import format_length
from longctx.results import curves
from longctx.results.comparison import Compared, Comparison, cautions, compare, comparison_rows, verdict_sentence
from longctx.results.curves import METRICS
from longctx.storage import parquet, schemas

SHUT = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-file", type=Path, help="campaign: its summary, compare and compare_threshold")
    parser.add_argument("--ours", type=Path, help="default: the campaign's summary.parquet")
    parser.add_argument("--against", type=Path, action="append", default=[], help="repeatable; default: compare")
    parser.add_argument(
        "--threshold",
        type=_share(math.inf),
        help="slowdown that counts, as a share; default: compare_threshold or 0.03",
    )
    parser.add_argument("--confidence", type=_share(1.0), default=0.95, help="of the intervals, as a share")
    parser.add_argument("--per-gpu", action="store_true", help="compare GPU-seconds and tok/s per GPU")
    parser.add_argument("--strict", action="store_true", help="also fail on slowdowns that too few runs cannot prove")
    parser.add_argument("--out", type=Path, help="write the ratios as Parquet")
    args = parser.parse_args()
    campaign = load(args.config_file) if args.config_file else None
    ours: Path | None = args.ours or (campaign.results / "summary.parquet" if campaign else None)
    against = args.against or ([Path(path) for path in campaign.raw["compare"]] if campaign else [])
    if ours is None or not against:
        raise ConfigError("config key compare: nothing to compare with; list runs there or give --against FILE")
    threshold = args.threshold or (float(campaign.raw["compare_threshold"]) if campaign else 0.03)
    mine, others = curves.read_curve(ours), [curves.read_curve(path) for path in against]
    if args.per_gpu and (unknown := [curve.source for curve in (mine, *others) if not curve.gpu_count]):
        raise ConfigError(f"--per-gpu: {', '.join(unknown)} does not say how many GPUs it ran on; compare without it")
    found = [
        compare(mine, other, threshold=threshold, confidence=args.confidence, normalise=args.per_gpu)
        for other in others
    ]
    show(found)
    if args.out:
        parquet.write_rows(args.out, schemas.COMPARISON, comparison_rows(found), campaign.labels if campaign else None)
    return SHUT if any(comparison.shuts(args.strict) for comparison in found) else 0


def _share(most: float) -> Callable[[str], float]:
    """Return a reader of numbers above 0 and below `most`."""

    def read(text: str) -> float:
        value = float(text)
        if not 0 < value < most:
            raise argparse.ArgumentTypeError(f"{text} is not above 0" + (f" and below {most:g}" if most < 2 else ""))
        return value

    return read


def show(found: Sequence[Comparison]) -> None:
    """Print a line per ratio, then the verdict."""
    for comparison in found:
        print(f"{comparison.ours.name} / {comparison.theirs.name}{' per GPU' if comparison.per_gpu else ''}")
        for text in cautions(comparison):
            print(f"  {text}")
        for row in comparison.rows:
            if row.ratio is not None or row.verdict == "lost":
                name = f"{row.mode} {METRICS[row.metric]}"
                ratio = f"{row.ratio.value:8.3f}  {interval(row):<16}" if row.ratio else f"{'':26}"
                print(f"  {name:<22} {format_length(row.length):>7}  {ratio}  {row.verdict}")
    print(verdict_sentence(found))


def interval(row: Compared) -> str:
    low, high = (row.ratio.low, row.ratio.high) if row.ratio else (None, None)
    return "(no spread)" if low is None else f"[{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
