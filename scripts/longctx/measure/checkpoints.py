"""Prefill checkpoints: where vLLM offloads KV blocks while a prefill runs, and what a resumed prefill really took."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longctx.campaign.campaign import Campaign
from longctx.campaign.point import Point


def checkpoint_folder(campaign: Campaign, points: Sequence[Point]) -> Path | None:
    """The folder that holds one server's checkpoints, or None where the campaign has none.

    Its name carries the recipe: vLLM knows blocks by their tokens alone, so those of another model or precision would
    be taken for ours.
    """
    if not campaign.raw["checkpoint"]:
        return None
    name = points[0].name.replace("/", "-") if len(points) == 1 else points[0].mode
    top = Path(campaign.raw["checkpoint"]["dir"]).expanduser() / "longctx" / campaign.name
    return (top / f"{name}@{campaign.recipe_hash(points[0].mode)}").absolute()


def remove_foreign(path: Path) -> None:
    """Delete what other recipes left for the same point."""
    for other in path.parent.glob(f"{path.name.partition('@')[0]}@*"):
        if other != path:
            remove_checkpoint(other)


def disk_shortage(path: Path, need_bytes: int) -> str | None:
    """Return a sentence where the disk under `path` cannot hold `need_bytes` beside what is there, else None."""
    path.mkdir(parents=True, exist_ok=True)
    there = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    free = shutil.disk_usage(path).free
    if free + there >= need_bytes:
        return None
    return (
        f"the checkpoint folder {path} needs {need_bytes / 2**30:.1f} GiB and its disk has {free / 2**30:.1f} GiB free;"
        " free space, choose another checkpoint.dir or remove checkpoint"
    )


def remove_checkpoint(path: Path) -> None:
    """Delete a finished point's checkpoint; a damaged tree is no reason to fail."""
    shutil.rmtree(path, ignore_errors=True)


@dataclass(slots=True)
class Attempt:
    """One attempt at a request that gave no row: `samples` of its progress; `failed`, or else it was killed."""

    samples: list[Mapping[str, Any]] = field(default_factory=list)
    failed: bool = False

    @property
    def reached(self) -> int:
        """Tokens done by the samples, 0 where none shows."""
        return max((sample["tokens_done"] or 0 for sample in self.samples), default=0)


def is_stuck(attempts: Sequence[Attempt]) -> bool:
    """Whether a checkpoint seems damaged: twice in a row an attempt failed and came no further than the one before."""
    before, *last = attempts[-3:] or [Attempt()]
    return len(last) == 2 and all(attempt.failed and attempt.reached <= before.reached for attempt in last)


def stitch(
    attempts: Sequence[Attempt], resumed_from: int, prefill_s: float | None, compiling_s: float = 0.0
) -> dict[str, float | int | None]:
    """Return the cold prefill time put together from all attempts, with its error bound, in seconds.

    Every attempt's progress curve says when it had done what the next one took back; the next one's clock goes on from
    there. The last attempt's prefill adds the rest:

    time = sum over killed attempts of (when it had the tokens that the next one began with - when it showed its own
    first ones; 0 for the first attempt) + the last attempt's prefill.

    Error bound = the gaps between the samples around those moments, since tokens are counted in steps, and for an
    attempt between two others the time until its first sample; and `compiling_s`, which kernels compiled in the last
    attempt may have taken. The resumed attempts' times include reading the checkpoint, so the true cold time is at most
    the sum.
    """
    found: dict[str, float | int | None] = {
        "resumed_from": resumed_from,
        "stitched_prefill_s": None,
        "stitched_error_s": None,
    }
    curves = [curve for curve in map(_curve, attempts) if len(curve) > 1]
    if prefill_s is None or not curves:
        return found
    total_s, error_s, wanted = prefill_s, compiling_s, resumed_from
    for number, curve in reversed(list(enumerate(curves))):
        if number and wanted <= curve[0][1]:
            continue  # it had not got beyond what it took back itself
        reached_s, gap_s = _when(curve, wanted)
        start_s = curve[0][0] if number else 0.0
        total_s, error_s, wanted = total_s + reached_s - start_s, error_s + gap_s + start_s, curve[0][1]
    return found | {"stitched_prefill_s": total_s, "stitched_error_s": error_s}


def _curve(attempt: Attempt) -> list[tuple[float, int]]:
    """Return (seconds, tokens) where tokens were seen; they never fall."""
    return [(sample["elapsed_s"], sample["tokens_done"]) for sample in attempt.samples if sample["tokens_done"]]


def _when(curve: Sequence[tuple[float, int]], wanted: int) -> tuple[float, float]:
    """Return when a prefill had done `wanted` tokens, and the gap between the samples around that moment, s."""
    times, tokens = np.array([(0.0, 0), *curve], dtype=float).T
    after = int(np.searchsorted(tokens, wanted))
    if after >= len(tokens):
        # More blocks reached the disk than the last sample saw: the kill came at most one sampling gap later.
        return float(times[-1]), float(times[-1] - times[-2])
    return float(np.interp(wanted, tokens, times)), float(times[after] - times[max(after - 1, 0)])
