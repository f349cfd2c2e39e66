# Figures: TTFT and decode throughput against prompt length, distance to the limits, amortisation.
# in: summary, fits, estimates, chunks, rows, servers, plan, runs to compare with   out: R/figures/*.png and *.svg


rule figures:
    """Draw every figure that the campaign's modes give; after a change of colours: `snakemake -R figures`."""
    input:
        summary=R / "summary.parquet",
        fits=R / "fits.parquet",
        estimates=R / "estimates.parquet",
        chunks=R / "chunks.parquet",
        rows=R / "rows.parquet",
        servers=R / "servers.parquet",
        plan=R / "plan.parquet",
        compare=list(CAMPAIGN.config.compare),
    output:
        ttft=report(
            R / "figures" / "ttft.png",
            caption="../report/ttft.rst",
            category="Results",
        ),
        decode=report(
            R / "figures" / "decode.png",
            caption="../report/decode.rst",
            category="Results",
        ),
        others=[file for file in FIGURES if file.name not in ("ttft.png", "decode.png")],
    log:
        R / "logs" / "figures.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        '"$PYTHON" "$SCRIPTS/figures.py"'
        ' --config-file "$CONFIG_FILE"'
        " --summary {input.summary:q}"
        " --fits {input.fits:q}"
        " --estimates {input.estimates:q}"
        " --chunks {input.chunks:q}"
        " --rows {input.rows:q}"
        " --servers {input.servers:q}"
        " --plan {input.plan:q}"
        " --compare {input.compare:q}"
        ' --out-dir "$(dirname {output.ttft:q})"'
        " > {log:q} 2> >(tee -a {log:q} >&2)"
