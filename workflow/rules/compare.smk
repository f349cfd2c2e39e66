# Compare: this run's summary against others, as a release gate.
# in: summary, the summaries in `compare`   out: R/compare.parquet


rule compare:
    """Compare with the runs in `compare`; fails where a release gate should stay shut (docs/compare.md)."""
    input:
        summary=R / "summary.parquet",
        others=others_to_compare,
    output:
        R / "compare.parquet",
    log:
        R / "logs" / "compare.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        threshold=CAMPAIGN.config.compare_threshold,
        against=[
            word for path in CAMPAIGN.config.compare for word in ("--against", path)
        ],
    shell:
        '"$PYTHON" "$SCRIPTS/compare.py"'
        ' --config-file "$CONFIG_FILE"'
        " --ours {input.summary:q}"
        " {params.against:q}"
        " --threshold {params.threshold}"
        " --out {output:q}"
        " 2>&1 | tee {log:q}"
        # Snakemake keeps what a failed job wrote: a shut gate must not look done.
        " || {{ status=$?; rm -f {output:q}; exit $status; }}"
