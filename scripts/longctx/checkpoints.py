"""Prefill checkpoints: where vLLM offloads KV blocks while a prefill runs, and what a resumed prefill really took."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longctx.config import Campaign, Point


def folder(campaign: Campaign, points: Sequence[Point]) -> Path | None:
    """The folder that holds one server's checkpoints, or None where the campaign has none."""
    if not campaign.raw["checkpoint"]:
        return None
    name = points[0].name.replace("/", "-") if len(points) == 1 else points[0].mode
    return (Path(campaign.raw["checkpoint"]["dir"]).expanduser() / "longctx" / campaign.name / name).absolute()


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


def remove(path: Path) -> None:
    """Delete a finished point's checkpoint; a damaged tree is no reason to fail."""
    shutil.rmtree(path, ignore_errors=True)


def stitch(earlier: Sequence[dict[str, Any]], resumed_from: int, prefill_s: float | None) -> dict[str, float | None]:
    """Return the cold prefill time put together from both attempts, with its error bound, in seconds.

    time = when the killed attempt had done `resumed_from` tokens (its progress curve, interpolated) + the resumed
    attempt's prefill. Error bound = the gap between the samples around that moment, since tokens are counted in steps.
    The resumed attempt's time includes reading the checkpoint, so the true cold time is at most the sum.
    """
    curve = [(s["elapsed_s"], s["tokens_done"]) for s in earlier if s.get("tokens_done") is not None]
    if prefill_s is None or len(curve) < 2:
        return {"stitched_prefill_s": None, "stitched_error_s": None}
    times, tokens = np.array(curve, dtype=float).T
    after = int(np.searchsorted(tokens, resumed_from))
    if after >= len(tokens):
        # More blocks reached the disk than the last sample saw: the kill came at most one sampling gap later.
        reached_s, error_s = times[-1], times[-1] - times[-2]
    else:
        reached_s = float(np.interp(resumed_from, tokens, times))
        error_s = times[after] - times[max(after - 1, 0)]
    return {"stitched_prefill_s": float(reached_s + prefill_s), "stitched_error_s": float(error_s)}
