"""What a run must set right before it starts: stale locks of a killed run, and a summary that lacks a point.

Snakemake leaves its lock when it is killed, and does not notice a deleted measurement while the summary is newer.
"""

import base64
import binascii
import os
import sys
import time
from pathlib import Path

import psutil

from longctx.config import Campaign
from longctx.points import REMEASURE_VARIABLE, deleted_by_hand, output_path
from longctx.tables import write_atomic

OWNER_VARIABLE = "LONGCTX_OWNER_PID"


def before_run(campaign: Campaign, state_dir: Path) -> None:
    """Called while the Snakefile is read by the main process; `state_dir` is Snakemake's own folder."""
    own_jobs()
    if said := settle_locks(state_dir):
        print(f"longctx: {said}", file=sys.stderr)
    gone = deleted_by_hand(campaign, incomplete_files(state_dir))
    os.environ[REMEASURE_VARIABLE] = " ".join(point.name for point in gone)
    mark_stale(campaign)


def settle_locks(state_dir: Path) -> str | None:
    """Remove the locks that a killed run left here; say so, or whose they are where they stay."""
    locks = sorted((state_dir / "locks").glob("*.lock"))
    here, run = os.uname().nodename, state_dir / "longctx-run"
    host, pid = run.read_text().split() if run.exists() else (here, "unknown")
    if locks and host != here:
        return f"a Snakemake on {host} (pid {pid}) holds this folder's lock; if it is gone: snakemake --unlock"
    if other := live_run(Path.cwd()):
        return (
            f"another Snakemake (pid {other.pid}) is at work in this folder; what it makes is locked until it"
            " ends. `snakemake report_now` and `longctx watch` work meanwhile."
        )
    for lock in locks:
        lock.unlink(missing_ok=True)
    write_atomic(run, f"{here} {os.getpid()}".encode())
    return "removed the lock that a killed run left; going on where it stopped" if locks else None


def own_jobs() -> None:
    """Called on a cluster node: a job's measurement ends with the Snakemake of that job, not with a stranger's pid."""
    os.environ[OWNER_VARIABLE] = str(os.getpid())


def incomplete_files(state_dir: Path) -> set[str]:
    """Paths that Snakemake was making when it was killed (it deletes an output before it makes it again)."""
    root = state_dir / "incomplete"
    names = ["".join(part.removeprefix("@") for part in file.relative_to(root).parts) for file in root.rglob("*")]
    found = set()
    for name in names:
        try:
            found.add(base64.urlsafe_b64decode(name).decode())
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found


def live_run(folder: Path) -> psutil.Process | None:
    """Return another Snakemake main process whose working folder is `folder`, or None; a cluster job's is not one."""
    me = psutil.Process()
    mine = {me.pid, *(parent.pid for parent in me.parents()), *(child.pid for child in me.children(recursive=True))}
    for process in psutil.process_iter(["pid"]):
        try:
            if process.pid not in mine and _is_snakemake(process) and Path(process.cwd()) == folder.resolve():
                return process
        except psutil.Error:
            continue
    return None


def _is_snakemake(process: psutil.Process) -> bool:
    """A Python that runs Snakemake's program or module (not a shell or editor that only names it)."""
    words = process.cmdline()
    if words[-2:] == ["--mode", "remote"]:
        return False
    return any(Path(word).name == "snakemake" for word in words[:2]) or words[1:3] == ["-m", "snakemake"]


def stale_mark(campaign: Campaign) -> Path:
    """The file that the summary depends on, touched whenever a point that it needs is gone."""
    return campaign.results / ".config" / "stale"


def mark_stale(campaign: Campaign) -> None:
    """Make the summary out of date where a measurement that it needs does not exist."""
    mark = stale_mark(campaign)
    if not mark.exists():
        write_atomic(mark, b"touched when the summary lacks a point\n")
        os.utime(mark, (0, 0))
    summary = campaign.results / "summary.parquet"
    if not summary.exists() or mark.stat().st_mtime > summary.stat().st_mtime:
        return
    if any(not output_path(campaign, point, "measurements").exists() for point in campaign.points()):
        now = max(time.time(), summary.stat().st_mtime + 1)
        os.utime(mark, (now, now))
