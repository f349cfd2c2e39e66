"""Prefill checkpoints: where vLLM offloads KV blocks while a prefill runs, and the cold time of a resumed prefill."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from longctx.campaign.campaign import Campaign
from longctx.campaign.point import Point


def checkpoint_folder(campaign: Campaign, points: Sequence[Point]) -> Path | None:
    """Return the folder that holds one server's checkpoints, None where the campaign has none."""
    if not campaign.config.checkpoint:
        return None
    name = points[0].name.replace("/", "-") if len(points) == 1 else points[0].mode
    # vLLM knows blocks by their tokens alone, so it would take those of another model or precision for ours.
    top = Path(campaign.config.checkpoint.dir).expanduser() / "longctx" / campaign.name
    return (top / f"{name}@{campaign.recipe_hash(points[0].mode)}").absolute()


def remove_foreign(path: Path) -> None:
    """Delete the checkpoints of other recipes for the same point."""
    for other in path.parent.glob(f"{path.name.partition('@')[0]}@*"):
        if other != path:
            remove_checkpoint(other)


def disk_shortage(path: Path, need_bytes: int) -> str | None:
    """Return a sentence where the disk of `path` cannot hold `need_bytes`, those already in it included, else None."""
    path.mkdir(parents=True, exist_ok=True)
    present = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    free = shutil.disk_usage(path).free
    if free + present >= need_bytes:
        return None
    need, has = (f"{size / 2**30:.1f} GiB" for size in (need_bytes, free))
    remedy = "free space, choose another checkpoint.dir or remove checkpoint"
    return f"the checkpoint folder {path} needs {need} and its disk has {has} free; {remedy}"


def remove_checkpoint(path: Path) -> None:
    """Delete a finished point's checkpoint; a damaged tree is no reason to fail."""
    shutil.rmtree(path, ignore_errors=True)


@dataclass(slots=True)
class Attempt:
    """One attempt at a request that gave no measurement: its progress samples; failed False says it was killed."""

    samples: list[Mapping[str, Any]] = field(default_factory=list)
    failed: bool = False

    @property
    def reached(self) -> int:
        """Tokens done by the last sample that shows any, else 0."""
        return max((sample["tokens_done"] or 0 for sample in self.samples), default=0)


def seems_damaged(attempts: Sequence[Attempt]) -> bool:
    """Return whether a checkpoint seems damaged: the last two attempts failed, no further than the one before them."""
    before, *last = attempts[-3:] or [Attempt()]
    return len(last) == 2 and all(attempt.failed and attempt.reached <= before.reached for attempt in last)


def stitch(
    attempts: Sequence[Attempt], resumed_from: int, prefill_s: float | None, compiling_s: float = 0.0
) -> dict[str, float | int | None]:
    """Return the cold prefill time of all attempts together and its error bound, in seconds, as columns of the row.

    time = sum over killed attempts of (when the progress curve had the tokens that the next one began with - when it
    showed its own first ones; 0 for the first attempt) + the last attempt's prefill, which computed the rest.
    Error bound = the gaps between the samples around those moments, since tokens are counted in steps, and for an
    attempt between two others the time until its first sample; and `compiling_s`, which kernels compiled in the last
    attempt may have taken. The times include reading the checkpoint, so the true cold time is at most the sum.
    """
    moved = ([sample for sample in attempt.samples if sample["tokens_done"]] for attempt in attempts)
    curves = [[(s["elapsed_s"], s["tokens_done"]) for s in samples] for samples in moved if len(samples) > 1]
    if prefill_s is None or not curves:
        return {"resumed_from": resumed_from, "stitched_prefill_s": None, "stitched_error_s": None}
    total_s, error_s, target = prefill_s, compiling_s, resumed_from
    for number, curve in reversed(list(enumerate(curves))):
        if number and target <= curve[0][1]:
            continue  # it computed none of these tokens: it took them back itself
        reached_s, gap_s = _time_at(curve, target)
        start_s = curve[0][0] if number else 0.0
        total_s, error_s, target = total_s + reached_s - start_s, error_s + gap_s + start_s, curve[0][1]
    return {"resumed_from": resumed_from, "stitched_prefill_s": total_s, "stitched_error_s": error_s}


def _time_at(curve: Sequence[tuple[float, int]], target: int) -> tuple[float, float]:
    """Return when a prefill had done `target` tokens, and the gap between the samples around that moment, in s."""
    times, tokens = np.array([(0.0, 0), *curve], dtype=float).T
    after = int(np.searchsorted(tokens, target))
    if after >= len(tokens):
        # More blocks reached the disk than the last sample saw: the kill came at most one sampling gap later.
        return float(times[-1]), float(times[-1] - times[-2])
    return float(np.interp(target, tokens, times)), float(times[after] - times[max(after - 1, 0)])
