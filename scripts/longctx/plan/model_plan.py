"""The plan of a model and a GPU that are named on the command line, without a campaign."""

import argparse
import sys
from collections.abc import Mapping
from typing import NoReturn

from longctx.campaign.mode import COLD_MODE
from longctx.errors import LongctxError
from longctx.lengths import ladder, parse_length
from longctx.model.geometry import Geometry
from longctx.model.kv_format import KV_FORMATS
from longctx.model.reader import read_geometry
from longctx.plan.campaign_plan import CampaignPlan
from longctx.plan.forecasting.forecast import Estimate
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.parallel_splits import splits
from longctx.plan.planner import plan_points
from longctx.plan.system import AITER_64BIT, Settings, System


class OneSentenceParser(argparse.ArgumentParser):
    """Reports an error in one sentence, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        sys.exit(f"error: {message}")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the options of `plan_model`; those of the recipe are named like the fields of `Settings`."""
    group.add_argument("--gpu", help="a name of resources/hardware/gpus.csv")
    group.add_argument("--count", type=_count, default=1, help="GPUs of the node")
    group.add_argument("--lengths", default="1Ki..64Mi", help="FROM..TO, doubling, or a comma list")
    group.add_argument("--kv-dtype", default="fp8", choices=["auto", *KV_FORMATS], help="of the lengths' table")
    group.add_argument("--tensor", type=_count, help="tensor parallel size; default: the largest that the model allows")
    group.add_argument("--pipeline", type=_count, help="pipeline parallel size; default: 1, or what TP leaves")
    group.add_argument("--decode-context", type=_count, default=1, help="decode context parallel size")
    group.add_argument("--prefill-context", type=_count, default=1, help="prefill context parallel size")
    group.add_argument("--vllm-version", help="whose rules hold; default: the newest that the plan knows")
    group.add_argument("--gpu-memory-utilization", type=_share, default=0.95, help="0 to 1")
    group.add_argument("--batched-tokens", type=_count, default=16384, help="tokens of one prefill chunk")
    headroom_help = "tokens beyond the prompt"
    group.add_argument("--headroom", type=parse_length, default=16384, dest="headroom_tokens", help=headroom_help)
    group.add_argument("--max-new-tokens", type=_count, default=128)
    group.add_argument("--passes", type=_count, default=3)
    group.add_argument("--aiter-version", default=AITER_64BIT, help="ROCm: AITER release in use")
    group.add_argument("--hold", type=parse_length, help="also: how nodes of these GPUs could hold so many tokens")


def plan_model(
    args: argparse.Namespace, measured: Mapping[int, float], sampled: Mapping[int, Estimate] | None = None
) -> CampaignPlan:
    """Return the plan of args.model on the named GPUs: one cold prompt of every length per pass."""
    if args.gpu is None:
        raise LongctxError("--gpu: missing; name a GPU of resources/hardware/gpus.csv, such as H200")
    geometry, hardware = read_geometry(args.model), load_hardware(args.gpu, args.count)
    settings = Settings(**{name: value for name, value in vars(args).items() if name in Settings.__dataclass_fields__})
    first, dots, last = args.lengths.partition("..")
    lengths = ladder(first, last) if dots else [parse_length(part) for part in args.lengths.split(",")]
    system = System(geometry, hardware, _parallelism(args, geometry), settings)
    rows = plan_points(system, [(COLD_MODE, length) for length in lengths], measured=measured, sampled=sampled)
    return CampaignPlan(system, tuple(rows))


def _parallelism(args: argparse.Namespace, geometry: Geometry) -> Parallelism:
    """Return the split asked for; without --tensor the one of all GPUs with the largest that the model allows."""
    if args.tensor is not None:
        return Parallelism(args.tensor, args.pipeline or 1, args.decode_context, 1, args.prefill_context)
    for split in splits(geometry, args.count):
        if args.pipeline in (None, split.pipeline) and args.decode_context == split.decode_context:
            return split
    asked = f"--decode-context {args.decode_context}{f' and --pipeline {args.pipeline}' if args.pipeline else ''}"
    no_split = f"this model has no split of {args.count} GPUs with {asked}"
    raise LongctxError(f"--count: {no_split}; change one of them, or name --tensor")
