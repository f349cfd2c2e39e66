# Summary: statistics of the measured rows, a row per mode and length; and all rows in one file each.
# in: measurements, servers, progress, plan   out: R/summary.parquet, summary.csv, fits, estimates, chunks, rows, servers


rule summary:
    """Mean, sample deviation, CV, min, median and max of every length, with failures and doubts counted."""
    input:
        rows=lambda wildcards: rows_for(R / "summary.parquet", CAMPAIGN.points()),
        servers=outputs_of(CAMPAIGN.points(), "servers"),
        progress=outputs_of(CAMPAIGN.points(), "progress"),
        plan=R / "plan.parquet",
    output:
        summary=report(
            R / "summary.parquet", caption="../report/summary.rst", category="Results"
        ),
        csv=R / "summary.csv",
        fits=R / "fits.parquet",
        estimates=R / "estimates.parquet",
        chunks=R / "chunks.parquet",
        rows=R / "rows.parquet",
        servers=R / "servers.parquet",
    log:
        R / "logs" / "summary.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        points=[point.name for point in CAMPAIGN.points()],
    shell:
        '"$PYTHON" "$SCRIPTS/summary.py"'
        ' --config-file "$CONFIG_FILE"'
        " --rows {input.rows:q}"
        " --servers {input.servers:q}"
        " --progress {input.progress:q}"
        " --plan {input.plan:q}"
        " --out {output.summary:q}"
        " 2> >(tee {log:q} >&2)"


rule length:
    """All passes of one length, summarised: `snakemake results/lengths/4Ki.parquet`."""
    input:
        rows=lambda wildcards: rows_for(
            R / "lengths" / f"{wildcards.length}.parquet", points_of(wildcards.length)
        ),
        plan=R / "plan.parquet",
    output:
        R / "lengths" / "{length}.parquet",
    log:
        R / "logs" / "lengths" / "{length}.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        '"$PYTHON" "$SCRIPTS/summary.py"'
        ' --config-file "$CONFIG_FILE"'
        " --length {wildcards.length}"
        " --rows {input.rows:q}"
        " --plan {input.plan:q}"
        " --out {output:q}"
        " 2> >(tee {log:q} >&2)"
