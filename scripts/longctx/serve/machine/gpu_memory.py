"""GPU memory: wait until an earlier server has given it back."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from longctx.errors import ServerError
from longctx.serve.machine.gpus import visible_gpus

TOLERANCE_BYTES = 1 << 30
LIMIT_S = 120.0
POLL_S = 0.5
LEVEL_FILE = "gpu-level.json"


def used_bytes(env: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return the memory in use by GPU index, of those visible through `env`."""
    return {str(gpu.index): gpu.used_bytes for gpu in visible_gpus(env) if gpu.used_bytes is not None}


@contextlib.contextmanager
def resting_level(run_dir: Path, env: Mapping[str, str], limit_s: float = LIMIT_S) -> Iterator[None]:
    """Note the memory in use before the block and wait after it until it is back; the next start checks again."""
    before = used_bytes(env)
    path = run_dir / LEVEL_FILE
    if before:
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"host": os.uname().nodename, "used": before}))
    try:
        yield
    finally:
        if before and not _wait(before, limit_s):
            path.unlink(missing_ok=True)


def wait_until_free(run_dir: Path, limit_s: float = LIMIT_S) -> None:
    """Wait until the GPUs that the last server here used are back at their level; ServerError past the limit."""
    path = run_dir / LEVEL_FILE
    try:
        level = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    if level["host"] == os.uname().nodename and (high := _wait(level["used"], limit_s)):
        listed = "; ".join(f"GPU {i} holds {now / 2**30:.1f} GiB, {was / 2**30:.1f} before" for i, was, now in high)
        raise ServerError(
            f"GPU memory did not come back within {limit_s:g} s after the last server: {listed}. "
            f"End the processes that hold it, or delete {path} if they are meant to run",
            "server_start",
        )
    path.unlink(missing_ok=True)


def _wait(level: dict[str, int], limit_s: float) -> list[tuple[str, int, int]]:
    """Return [] once memory is back, or (index, level, now) of the GPUs that are above it at the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        now = used_bytes({})
        high = [(i, was, now[i]) for i, was in level.items() if now.get(i, 0) > was + TOLERANCE_BYTES]
        if not high or time.monotonic() > deadline:
            return high
        time.sleep(POLL_S)
