# Validate: count, id range, special and undecodable ids, decode-encode round trip.
# in: prompt   out: R/validation/<length>.parquet


rule validate:
    """Check one prompt; what is wrong with a bad one stays, and refuses its length when it is to be measured."""
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
        "$PYTHON $SCRIPTS/validate.py"
        " --prompt {input}"
        " {params.tokenizer:q}"
        " --length {wildcards.length}"
        " --out {output}"
        " 2> >(tee {log} >&2)"
        " || test -s {output}"
