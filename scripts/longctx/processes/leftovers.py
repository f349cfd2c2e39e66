"""Ends what earlier runs of ours left behind, and nothing else."""

import contextlib
import json
import platform
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from longctx.errors import ServerError
from longctx.processes import reaper
from longctx.processes.identity import boot_id, marked

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
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # just removed by its reaper, or torn by a full disk: nothing provable in it
        if record["host"] != platform.node() or _owner_lives(record):
            continue
        if record["boot"] == boot_id():
            sentences.append(_end(record, path))
        else:
            reaper.run_stop_commands(record["stop_commands"])  # a container survives a reboot, stopped
            reaper.remove_sockets(record.get("sockets"))
        path.unlink(missing_ok=True)
    return list(filter(None, sentences))


def end_marked(owner_id: str, stop_commands: list[list[str]]) -> list[int]:
    """Run the stop commands, then TERM and KILL every process with this owner's mark; return those that resist."""
    reaper.run_stop_commands(stop_commands)
    for signum, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 20.0)):
        deadline = time.monotonic() + patience_s
        sent: set[tuple[int, int]] = set()
        while (left := marked(owner_id)) and time.monotonic() < deadline:
            for process in set(left.items()) - sent:
                reaper.send(*process, signum)
                sent.add(process)
            time.sleep(0.1)
    return sorted(marked(owner_id))


def end_unreaped(
    record_path: Path,
    owner_id: str,
    stop_commands: list[list[str]],
    sockets: str | None,
    unmarked: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    """End a server whose reaper may be gone, and remove what it leaves; return the processes that resist SIGKILL.

    unmarked: {pid: start_ticks} of processes that get SIGTERM although they may lack the owner's mark.
    """
    memory = reaper.shared_memory({*marked(owner_id), *unmarked})
    with contextlib.suppress(OSError, ValueError):
        memory |= json.loads(record_path.read_text()).get("shared_memory", {})
    for pid, start in unmarked.items():
        reaper.send(pid, start, signal.SIGTERM)
    if left := end_marked(owner_id, stop_commands if record_path.exists() else []):
        return left
    reaper.free_shared_memory(memory)
    reaper.remove_sockets(sockets)
    record_path.unlink(missing_ok=True)
    return []


def _owner_lives(record: dict[str, Any]) -> bool:
    return bool(record["boot"] == boot_id()) and reaper.start_ticks(record["owner"]) == record["owner_start"]


def _end(record: dict[str, Any], path: Path) -> str:
    """End one dead owner's server, giving its own reaper time to do so first."""
    deadline = time.monotonic() + REAPER_PATIENCE_S
    while path.exists() and _reaper_works(record) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not path.exists():
        return ""
    processes, unmarked = marked(record["id"]), {}
    if record["pid"] and reaper.start_ticks(record["pid"]) == record["start"]:
        unmarked = {record["pid"]: record["start"]}
    if left := end_unreaped(path, record["id"], record["stop_commands"], record.get("sockets"), unmarked):
        raise ServerError(f"processes {left} of an earlier run survive SIGKILL; end them or restart the machine")
    pids = ", ".join(map(str, sorted(processes | unmarked)))
    return f"ended the server of an earlier run (started by process {record['owner']}; processes {pids or 'none'})"


def _reaper_works(record: dict[str, Any]) -> bool:
    try:
        command = Path(f"/proc/{record['reaper']}/cmdline").read_bytes()
    except OSError:
        return False
    return record["reaper"] is not None and record["id"].encode() in command
