# The pipeline, wired: config -> plan -> corpus -> prompt -> validate -> measure -> summary -> figures -> report.
# Each stage is one file in workflow/rules/, each rule one command line in scripts/.
from snakemake.utils import min_version

min_version("9.0")


configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/corpus.smk"
include: "workflow/rules/prompt.smk"
include: "workflow/rules/validate.smk"
include: "workflow/rules/image.smk"
include: f"workflow/rules/{'measure' if CAMPAIGN.scope == 'point' else 'measure_shared'}.smk"
include: "workflow/rules/summary.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/compare.smk"


rule all:
    """The whole campaign: plan, measurements, summary, figures and both reports."""
    default_target: True
    input:
        R / "plan.parquet",
        R / "summary.parquet",
        R / "report.md",
        R / "report.html",


onstart:
    # Before Snakemake deletes an output.
    if not workflow.touch:
        jobs = workflow.dag.needrun_jobs(exclude_finished=False)
        measured = [Path(str(file)) for job in jobs for file in job.output]
        try:
            startup.before_jobs(CAMPAIGN, measured, PLAN)
        except LongctxError as error:
            sys.exit(f"longctx: {error}")


onstart:
    # Before Snakemake deletes an output.
    if not workflow.touch:
        jobs = workflow.dag.needrun_jobs(exclude_finished=False)
        measured = [Path(str(file)) for job in jobs for file in job.output]
        try:
            startup.before_jobs(CAMPAIGN, measured, PLAN)
        except LongctxError as error:
            sys.exit(f"longctx: {error}")


onsuccess:
    if not workflow.touch:
        jobs = workflow.dag.needrun_jobs(exclude_finished=False)
        startup.drop_old_reports(CAMPAIGN, {job.rule.name for job in jobs})


onerror:
    if not job_owner.asked_to_end():
        shell("{PARTIAL_REPORT}")
