"""The bond between a Snakemake and its measurements: neither goes on alone.

A measurement ends when the Snakemake that started it has ended: nobody is left to take its results. A signal that asks
that Snakemake alone to end reaches its jobs too.
"""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from longctx.processes.process_identity import boot_id
from longctx.processes.reaper import descendants, send, start_ticks

OWNER_VARIABLE = "LONGCTX_OWNER_PROCESS"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHELLS = ("bash", "sh", "dash", "zsh")  # each ends with the job that it waits for

_asked_to_end = threading.Event()


def own_jobs() -> None:
    """Make this process the owner of the measurements below it (a cluster job has a Snakemake of its own)."""
    os.environ[OWNER_VARIABLE] = f"{os.getpid()} {start_ticks(os.getpid())} {boot_id()}"


def pass_on_signals() -> None:
    """Let SIGINT and SIGTERM to this Snakemake alone end its jobs, as Ctrl-C does, which goes to the whole group.

    Snakemake itself waits for running jobs, which may take hours. Its handlers stay: Python writes the number of each
    signal that has one to the wakeup descriptor too.
    """
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    threading.Thread(target=_pass_on, args=(signals,), daemon=True).start()


def asked_to_end() -> bool:
    """Return whether a signal has asked this process to end."""
    return _asked_to_end.is_set()


def _pass_on(signals: int) -> None:
    told: set[tuple[int, int]] = set()
    while number := os.read(signals, 1):
        if number[0] in (signal.SIGINT, signal.SIGTERM):
            _asked_to_end.set()
            told |= _end_jobs(told)
        if number[0] == signal.SIGTERM:
            # On SIGTERM Snakemake would wait for cluster jobs; on SIGINT it cancels them.
            os.kill(os.getpid(), signal.SIGINT)


def _end_jobs(told: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Send SIGTERM to every job below this process but those `told` before; return (pid, start) of each.

    Servers have sessions of their own: their jobs end them.
    """
    jobs = set(descendants(os.getpid()).items()) - told
    for pid, ticks in jobs:
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
            if os.getpgid(pid) == os.getpgrp() and name not in SHELLS:
                send(pid, ticks, signal.SIGTERM)
    return jobs


@contextmanager
def ending_with_owner() -> Iterator[None]:
    """Within the block the first of ENDING raises KeyboardInterrupt, and so does the owner's end.

    Further ones are ignored until the block has ended, which stops the server. A signal that was ignored before (SIGHUP
    under nohup) stays so.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for other in previous:
            signal.signal(other, _ignore)
        raise KeyboardInterrupt

    heeded = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, end) for number in heeded}
    over, close = os.pipe()
    watcher = threading.Thread(target=_watch, args=(over,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(close)
        watcher.join()
        os.close(over)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. With SIG_IGN Python would print a traceback for a signal that came just before."""


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
