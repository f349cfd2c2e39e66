"""Lock files that name their holder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from longctx.errors import LongctxError

# A measurement whose Snakemake was killed notices that and ends its server first.
ORPHAN_GRACE_S = 60.0
POLL_S = 0.05


class LockFile(AbstractContextManager["LockFile"]):
    """An open lock file. Its lock ends with `close`, or with this process, however that ends."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, wait_s: float = 0.0) -> bool | None:
        """Lock it alone, waiting for others; False where one still holds it, None on a file system without locks."""
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    return False
                time.sleep(POLL_S)
            except OSError:
                return None

    def sign(self, holder: str) -> None:
        """Write who holds it."""
        with suppress(OSError):  # a full disk
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, holder.encode(), 0)

    def holder(self) -> str:
        """Return what the last holder wrote."""
        return os.pread(self.descriptor, 1000, 0).decode(errors="replace")

    def close(self) -> None:
        os.close(self.descriptor)


@contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, if locks exist there, waiting for an orphan to end; LongctxError names its holder."""
    with LockFile(path) as lock:
        if lock.take(ORPHAN_GRACE_S) is False:
            raise LongctxError(f"{what} ({lock.holder()}); wait for it or end it")
        job = os.environ.get("SLURM_JOB_ID")
        lock.sign(f"process {os.getpid()} on {os.uname().nodename}" + (f", SLURM job {job}" if job else ""))
        yield


def hold_for_life(path: Path, *, shared: bool = False) -> LockFile | None:
    """Lock a file until this process ends; return the lock, or None where others hold it. `shared`: stay beside them.

    A file system without locks cannot tell who else is there: then a shared lock counts as held by others too.
    """
    lock = LockFile(path)
    taken = lock.take()
    if shared and taken is not None:
        fcntl.flock(lock.descriptor, fcntl.LOCK_SH)
    if taken:
        lock.sign(f"{os.uname().nodename} {os.getpid()}")
    return lock if taken or (taken is None and not shared) else None


def lock_holder(path: Path) -> tuple[str, str]:
    """Return (host, pid) of who held a lock file last."""
    words = path.read_text(encoding="utf-8").split() if path.exists() else []
    return (words[0], words[1]) if len(words) == 2 else ("unknown", "unknown")
