"""A small file that says where a campaign stands, for people and programs outside Snakemake.

R/status.json: {format, campaign, points: {point: {state, reason}}, current: {point: {phase, tokens_done, …, pid,
host, updated_at}}}. A point is 'mode/length/pass'. Several writers (SLURM nodes) may share it: each changes only
its own point, under a lock. It is disposable: losing it, or failing to write it, never harms a measurement.
"""

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import orjson
import psutil

FORMAT = 1
STATES = ("waiting", "running", "done", "failed", "interrupted")
SHORTEST_INTERVAL_S = 0.5


def read_status(path: Path | str) -> dict[str, Any] | None:
    """Return the status file's content, or None where there is none that can be read."""
    try:
        content = orjson.loads(Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else None


def writer_gone(entry: dict[str, Any]) -> bool | None:
    """Return whether the process that wrote a current entry has ended; None where it runs on another host."""
    if entry.get("host") != platform.node():
        return None
    try:
        process = psutil.Process(entry["pid"])
        return bool(abs(process.create_time() - entry["pid_started"]) > 1 or process.status() == psutil.STATUS_ZOMBIE)
    except (psutil.Error, KeyError):
        return True


class StatusWriter:
    """Writes one point's part of the status file. As a context manager it marks a point left open interrupted."""

    def __init__(
        self,
        path: Path | str,
        *,
        campaign: str,
        point: str,
        expected: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._campaign, self._point, self._expected = Path(path), campaign, point, tuple(expected)
        self._clock, self._next = clock, -float("inf")
        self._open = False
        self._fields: dict[str, Any] = {
            "pid": os.getpid(),
            "pid_started": psutil.Process().create_time(),
            "host": platform.node(),
        }

    def __enter__(self) -> Self:
        self.update(phase="start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.finish("interrupted")

    def update(self, **fields: Any) -> None:
        """Change what the point's entry says; a new `phase` is written at once and drops the old phase's numbers."""
        self._open = True
        if "phase" in fields:
            keep = ("pid", "pid_started", "host", "log_line")
            self._fields = {name: self._fields[name] for name in keep if name in self._fields}
            self._fields["phase_started_at"] = time.time()
        self._fields |= fields
        if "phase" in fields or self._clock() >= self._next:
            self._next = self._clock() + SHORTEST_INTERVAL_S
            self._write("running")

    def finish(self, state: str, reason: str | None = None) -> None:
        """Close the point as 'done', 'failed' or 'interrupted'."""
        if state not in STATES:
            raise ValueError(f"state {state!r} is none of {', '.join(STATES)}")
        self._open = False
        self._write(state, reason)

    def _write(self, state: str, reason: str | None = None) -> None:
        with contextlib.suppress(OSError), self._locked():
            status = read_status(self._path) or {"points": {}, "current": {}}
            status |= {"format": FORMAT, "campaign": self._campaign, "updated_at": time.time()}
            points, current = status["points"], status["current"]
            if self._expected:  # those that an earlier configuration had are history
                points = {point: points.get(point, {"state": "waiting"}) for point in self._expected}
                status["points"] = points
            for point in [name for name, entry in current.items() if writer_gone(entry)]:
                del current[point]
                points[point] = {"state": "interrupted"}
            points[self._point] = {"state": state} | ({"reason": reason} if reason else {})
            current.pop(self._point, None)
            if state == "running":
                current[self._point] = self._fields | {"updated_at": time.time()}
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            temporary.write_bytes(orjson.dumps(status, option=orjson.OPT_INDENT_2))
            temporary.replace(self._path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_name(f".{self._path.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
