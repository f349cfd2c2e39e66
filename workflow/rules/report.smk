# Report: Table 1, figures, environment, contract, failures and doubts, and how to reproduce them; Markdown and HTML.
# in: summary, fits, estimates, chunks, rows, servers, plan, validation, figures, runs to compare with   out: R/report.md, R/report.html


rule report:
    """Write both reports."""
    input:
        summary=R / "summary.parquet",
        fits=R / "fits.parquet",
        estimates=R / "estimates.parquet",
        chunks=R / "chunks.parquet",
        rows=R / "rows.parquet",
        servers=R / "servers.parquet",
        plan=R / "plan.parquet",
        validation=VALIDATIONS,
        figures=FIGURES,
        footprint=[R / "figures" / f"kv_footprint.{kind}" for kind in ("png", "svg")],
        compare=list(CAMPAIGN.config.compare),
    output:
        md=R / "report.md",
        html=report(
            R / "report.html", caption="../report/report.rst", category="Results"
        ),
    log:
        R / "logs" / "report.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        # The report shows the whole configuration; the name of its file changes with each setting.
        configuration=CONFIG_FILE.name,
    shell:
        '"$PYTHON" "$SCRIPTS/report.py"'
        ' --config-file "$CONFIG_FILE"'
        " --summary {input.summary:q}"
        " --fits {input.fits:q}"
        " --estimates {input.estimates:q}"
        " --chunks {input.chunks:q}"
        " --rows {input.rows:q}"
        " --servers {input.servers:q}"
        " --plan {input.plan:q}"
        " --validation {input.validation:q}"
        ' --figures "$(dirname {input.figures[0]:q})"'
        " --compare {input.compare:q}"
        " --md {output.md:q}"
        " --html {output.html:q}"
        " 2> >(tee {log:q} >&2)"


TABLES = {
    table: R / f"{table}.parquet"
    for table in (
        "summary",
        "fits",
        "estimates",
        "chunks",
        "rows",
        "servers",
        "plan",
    )
}
# What report_now runs, and every run that failed: the same three scripts, from what is there.
PARTIAL_REPORT = " && ".join(
    [
        command("summary.py", "--partial", out=TABLES["summary"]),
        command(
            "figures.py",
            **TABLES,
            compare=list(CAMPAIGN.config.compare),
            out_dir=R / "figures",
        ),
        command(
            "report.py",
            **TABLES,
            validation=VALIDATIONS,
            figures=R / "figures",
            compare=list(CAMPAIGN.config.compare),
            md=R / "report.md",
            html=R / "report.html",
        ),
    ]
)


rule report_now:
    """Summary, figures and reports from what is there, at any time; missing rungs are shown as missing."""
    log:
        R / "logs" / "report_now.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        partial=PARTIAL_REPORT,
    shell:
        "({params.partial})" " 2> >(tee {log:q} >&2)"
