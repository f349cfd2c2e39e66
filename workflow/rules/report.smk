# Report: Table 1, figures, environment, contract, failures and doubts, and how to reproduce them; Markdown and HTML.
# in: summary, figures, plan, rows   out: R/report.md, R/report.html


rule report:
    """Write both reports."""
    input:
        summary=R / "summary.parquet",
        figures=[
            R / "figures" / "ttft.png",
            R / "figures" / "decode.png",
            R / "figures" / "kv_footprint.png",
        ],
    output:
        md=R / "report.md",
        html=report(
            R / "report.html", caption="../report/report.rst", category="Results"
        ),
    log:
        R / "logs" / "report.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "$PYTHON $SCRIPTS/report.py --config-file $CONFIG_FILE 2> >(tee {log} >&2)"


rule report_now:
    """Summary, figures and reports from what is there, at any time; missing rungs are shown as missing."""
    log:
        R / "logs" / "report_now.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        partial=PARTIAL_REPORT,
    shell:
        "({params.partial}) 2> >(tee {log} >&2)"


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
        threshold=CAMPAIGN.raw["compare_threshold"],
    shell:
        "$PYTHON $SCRIPTS/compare.py --config-file $CONFIG_FILE --out {output} 2>&1 | tee {log}"
