# What every stage needs: the validated campaign, where its files lie, and what a single target may be called.
import functools
import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from longctx.campaign import campaign as campaigns
from longctx.campaign.point import RUN_PATTERN, parse_point
from longctx.errors import LongctxError
from longctx.lengths import NAME_PATTERN, format_length, parse_length
from longctx.plan.campaign_plan import failed_plan_path, plan_path, planned, save_plan
from longctx.plan.plan_table import PlanTable
from longctx.processes import job_owner
from longctx.progress import console_log
from longctx.report.figures.draw import figure_files
from longctx.run import repair, startup
from longctx.run.node_request import NodeRequest
from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod

for path in map(str, (workflow.basedir, Path.cwd(), sys.executable)):
    if wrong := [sign for sign in "{}:" if sign in path]:
        raise WorkflowError(
            f"{path}: {' and '.join(wrong)} in a path cannot be used (Snakemake takes braces for wildcards; a colon"
            " separates folders in PYTHONPATH and in a container's mounts); move or rename the folder"
        )
# A dry run writes nothing into the results.
DRY_RUN = workflow.output_settings.dryrun
try:
    CAMPAIGN = campaigns.from_dict(config)
    if workflow.is_main_process:
        console_log.tolerate_broken_pipes("snakemake.logging")
        if not DRY_RUN:
            CAMPAIGN.save()
            startup.enter_folder(Path(".snakemake"))
            startup.repair_files(CAMPAIGN)
            save_plan(CAMPAIGN)
    elif workflow.remote_exec:
        job_owner.own_jobs()
    if workflow.is_main_process or workflow.remote_exec:
        job_owner.pass_on_signals()
except (LongctxError, OSError) as error:
    raise WorkflowError(str(error)) from None

# The plan that the main process saved; not there where the model cannot be planned. An input of no rule: a plain one
# would measure everything again with each new length, and an ancient one hides jobs (see `stream_for`).
CONFIG_FILE, PLAN_FILE = CAMPAIGN.config_file, plan_path(CAMPAIGN)
PLAN = planned(CAMPAIGN) if DRY_RUN else PlanTable.read(PLAN_FILE)
NODE = NodeRequest(CAMPAIGN, PLAN)
R = CAMPAIGN.results
# All cores, so that nothing runs beside a measurement. In a SLURM job: all that it was given, as its step asks for them.
ALL_CORES = workflow.resource_settings.cores or 1
if workflow.remote_exec:
    ALL_CORES = int(os.environ.get("SLURM_CPUS_ON_NODE", ALL_CORES))
# What every command line uses: the Python that runs Snakemake, or conda's where `--sdm conda` is asked for.
with_conda = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
shell.prefix(
    "set -euo pipefail;"
    # Jobs read and write UTF-8 in every locale, libraries included.
    " export PYTHONUTF8=1;"
    f" PYTHON={'python' if with_conda else shlex.quote(sys.executable)};"
    f" SCRIPTS={shlex.quote(str(Path(workflow.basedir) / 'scripts'))};"
    f" CONFIG_FILE={shlex.quote(str(CONFIG_FILE))};"
    f" PLAN_FILE={shlex.quote(str(PLAN_FILE))};"
    f" PLAN_FAILED={shlex.quote(str(failed_plan_path(CAMPAIGN)))}; "
)
# Nothing is made for a model that exists already.
MODEL_FILES = (
    [R / "model" / "config.json"] if CAMPAIGN.config.model.source == "synthetic" else []
)
# The image is a file of its own only where a container serves.
IMAGE_FILES = [R / "image.json"] if CAMPAIGN.config.launcher == "container" else []
# What figures.py draws, and the validation of every prompt.
FIGURES = [
    R / "figures" / name
    for name in figure_files(CAMPAIGN.modes, bool(CAMPAIGN.config.compare))
]
VALIDATIONS = [
    R / "validation" / f"{format_length(length)}.parquet"
    for length in CAMPAIGN.all_lengths()
]


# Only measurements are worth a cluster job and its wait in the queue.
localrules:
    all,
    model,
    corpus,
    prompt,
    validate,
    image,
    plan,
    make_plan,
    summary,
    length,
    figures,
    report,
    report_now,
    compare,


wildcard_constraints:
    length="|".join(format_length(n) for n in CAMPAIGN.all_lengths()),
    tokens=NAME_PATTERN,
    run=RUN_PATTERN,
    pass_index="[1-9][0-9]*",


def command(script, *flags, **options):
    """The command line that runs a script on this campaign, for what no rule's inputs and outputs can describe."""
    words = [f'"$PYTHON" "$SCRIPTS/{script}" --config-file "$CONFIG_FILE"', *flags]
    for name, values in options.items():
        values = values if isinstance(values, list) else [values]
        words += [f"--{name.replace('_', '-')}", shlex.join(map(str, values))]
    return " ".join(words)


def outputs_of(points, table="measurements"):
    """One kind of file of some points: measurements, servers, traces or progress."""
    return [R / table / point.label / f"{point.run}.parquet" for point in points]


def points_of(length=None, mode=None):
    """The campaign's points, of one length or mode where given."""
    wanted = parse_length(length) if length else None
    return [p for p in CAMPAIGN.points(mode) if wanted in (None, p.length)]


@functools.cache
def begin_run():
    """Hold the campaign, or end this Snakemake with one sentence."""
    try:
        startup.before_run(CAMPAIGN)
    except (LongctxError, OSError) as error:
        sys.exit(f"longctx: {error}")


def before_run(wildcards):
    """No files: an input of the rules that begin every DAG but that of report_now.

    Snakemake asks for inputs while it builds the DAG. So a run that may make something is refused here beside a live
    one, while report_now alone and dry runs are not.
    """
    if workflow.is_main_process and not DRY_RUN:
        begin_run()
    return []


def rows_for(summary, points):
    """The measurements of a summary, which is forced where Snakemake does not see that it must be made again.

    A missing input makes nothing again while the output is newer than the other inputs.
    """
    if workflow.is_main_process and repair.is_provisional(CAMPAIGN, summary, points):
        workflow.dag.forcefiles.add(str(summary))
    return outputs_of(points)


def stream_for(length):
    """The shortest token stream at hand that is long enough, else the one that the longest length needs.

    Never `ancient(one stream)`: where a job runs whose output is ancient to others, Snakemake 9 does not look whether
    those have reasons of their own to run.
    """
    streams = [path.stem for path in (R / "corpus").glob("[1-9]*.parquet")]
    tokens = sorted(parse_length(name) for name in streams)
    needed = parse_length(length)
    chosen = next((n for n in tokens if n >= needed), max(CAMPAIGN.all_lengths()))
    return R / "corpus" / f"{format_length(chosen)}.parquet"


def others_to_compare(wildcards):
    """The runs of `compare`; without any, nothing is measured for a comparison that cannot be."""
    if not CAMPAIGN.config.compare:
        raise WorkflowError(
            "config key compare: nothing to compare with; list runs there (docs/compare.md)"
        )
    return list(CAMPAIGN.config.compare)


def point_of(wildcards):
    """The point whose files have these wildcards."""
    return parse_point(f"{wildcards.length}/{wildcards.run}")


def turn_of(points):
    """The priority that climbs short rungs first, and each rung's passes in order."""
    return -min(point.length * 1000 + point.pass_index for point in points)
