# Figures: TTFT and decode throughput against prompt length, distance to the limits, amortisation.
# in: summary, fits, plan   out: R/figures/*.png and *.svg


rule figures:
    """Draw every figure that the campaign's modes give; colours and other looks never re-measure anything."""
    input:
        summary=R / "summary.parquet",
        fits=R / "fits.parquet",
        plan=R / "plan.parquet",
        compare=CAMPAIGN.raw["compare"],
        compared=marks.compared_mark(CAMPAIGN),
        looks=[
            f"{workflow.basedir}/scripts/longctx/report/{module}.py"
            for module in ("figures/metric", "figures/limits", "style")
        ],
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
    log:
        R / "logs" / "figures.log",
    conda:
        "../../envs/pipeline.yaml"
    shell:
        "$PYTHON $SCRIPTS/figures.py --config-file $CONFIG_FILE > {log} 2> >(tee -a {log} >&2)"
