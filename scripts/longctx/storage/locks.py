"""Lock files that name their holder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from longctx.errors import LongctxError

# A measurement whose Snakemake was killed notices that and ends its server first.
ORPHAN_GRACE_S = 60.0


@contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, waiting for an orphan to end; LongctxError says what is going on and whose it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        deadline = time.monotonic() + ORPHAN_GRACE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.seek(0)
                    raise LongctxError(f"{what} ({file.read()}); wait for it or end it") from None
                time.sleep(0.2)
            except OSError:
                break  # a disk without locks can't guard anything
        job = os.environ.get("SLURM_JOB_ID")
        holder = f"process {os.getpid()} on {os.uname().nodename}" + (f", SLURM job {job}" if job else "")
        with suppress(OSError):  # a full disk
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), holder.encode())
        yield


# Lock files that this process holds until it ends, however it ends.
held_files: dict[Path, IO[str]] = {}


def hold_for_life(path: Path, *, shared: bool = False) -> bool:
    """Lock a file until this process ends; return whether nobody else holds it. `shared`: stay beside others.

    A file system without locks cannot tell who else is there: then a shared lock counts as held by others too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = held_files[path] = open(path, "a+")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if shared:
            fcntl.flock(file, fcntl.LOCK_SH)
        return False
    except OSError:
        return not shared
    if shared:
        fcntl.flock(file, fcntl.LOCK_SH)
    with suppress(OSError):  # a full disk
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"{os.uname().nodename} {os.getpid()}".encode())
    return True


def lock_holder(path: Path) -> tuple[str, str]:
    """Return (host, pid) of who held a lock file last."""
    words = path.read_text().split() if path.exists() else []
    return (words[0], words[1]) if len(words) == 2 else ("unknown", "unknown")
