"""GPU memory: wait until an earlier server has given it back."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from longctx.errors import ServerError
from longctx.processes.process_identity import boot_id
from longctx.serve.machine.gpus import visible_gpus
from longctx.storage.atomic import write_atomic

TOLERANCE_BYTES = 1 << 30
LIMIT_S = 120.0
POLL_S = 0.5
LEVEL_FILE = "gpu-level.json"


def used_bytes(env: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return the memory in use by GPU index, of those visible through `env`."""
    return {str(gpu.index): gpu.used_bytes for gpu in visible_gpus(env) if gpu.used_bytes is not None}


def taken_bytes(before: Mapping[str, int]) -> int | None:
    """Return what the fullest GPU holds more than `before`, in bytes; None where no GPU's memory can be read."""
    now = used_bytes({})
    return max((now[index] - was for index, was in before.items() if index in now), default=None)


@contextlib.contextmanager
def resting_level(run_dir: Path, env: Mapping[str, str], limit_s: float = LIMIT_S) -> Iterator[dict[str, int]]:
    """Note the memory in use before the block and wait after it until it is back; the next start checks again.

    Yields that memory in bytes by GPU index.
    """
    before = used_bytes(env)
    path = run_dir / LEVEL_FILE
    if before:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"boot": boot_id(), "used": before}).encode())
    try:
        yield before
    finally:
        if before and not _wait(before, limit_s):
            path.unlink(missing_ok=True)


def wait_until_free(run_dir: Path, report: Callable[[str], None], limit_s: float = LIMIT_S) -> None:
    """Wait until the GPUs that the last server here used are back at their level; ServerError past the limit.

    report is told what is missing, at each look. That of an earlier boot says nothing: memory goes with its process.
    """
    path = run_dir / LEVEL_FILE
    try:
        level = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if level.get("boot") == boot_id() and (high := _wait(level["used"], limit_s, report)):
        raise ServerError(
            f"GPU memory did not come back within {limit_s:g} s after the last server: {_listed(high)}. "
            f"End the processes that hold it, or delete {path} if they are meant to run",
            "server_start",
        )
    path.unlink(missing_ok=True)


def _wait(
    level: Mapping[str, int], limit_s: float, report: Callable[[str], None] | None = None
) -> list[tuple[str, int, int]]:
    """Return [] once memory is back, or the GPUs that are above their level at the limit."""
    deadline = time.monotonic() + limit_s
    while (high := _above(level)) and time.monotonic() <= deadline:
        if report:
            report(f"waiting for GPU memory of the last server: {_listed(high)}")
        time.sleep(POLL_S)
    return high


def _above(level: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return (index, level, now), in bytes, of the GPUs that hold more than their level."""
    now = used_bytes({})
    return [(i, was, now[i]) for i, was in level.items() if now.get(i, 0) > was + TOLERANCE_BYTES]


def _listed(high: list[tuple[str, int, int]]) -> str:
    return "; ".join(f"GPU {i} holds {now / 2**30:.1f} GiB, {was / 2**30:.1f} before" for i, was, now in high)
