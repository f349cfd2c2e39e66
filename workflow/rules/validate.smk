# Validate: count, id range, special and undecodable ids, decode-encode round trip.
# in: prompt   out: R/validation/<length>.parquet


rule validate:
    """Check one prompt; what is wrong with a bad one is in its row, and fails the points of its length."""
    input:
        R / "prompts" / "{length}.parquet",
    output:
        R / "validation" / "{length}.parquet",
    log:
        R / "logs" / "validation" / "{length}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        tokenizer=CAMPAIGN.tokenizer_arguments,
    shell:
        '"$PYTHON" "$SCRIPTS/validate.py"'
        " --prompt {input:q}"
        " {params.tokenizer:q}"
        " --length {wildcards.length}"
        " --out {output:q}"
        " 2> >(tee {log:q} >&2)"
