"""The identity of a process (boot id, pid and start ticks) and its owner (a mark in its environment)."""

import contextlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longctx.processes.reaper import all_processes, descendants, start_ticks

MARKER = "LONGCTX_OWNER"


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def this_process() -> dict[str, Any]:
    """Return the identity of this process, which does not depend on the wall clock."""
    return {"pid": os.getpid(), "start": start_ticks(os.getpid()), "boot": boot_id(), "host": platform.node()}


def writer_gone(entry: Mapping[str, Any]) -> bool | None:
    """Return whether the process that wrote an entry has ended; None where it runs on another host."""
    if entry.get("host") != platform.node():
        return None
    return entry.get("boot") != boot_id() or start_ticks(int(entry.get("pid", 0))) != entry.get("start")


def marked(owner_id: str) -> dict[int, int]:
    """Return {pid: start_ticks} of the processes whose environment carries this owner's id, and all below them."""
    table = all_processes()
    needle = f"{MARKER}={owner_id}\0".encode()
    processes: dict[int, int] = {}
    for pid, (_, state, start) in table.items():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if state != "Z" and needle in file.read() + b"\0":
                processes |= {pid: start} | descendants(pid, table)
    return processes
