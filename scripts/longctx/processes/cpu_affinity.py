"""Keeps the client off the processors on which a CPU server computes.

vLLM binds each computing thread to a processor of its own and leaves one to everybody else, but Linux may wake the
client on a bound one. There it waited until the answer was complete in 7 of 8 short requests: 64 tokens as one chunk
after 0.2 s, where the first was ready after 0.03 s. A busy machine may still starve it elsewhere; the row says so.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


@contextlib.contextmanager
def keep_off(pids: Iterable[int]) -> Iterator[None]:
    """Run the block, in this thread and those that it starts, off the processors that threads of `pids` are bound to.

    Nothing changes where no processor would be left.
    """
    before = os.sched_getaffinity(0)
    left = before - bound_cpus(pids)
    if left:
        os.sched_setaffinity(0, left)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def follow(pid: int) -> None:
    """Keep this thread to the processors that another process keeps to; nothing changes where that cannot be done."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setaffinity(0, os.sched_getaffinity(pid))


def bound_cpus(pids: Iterable[int]) -> set[int]:
    """Return the processors to which a thread of these processes is bound alone."""
    bound: set[int] = set()
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):  # it has ended
                allowed = os.sched_getaffinity(int(thread.name))
                bound |= allowed if len(allowed) == 1 else set()
    return bound
