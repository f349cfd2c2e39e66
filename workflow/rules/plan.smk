# Plan: what fits, how long it takes, what the hardware allows. Runs in seconds, without a GPU, before everything else.
# in: configuration, model geometry, hardware peaks   out: a row per mode and length, the table as text, Figure 1


rule plan:
    """Print which lengths fit, their limits and hours, however often it is asked."""
    input:
        R / "plan.txt",
    log:
        R / "logs" / "plan_shown.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "tee {log:q} < {input:q}"


rule make_plan:
    """Render the plan, which `snakemake plan` prints."""
    input:
        before_run,
        model=MODEL_FILES,
    output:
        plan=R / "plan.parquet",
        text=R / "plan.txt",
        png=report(
            R / "figures" / "kv_footprint.png",
            caption="../report/kv_footprint.rst",
            category="Plan",
        ),
        svg=R / "figures" / "kv_footprint.svg",
    log:
        R / "logs" / "plan.log",
    priority: 1
    conda:
        "../../envs/pipeline.yaml"
    params:
        settings=CAMPAIGN.plan_settings(),
    shell:
        '"$PYTHON" "$SCRIPTS/plan.py"'
        ' --config-file "$CONFIG_FILE"'
        ' --plan "$PLAN_FILE"'
        " --out {output.plan:q}"
        " --text {output.text:q}"
        " --figure {output.png:q}"
        " 2> >(tee {log:q} >&2)"
        # No job depends on the plan, and others go on: measure.py looks here before it starts a server.
        ' || {{ echo "$LONGCTX_RUN" > "$PLAN_FAILED"; exit 1; }}'
