"""What a run must set right before it starts: what a killed run left, damaged files, and a summary that lacks a point.
And once it ended well: whether the report still tells of an earlier summary.

Snakemake leaves its lock when it is killed, and does not notice a deleted measurement while the summary is newer.
"""

import fcntl
import os
import shutil
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO

from longctx.config import Campaign, Point
from longctx.errors import LongctxError
from longctx.kvlimit import RUN_VARIABLE
from longctx.live import note_campaign
from longctx.owner import own_jobs
from longctx.points import mend, output_path, set_aside_deleted
from longctx.server import connectors
from longctx.tables import write_atomic

# What every run can make anew, at no cost but minutes. (Measured Parquets are mended from their journals.)
DERIVED = ("plan", "summary", "fits", "corpus/*", "prompts/*", "validation/*", "lengths/*")
PARQUET = b"PAR1"  # first and last bytes of every whole file
# Lock files that this process holds until it ends, however it ends.
_held: dict[Path, IO[str]] = {}


def before_run(campaign: Campaign, state_dir: Path, *, only_looks: bool = False) -> None:
    """Called by the main Snakemake while it reads the Snakefile; `state_dir` is Snakemake's own folder.

    `only_looks`: this run makes nothing that another run makes (a dry run, report_now), so it sets nothing aside.
    LongctxError where a live run holds the campaign.
    """
    own_jobs()
    os.environ[RUN_VARIABLE] = uuid.uuid4().hex
    said = [settle_locks(state_dir)]
    lock = campaign.results / ".config" / "run.lock"
    mine = _hold(lock)
    if not (mine or only_looks):
        host, pid = _holder(lock)
        raise LongctxError(
            f"another run (process {pid} on {host}) is at work on {campaign.results}, so nothing is made here until it"
            f" ends; `snakemake --cores 1 report_now` and `longctx watch {campaign.results}` work meanwhile"
        )
    if mine and not only_looks:
        said += [*set_aside_deleted(campaign), *drop_torn(campaign)]
        note_campaign(campaign)
    if mine:
        said += [*mend(campaign), unsupported(campaign)]
        mark_stale(campaign)
        mark_compared(campaign)
    if only_looks:
        _held.pop(lock).close()
    for sentence in filter(None, said):
        print(f"longctx: {sentence}", file=sys.stderr, flush=True)


def drop_torn(campaign: Campaign) -> list[str]:
    """Delete derived Parquets that are cut short, so that Snakemake makes them anew; return a sentence for each."""
    said = []
    for path in sorted(path for name in DERIVED for path in campaign.results.glob(f"{name}.parquet")):
        with open(path, "rb") as file:
            head, size = file.read(len(PARQUET)), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(PARQUET)))
            whole = head == PARQUET == file.read() and size > len(PARQUET)
        if not whole:
            path.unlink()
            said.append(f"{path}: damaged, so it is made anew where it is needed")
    return said


def unsupported(campaign: Campaign) -> str | None:
    """Say what the vLLM on this host cannot do, before hours are spent on the rest; it fails as 'unsupported'."""
    launcher = campaign.launcher()
    python = shutil.which(str(launcher.options.get("python"))) if launcher.kind == "local" else None
    for mode in campaign.modes if python else ():
        connector = (campaign.recipe(mode, 1).kv_transfer_config or {}).get("kv_connector")
        missing = (not output_path(campaign, point, "measurements").exists() for point in campaign.points(mode))
        if python and connector and any(missing) and (sentence := connectors.lacking(python, connector)):
            return f"mode {mode} cannot be measured: {sentence}"
    return None


def settle_locks(state_dir: Path) -> str | None:
    """Remove the Snakemake locks that a killed run left here; say so, or whose they are where they stay.

    Every run holds `longctx-run` beside others for as long as it lives: who gets it alone knows that no other lives.
    """
    run, locks = state_dir / "longctx-run", sorted((state_dir / "locks").glob("*.lock"))
    host, pid = _holder(run)
    if locks and host not in (os.uname().nodename, "unknown"):
        return f"a Snakemake on {host} (process {pid}) holds this folder's lock; if it is gone: snakemake --unlock"
    if not _hold(run, shared=True):
        return None
    for lock in locks:
        lock.unlink(missing_ok=True)
    return "removed the lock that a killed run left; going on where it stopped" if locks else None


def _hold(path: Path, *, shared: bool = False) -> bool:
    """Lock a file until this process ends; return whether nobody else holds it. `shared`: stay beside others.

    A file system without locks cannot tell who else is there: then a shared lock counts as held by others too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _held[path] = open(path, "a+")  # noqa: SIM115
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


def _holder(path: Path) -> tuple[str, str]:
    """Return (host, pid) of who held a lock file last."""
    words = path.read_text().split() if path.exists() else []
    return (words[0], words[1]) if len(words) == 2 else ("unknown", "unknown")


def stale_mark(campaign: Campaign) -> Path:
    """The file that the summaries depend on, changed whenever a point that one of them needs is gone."""
    return campaign.results / ".config" / "stale"


def mark_stale(campaign: Campaign) -> None:
    """Make the summaries out of date where a measurement that one of them needs does not exist.

    Snakemake compares contents, not only times: the mark gets a new one.
    """
    mark = stale_mark(campaign)
    if not mark.exists():
        write_atomic(mark, b"changes when a summary lacks a point\n")
        os.utime(mark, (0, 0))
    points = campaign.points()
    made: dict[Path, list[Point]] = {campaign.results / "summary.parquet": points}
    for point in points:
        made.setdefault(campaign.results / "lengths" / f"{point.label}.parquet", []).append(point)
    lacking = [summary for summary, needs in made.items() if _lacks(campaign, summary, needs)]
    newest = max((summary.stat().st_mtime for summary in lacking), default=-1.0)
    if newest >= mark.stat().st_mtime:
        write_atomic(mark, f"changed by run {os.environ.get(RUN_VARIABLE)}\n".encode())
        if mark.stat().st_mtime <= newest:
            os.utime(mark, (newest + 1, newest + 1))


def compared_mark(campaign: Campaign) -> Path:
    """The file that the figures depend on, changed whenever `compare` names other runs."""
    return campaign.results / ".config" / "compared"


def mark_compared(campaign: Campaign) -> None:
    """Make the figures out of date where `compare` names other runs than before.

    Snakemake remembers the inputs of its jobs only, not of figures that report_now or the end of a run drew.
    """
    mark, names = compared_mark(campaign), "\n".join(campaign.raw["compare"]).encode()
    known = mark.read_bytes() if mark.exists() else None
    if known != names:
        write_atomic(mark, names)
    if known is None:
        os.utime(mark, (0, 0))


def _lacks(campaign: Campaign, summary: Path, points: list[Point]) -> bool:
    return summary.exists() and any(not output_path(campaign, point, "measurements").exists() for point in points)


def summary_time(campaign: Campaign) -> int:
    """When the summary was made, ns; 0 where there is none."""
    return _time(campaign.results / "summary.parquet")


def report_lags(campaign: Campaign, found_at: int) -> bool:
    """Return whether this run made the summary anew, and left an older report beside it.

    `found_at`: the `summary_time` that this run began with. A report that no run asked for stays unmade.
    """
    made_at = summary_time(campaign)
    reports = [campaign.results / f"report.{kind}" for kind in ("md", "html")]
    return made_at != found_at and any(0 < _time(report) < made_at for report in reports)


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0
