"""Ends what earlier runs of ours left behind, and nothing else."""

import contextlib
import functools
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longctx.errors import ServerError
from longctx.processes import reaper
from longctx.processes.process_identity import boot_id, marked, writer_gone

GRACE_S = 10.0
REAPER_PATIENCE_S = 45.0  # the grace, TERM and KILL of the reaper, and some


def end_leftovers(run_dir: Path) -> list[str]:
    """End what earlier runs of ours left behind in `run_dir`; return a sentence for each. Live runs are left alone.

    A record of another host is left for that host; one of an earlier boot has no processes. ServerError where a
    process survives SIGKILL.
    """
    sentences = []
    for path in sorted(run_dir.glob("server-*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # just removed by its reaper, or torn by a full disk: nothing provable in it
        if not writer_gone(record | {"pid": record["owner"], "start": record["owner_start"]}):
            continue
        if record["boot"] == boot_id():
            sentences += _end(record, path)
        else:
            reaper.run_stop_commands(record["stop_commands"])  # a container survives a reboot, stopped
            reaper.remove_sockets(record.get("sockets"))
            path.unlink(missing_ok=True)
    return sentences


def _end(record: dict[str, Any], path: Path) -> list[str]:
    """End one dead owner's server, giving its own reaper time to do so first."""
    deadline = time.monotonic() + REAPER_PATIENCE_S
    while path.exists() and _reaper_works(record) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not path.exists():
        return []
    pids = ", ".join(map(str, sorted(_running(record)))) or "none"
    if left := end_unreaped(path, record):
        raise ServerError(f"processes {left} of an earlier run survive SIGKILL; end them or restart the machine")
    return [f"ended the server of an earlier run (started by process {record['owner']}; processes {pids})"]


def end_unreaped(path: Path, record: Mapping[str, Any]) -> list[int]:
    """End a server whose reaper may be gone, and remove what it leaves; return the processes that resist SIGKILL."""
    stop_commands = record["stop_commands"] if path.exists() else []
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(path.read_text(encoding="utf-8"))  # with what its reaper added
    memory = reaper.shared_memory(_running(record)) | record.get("shared_memory", {})
    if record["pid"]:
        reaper.send(record["pid"], record["start"], signal.SIGTERM)
    reaper.run_stop_commands(stop_commands)
    find = functools.partial(marked, record["id"])
    reaper.end_processes(find, signal.SIGTERM, GRACE_S)
    reaper.end_processes(find, signal.SIGKILL, 20.0)
    if left := sorted(find()):
        return left
    reaper.free_shared_memory(memory)
    reaper.remove_sockets(record.get("sockets"))
    path.unlink(missing_ok=True)
    return []


def _running(record: Mapping[str, Any]) -> dict[int, int]:
    """Return {pid: start_ticks} of a record's processes; its server may have overwritten the mark."""
    alive = record["pid"] and reaper.start_ticks(record["pid"]) == record["start"]
    return marked(record["id"]) | ({record["pid"]: record["start"]} if alive else {})


def _reaper_works(record: Mapping[str, Any]) -> bool:
    with contextlib.suppress(OSError):
        return record["id"].encode() in Path(f"/proc/{record['reaper']}/cmdline").read_bytes()
    return False
