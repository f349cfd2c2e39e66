"""The status file: a campaign's state for people and programs outside Snakemake.

R/status.json: {format, campaign, run: {pid, start, boot, host}, points: {point: {state, reason}}, current: {point:
{phase, tokens_done, …, pid, start, boot, host, updated_at}}}. A point is 'mode/length/pass'. Several writers (SLURM
nodes) may share it: each changes only its own point, under a lock. It is disposable: losing it, or failing to write
it, never harms a measurement.
"""

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from longctx.processes.process_identity import this_process, writer_gone
from longctx.redaction import encodable, printable
from longctx.storage.atomic import replacing
from longctx.storage.locks import LockFile

FORMAT = 1
State = Literal["running", "done", "failed", "interrupted"]
SHORTEST_INTERVAL_S = 0.5


def read_status(path: Path) -> dict[str, Any] | None:
    """Return the status file's content, or None where there is none that can be read."""
    with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
        content: dict[str, Any] = orjson.loads(path.read_bytes())
        if content["format"] == FORMAT and isinstance(content["points"], dict) and isinstance(content["current"], dict):
            return content
    return None


def note_run(path: Path, campaign: str, points: Sequence[str], done: Collection[str]) -> None:
    """Write that this process is at work on a campaign, and which of its points are done."""
    with contextlib.suppress(OSError), _changing(path, campaign, points) as status:
        for point, entry in status["points"].items():
            if point in done:
                status["points"][point] = {"state": "done"}
            elif entry.get("state") not in ("failed", "interrupted"):
                status["points"][point] = {"state": "waiting"}
        status["run"] = this_process()


@contextlib.contextmanager
def _changing(path: Path, campaign: str, points: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the file's content for these points, those whose writer has ended interrupted; put it in place whole."""
    with LockFile(path.with_name(f".{path.name}.lock")) as lock:
        lock.take(math.inf)
        status = read_status(path) or {"points": {}, "current": {}}
        gone = {point: {"state": "interrupted"} for point, entry in status["current"].items() if writer_gone(entry)}
        known = status["points"] | gone
        status["points"] = {point: known.get(point, {"state": "waiting"}) for point in points}
        status["current"] = {point: entry for point, entry in status["current"].items() if point not in gone}
        status |= {"format": FORMAT, "campaign": campaign, "updated_at": time.time()}
        yield status
        with replacing(path, fsync=False) as temporary:
            temporary.write_bytes(orjson.dumps(encodable(status), option=orjson.OPT_INDENT_2))


@dataclass
class StatusWriter:
    """Writes one point's part of the status file."""

    path: Path
    campaign: str
    expected: Sequence[str]
    point: str
    _next: float = -math.inf
    _fields: dict[str, Any] = field(default_factory=this_process)

    def update(self, **fields: Any) -> None:
        """Change what the point's entry says; a new `phase` is written at once and drops the old phase's numbers."""
        if "phase" in fields:
            keep = ("pid", "start", "boot", "host", "log_line")
            self._fields = {name: self._fields[name] for name in keep if name in self._fields}
            self._fields["phase_started_at"] = time.time()
        self._fields |= {name: _shown(value) for name, value in fields.items()}
        if "phase" in fields or time.monotonic() >= self._next:
            self._next = time.monotonic() + SHORTEST_INTERVAL_S
            self.write("running")

    def write(self, state: State, reason: str | None = None) -> None:
        """Write the point's state, and while it is running what `update` was told."""
        with contextlib.suppress(OSError), _changing(self.path, self.campaign, self.expected) as status:
            status["points"][self.point] = {"state": state} | ({"reason": printable(reason)} if reason else {})
            status["current"].pop(self.point, None)
            if state == "running":
                status["current"][self.point] = self._fields | {"updated_at": time.time()}


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value
