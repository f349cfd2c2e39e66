# Image: what launcher container serves from, built once from its Containerfile or pulled.
# in: Containerfile   out: R/image.json with name, id and digest


rule image:
    """Build or pull the container image and record its digest."""
    input:
        before_run,
    output:
        R / "image.json",
    log:
        R / "logs" / "image.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        container={
            k: CAMPAIGN.config.container.plain()[k]
            for k in ("engine", "image", "containerfile", "build_args")
        },
        arguments=CAMPAIGN.image_arguments,
    shell:
        '"$PYTHON" "$SCRIPTS/image.py"'
        " {params.arguments:q}"
        " --out {output:q}"
        " 2> >(tee {log:q} >&2)"
