"""Start and end of a Snakemake run: locks of killed runs, refusal beside a live one, repairs, reports of earlier runs.

Snakemake leaves its lock when it is killed.
"""

import os
import shutil
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import output_path
from longctx.errors import LongctxError
from longctx.measure import remeasure
from longctx.measure.kv_limit import RUN_VARIABLE
from longctx.plan.plan_table import PlanTable
from longctx.processes.job_owner import own_jobs
from longctx.progress.display import note_campaign
from longctx.run.repair import drop_torn, restore_journals, rewrite_damaged, set_aside_deleted
from longctx.serve.launchers import kv_connectors
from longctx.storage.locks import hold_for_life, lock_holder


def enter_folder(state_dir: Path) -> None:
    """Prepare this process for every kind of run, dry ones included; `state_dir` is Snakemake's own folder."""
    own_jobs()
    os.environ[RUN_VARIABLE] = uuid.uuid4().hex
    _print([settle_locks(state_dir)])


def repair_files(campaign: Campaign) -> None:
    """Delete torn Parquets and write damaged ones and lost journals anew, unless a live run is at work here."""
    if lock := hold_for_life(_run_lock(campaign)):
        _print([*drop_torn(campaign), *rewrite_damaged(campaign), *restore_journals(campaign)])
        lock.close()


def before_run(campaign: Campaign) -> None:
    """Hold the campaign until this process ends, and set aside the journals of deleted measurements.

    LongctxError where a live run holds the campaign.
    """
    lock = _run_lock(campaign)
    if not hold_for_life(lock):
        host, pid = lock_holder(lock)
        raise LongctxError(
            f"another run (process {pid} on {host}) is at work on {campaign.results}, so nothing is made here until it"
            f" ends; `snakemake --cores 1 report_now` and `longctx watch {campaign.results}` work meanwhile"
        )
    _print([*set_aside_deleted(campaign), unsupported(campaign)])
    note_campaign(campaign)


def before_jobs(campaign: Campaign, measured: Iterable[Path], plan: PlanTable) -> None:
    """Refuse to measure again what took long; LongctxError says what it was. measured: measurements to be made."""
    files = {output_path(campaign, point, "measurements"): point for point in campaign.points()}
    remeasure.refuse_unasked(campaign, sorted(files[path] for path in measured if path in files), plan)


def drop_old_reports(campaign: Campaign, rules: Iterable[str]) -> None:
    """Delete the reports of an earlier summary at the end of a run that made another one; `rules`: what it ran."""
    made = set(rules)
    old = [path for path in (campaign.results / f"report.{kind}" for kind in ("md", "html")) if path.exists()]
    if "summary" in made and "report" not in made and old:
        for path in old:
            path.unlink()
        names = " and ".join(map(str, old))
        _print([f"deleted {names}, made from an earlier summary; `snakemake --cores 1` writes new ones"])


def unsupported(campaign: Campaign) -> str | None:
    """Say what the vLLM on this host cannot do, before hours are spent on the rest; it fails as 'unsupported'."""
    python = shutil.which(campaign.config.serve.python) if campaign.config.launcher == "local" else None
    for mode in campaign.modes if python else ():
        connector = campaign.recipe(mode, 1).kv_transfer_config
        missing = (not output_path(campaign, point, "measurements").exists() for point in campaign.points(mode))
        if python and connector and any(missing) and (sentence := kv_connectors.lacking(python, connector)):
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


def _run_lock(campaign: Campaign) -> Path:
    return campaign.results / ".config" / "run.lock"


def _print(sentences: Iterable[str | None]) -> None:
    for sentence in filter(None, sentences):
        print(f"longctx: {sentence}", file=sys.stderr, flush=True)
