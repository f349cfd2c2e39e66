# Prompt: header + the stream's first part + task, exactly as many token ids as the length says.
# in: token stream, prompt shape   out: R/prompts/<length>.parquet


rule prompt:
    """Build the prompt of one length; a longer stream (new lengths) leaves the prompts that exist as they are."""
    input:
        stream=lambda wildcards: stream_for(wildcards.length),
    output:
        R / "prompts" / "{length}.parquet",
    log:
        R / "logs" / "prompts" / "{length}.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        shape=CAMPAIGN.config.prompt.shape,
        tokenizer=CAMPAIGN.tokenizer_arguments,
        corpus=CAMPAIGN.corpus_arguments,
    shell:
        '"$PYTHON" "$SCRIPTS/prompt.py"'
        " --stream {input.stream:q}"
        " --shape {params.shape:q}"
        " {params.tokenizer:q}"
        " --length {wildcards.length}"
        " --out {output:q}"
        " 2> >(tee {log:q} >&2)"
