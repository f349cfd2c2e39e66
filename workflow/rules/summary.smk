# Summary: statistics of the measured rows, a row per mode and length.
# in: measurements, plan   out: R/summary.parquet, summary.csv, fits.parquet


rule summary:
    """Mean, sample deviation, CV, min, median and max of every length, with failures and doubts counted."""
    input:
        rows=outputs_of(CAMPAIGN.points()),
        plan=R / "plan.parquet",
        stale=marks.stale_mark(CAMPAIGN),
    output:
        summary=report(
            R / "summary.parquet", caption="../report/summary.rst", category="Results"
        ),
        csv=R / "summary.csv",
        fits=R / "fits.parquet",
    log:
        R / "logs" / "summary.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "$PYTHON $SCRIPTS/summary.py --config-file $CONFIG_FILE 2> >(tee {log} >&2)"


rule length:
    """All passes of one length, summarised: `snakemake results/lengths/4Ki.parquet`."""
    input:
        rows=lambda wildcards: outputs_of(points_of(wildcards.length)),
        plan=R / "plan.parquet",
        stale=marks.stale_mark(CAMPAIGN),
    output:
        R / "lengths" / "{length}.parquet",
    log:
        R / "logs" / "lengths" / "{length}.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "$PYTHON $SCRIPTS/summary.py --config-file $CONFIG_FILE --length {wildcards.length} --out {output} 2> >(tee {log} >&2)"
