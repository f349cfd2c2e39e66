"""Who a process is: boot id, pid and start ticks."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longctx.processes.reaper import start_ticks


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def this_process() -> dict[str, Any]:
    """Return what tells this process from every other, whatever becomes of the wall clock."""
    return {"pid": os.getpid(), "start": start_ticks(os.getpid()), "boot": boot_id(), "host": platform.node()}


def writer_gone(entry: Mapping[str, Any]) -> bool | None:
    """Return whether the process that wrote an entry has ended; None where it runs on another host."""
    if entry.get("host") != platform.node():
        return None
    return entry.get("boot") != boot_id() or start_ticks(int(entry.get("pid", 0))) != entry.get("start")
