"""Ends a measurement when the Snakemake that started it has ended: nobody is left to take its results."""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from longctx.processes.process_identity import boot_id
from longctx.processes.reaper import start_ticks

OWNER_VARIABLE = "LONGCTX_OWNER_PROCESS"


def own_jobs() -> None:
    """Make this process the owner of the measurements below it (a cluster job has a Snakemake of its own)."""
    os.environ[OWNER_VARIABLE] = f"{os.getpid()} {start_ticks(os.getpid())} {boot_id()}"


@contextmanager
def ending_with_owner() -> Iterator[None]:
    """Within the block SIGTERM raises KeyboardInterrupt, as Ctrl-C does, and so does the owner's end."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    over, end = os.pipe()
    watcher = threading.Thread(target=_watch, args=(over,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(over)
        signal.signal(signal.SIGTERM, previous)


def _watch(over: int) -> None:
    """Wait for the owner's end or for ours. An owner with another boot id runs on another host: ignore it."""
    words = os.environ.get(OWNER_VARIABLE, "").split()
    if len(words) != 3 or words[2] != boot_id():
        return
    pid, start = int(words[0]), int(words[1])
    with suppress(OSError), open(os.pidfd_open(pid), "rb", buffering=0) as owner:
        if start_ticks(pid) == start and over in select.select([owner.fileno(), over], [], [])[0]:
            return
    os.kill(os.getpid(), signal.SIGTERM)
