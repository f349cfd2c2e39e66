"""What a run must set right before it starts: what a killed run left, damaged files, and a summary that lacks a point.
And once it ended well: whether the report still tells of an earlier summary.

Snakemake leaves its lock when it is killed, and does not notice a deleted measurement while the summary is newer.
"""

import os
import shutil
import sys
import uuid
from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import output_path
from longctx.errors import LongctxError
from longctx.measure.kv_limit import RUN_VARIABLE
from longctx.processes.job_owner import own_jobs
from longctx.progress.display import note_campaign
from longctx.run.marks import mark_compared, mark_stale
from longctx.run.repair import drop_torn, rewrite_damaged, set_aside_deleted
from longctx.serve.launchers import connectors
from longctx.storage.locks import hold_for_life, lock_holder


def before_run(campaign: Campaign, state_dir: Path, *, only_looks: bool = False) -> None:
    """Called by the main Snakemake while it reads the Snakefile; `state_dir` is Snakemake's own folder.

    `only_looks`: this run makes nothing that another run makes (a dry run, report_now), so it sets nothing aside.
    LongctxError where a live run holds the campaign.
    """
    own_jobs()
    os.environ[RUN_VARIABLE] = uuid.uuid4().hex
    said = [settle_locks(state_dir)]
    lock = campaign.results / ".config" / "run.lock"
    mine = hold_for_life(lock)
    if not (mine or only_looks):
        host, pid = lock_holder(lock)
        raise LongctxError(
            f"another run (process {pid} on {host}) is at work on {campaign.results}, so nothing is made here until it"
            f" ends; `snakemake --cores 1 report_now` and `longctx watch {campaign.results}` work meanwhile"
        )
    if mine and not only_looks:
        said += [*set_aside_deleted(campaign), *drop_torn(campaign)]
        note_campaign(campaign)
    if mine:
        said += [*rewrite_damaged(campaign), unsupported(campaign)]
        mark_stale(campaign)
        mark_compared(campaign)
    if mine and only_looks:
        mine.close()
    for sentence in filter(None, said):
        print(f"longctx: {sentence}", file=sys.stderr, flush=True)


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
    host, pid = lock_holder(run)
    if locks and host not in (os.uname().nodename, "unknown"):
        return f"a Snakemake on {host} (process {pid}) holds this folder's lock; if it is gone: snakemake --unlock"
    if not hold_for_life(run, shared=True):
        return None
    for lock in locks:
        lock.unlink(missing_ok=True)
    return "removed the lock that a killed run left; going on where it stopped" if locks else None
