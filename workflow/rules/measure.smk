# Measure: one fresh server per length and pass, as published. The job starts its server, measures, stops it.
# in: prompt, validation, plan   out: a row per request, the server's facts, chunk traces, prefill progress
# (measure_shared.smk is the variant where one server climbs several rungs.)


rule measure:
    """Serve one rung for one pass and measure it; finished requests are kept in R/journal across kills."""
    input:
        prompt=R / "prompts" / "{length}.parquet",
        validation=R / "validation" / "{length}.parquet",
        image=IMAGE_FILES,
    output:
        server=R / "servers" / "{length}" / "{run}.parquet",
        traces=R / "traces" / "{length}" / "{run}.parquet",
        progress=R / "progress" / "{length}" / "{run}.parquet",
        # Last, and deleted last by Snakemake: where it alone is gone, a person wants it measured again.
        rows=R / "measurements" / "{length}" / "{run}.parquet",
    log:
        R / "logs" / "{length}" / "{run}.log",
    priority: lambda wildcards: turn_of([point_of(wildcards)])
    conda:
        "../../envs/pipeline.yaml"
    threads: ALL_CORES
    resources:
        gpu=NODE.gpus,
        mem_mb=lambda wildcards: NODE.memory_mib([point_of(wildcards)]),
        runtime=lambda wildcards: NODE.runtime_minutes([point_of(wildcards)]),
    params:
        recipe=lambda wildcards: CAMPAIGN.recipe_hash(point_of(wildcards).mode),
        # A new repeat or query re-runs its point, which measures only what is missing.
        requests=lambda wildcards: CAMPAIGN.requests(point_of(wildcards)),
    shell:
        '"$PYTHON" "$SCRIPTS/measure.py"'
        ' --config-file "$CONFIG_FILE"'
        ' --plan "$PLAN_FILE"'
        " --log {log:q}"
        " --prompts {input.prompt:q}"
        " --validations {input.validation:q}"
        " --points {wildcards.length}/{wildcards.run}"
