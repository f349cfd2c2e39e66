# Measure with one server for several rungs (serve.scope pass or campaign, or an external one), short rungs first.
# in: prompts, validations, plan   out: as in measure.smk, for every rung that the server climbs

SHARED = {
    (mode, p if CAMPAIGN.scope == "pass" else None): [
        point
        for point in CAMPAIGN.points(mode)
        if CAMPAIGN.scope == "campaign" or point.pass_index == p
    ]
    for mode in CAMPAIGN.modes
    for p in range(1, CAMPAIGN.passes_of(mode) + 1)
}

for (mode, pass_index), points in SHARED.items():

    rule:
        """Serve all rungs of one mode, or of one pass of it, with one server and measure them."""
        name:
            f"measure_{mode}" + (f"_pass{pass_index}" if pass_index else "")
        input:
            prompts=sorted(
                {R / "prompts" / f"{point.label}.parquet" for point in points}
            ),
            validations=sorted(
                {R / "validation" / f"{point.label}.parquet" for point in points}
            ),
            image=IMAGE_FILES,
        output:
            [
                file
                for table in ("servers", "traces", "progress", "measurements")
                for file in outputs_of(points, table)
            ],
        log:
            R
            / "logs"
            / (f"{mode}-pass{pass_index}.log" if pass_index else f"{mode}.log"),
        priority: turn_of(points)
        conda:
            "../../envs/pipeline.yaml"
        threads: ALL_CORES
        resources:
            gpu=NODE.gpus,
            mem_mb=lambda wildcards, points=points: NODE.memory_mib(points),
            runtime=lambda wildcards, points=points: NODE.runtime_minutes(points),
        params:
            recipe=CAMPAIGN.recipe_hash(mode),
            requests=[CAMPAIGN.requests(point) for point in points],
            points=[point.name for point in points],
        shell:
            '"$PYTHON" "$SCRIPTS/measure.py"'
            ' --config-file "$CONFIG_FILE"'
            ' --plan "$PLAN_FILE"'
            " --log {log:q}"
            " --prompts {input.prompts:q}"
            " --validations {input.validations:q}"
            " --points {params.points:q}"
