"""Plan before anything runs: which lengths fit, what limits them, how long they take. Needs no GPU and no weights.

For a campaign: --config-file C.json --out plan.parquet --text plan.txt --figure kv_footprint.png
For a model and a GPU: --model config.json --gpu H200 --count 1 --lengths 1Ki..64Mi --kv-dtype fp8
"""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from longctx.campaign.campaign import load
from longctx.errors import LongctxError
from longctx.lengths import format_length, ladder, parse_length
from longctx.model.geometry import KV_DTYPE_BYTES, Geometry
from longctx.model.reader import read_geometry
from longctx.plan import text
from longctx.plan.campaign_plan import CampaignPlan, measured_ttft, plan_campaign
from longctx.plan.fit import AITER_64BIT, Settings
from longctx.plan.hardware import Hardware, Parallelism, load_hardware
from longctx.plan.planner import plan_points
from longctx.plan.splits import hold_table, nodes_table, splits
from longctx.plan.text import lengths_table
from longctx.report.figures import kv_cache
from longctx.storage import atomic, parquet, schemas


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"error: {message}")


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def share(text: str) -> float:
    """Return a number above 0 and up to 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config-file", type=Path, help="a campaign's configuration")
    what.add_argument(
        "--model", help="config.json, its folder, a cached Hugging Face id, or a name of resources/models"
    )
    parser.add_argument(
        "--measured", type=Path, help="summary.parquet of this campaign: its lengths improve the forecast"
    )
    parser.add_argument("--out", type=Path, help="write the rows as Parquet")
    parser.add_argument("--text", type=Path, help="write the text instead of printing it")
    parser.add_argument("--figure", type=Path, help="write Figure 1 as PNG and SVG")
    alone = parser.add_argument_group("with --model")
    alone.add_argument("--gpu", help="a name of resources/hardware/gpus.csv")
    alone.add_argument("--count", type=count, default=1, help="GPUs of the node")
    alone.add_argument("--lengths", default="1Ki..64Mi", help="FROM..TO, doubling, or a comma list")
    alone.add_argument("--kv-dtype", default="fp8", choices=["auto", *KV_DTYPE_BYTES], help="of the lengths' table")
    alone.add_argument("--tensor", type=count, help="tensor parallel size; default: the largest that the model allows")
    alone.add_argument("--pipeline", type=count, help="pipeline parallel size; default: 1, or what TP leaves")
    alone.add_argument("--decode-context", type=count, default=1, help="decode context parallel size")
    alone.add_argument("--gpu-memory-utilization", type=share, default=0.95, help="0 to 1")
    alone.add_argument("--batched-tokens", type=count, default=16384, help="tokens of one prefill chunk")
    alone.add_argument("--headroom", type=parse_length, default=16384, help="tokens beyond the prompt")
    alone.add_argument("--max-new-tokens", type=count, default=128)
    alone.add_argument("--passes", type=count, default=3)
    alone.add_argument("--aiter-version", default=AITER_64BIT, help="ROCm: AITER release in use")
    alone.add_argument("--hold", type=parse_length, help="also: how nodes of these GPUs could hold so many tokens")
    return parser.parse_args()


def parse_lengths(text: str) -> list[int]:
    """Return the lengths of '1Ki..64Mi' or '64Ki,1Mi'."""
    if ".." in text:
        first, last = text.split("..", 1)
        return ladder(first, last)
    return [parse_length(part) for part in text.split(",")]


def standalone(args: argparse.Namespace) -> CampaignPlan:
    """Return the plan of a model on the named GPUs, every length once per pass."""
    if args.gpu is None:
        raise LongctxError("--gpu: missing; name a GPU of resources/hardware/gpus.csv, such as H200")
    geometry, hardware = read_geometry(args.model), load_hardware(args.gpu, args.count)
    settings = Settings(
        kv_dtype=args.kv_dtype,
        gpu_memory_utilization=args.gpu_memory_utilization,
        batched_tokens=args.batched_tokens,
        max_new_tokens=args.max_new_tokens,
        headroom_tokens=args.headroom,
        passes=args.passes,
        aiter_version=args.aiter_version,
    )
    parallelism = split_of(args, geometry)
    lengths = parse_lengths(args.lengths)
    rows = plan_points(
        geometry, hardware, parallelism, [("prefill", n) for n in lengths], settings, measured=read_measured(args)
    )
    return CampaignPlan(geometry, hardware, parallelism, settings, tuple(lengths), tuple(rows))


def split_of(args: argparse.Namespace, geometry: Geometry) -> Parallelism:
    """Return the split asked for; without --tensor the one of all GPUs with the largest that the model allows."""
    if args.tensor is not None:
        return Parallelism(args.tensor, args.pipeline or 1, args.decode_context)
    for split in splits(geometry, args.count):
        if args.pipeline in (None, split.pipeline) and args.decode_context == split.decode_context:
            return split
    raise LongctxError(
        f"--count: this model has no split of {args.count} GPUs with --decode-context {args.decode_context}"
        f"{f' and --pipeline {args.pipeline}' if args.pipeline else ''}; change one of them, or name --tensor"
    )


def read_measured(args: argparse.Namespace) -> dict[int, float]:
    """Return the measured TTFT per length; a campaign that has no summary yet has none."""
    if args.measured is None or not args.measured.exists():
        return {}
    return measured_ttft(parquet.read_rows(args.measured, schemas.SUMMARY))


def text_of(plan: CampaignPlan, hold: int | None) -> str:
    """Return everything that is printed."""
    blocks = [
        text.heading(plan.geometry, plan.hardware, plan.parallelism, plan.settings),
        [*text.lengths_table(plan.rows), *text.position_note(plan.geometry, max(plan.lengths))],
    ]
    if isinstance(plan.hardware, Hardware):
        blocks.append(text.hold_lines(hold_table(plan.geometry, plan.hardware, plan.settings)))
        if hold:
            rows = nodes_table(plan.geometry, plan.hardware, plan.settings, hold)
            blocks.append(text.nodes_lines(hold, plan.hardware, rows))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def fitting(plan: CampaignPlan) -> str:
    """Return which lengths cannot fit, in a few words."""
    too_long = sorted({row["length"] for row in plan.rows if row["fits"] is False})
    return f"{', '.join(map(format_length, too_long))} cannot fit" if too_long else "all lengths may run"


def main() -> None:
    args = parse_arguments()
    campaign = load(args.config_file) if args.config_file else None
    plan = plan_campaign(campaign, read_measured(args)) if campaign else standalone(args)
    text = text_of(plan, args.hold)
    if args.text:
        atomic.write_atomic(args.text, text.encode())
        hours = next(line for line in lengths_table(plan.rows) if line.startswith("campaign: "))
        print(f"plan: {fitting(plan)}; {hours} ({args.text})", file=sys.stderr)
    else:
        print(text, end="")
    if args.out:
        labels = {"model": plan.geometry.name} | (campaign.labels if campaign else {})
        parquet.write_rows(args.out, schemas.PLAN, plan.rows, labels)
    if args.figure:
        synthetic = campaign is not None and campaign.synthetic_weights
        kv_cache.draw(
            plan.geometry,
            plan.hardware,
            plan.parallelism,
            plan.settings,
            plan.lengths,
            args.figure.with_suffix(""),
            synthetic_weights=synthetic,
        )


if __name__ == "__main__":
    try:
        main()
    except (LongctxError, OSError) as error:
        sys.exit(f"error: {error}")
