# Corpus: source trees tokenized once into one stream that all lengths share; and the synthetic model, where one is asked for.
# in: source trees   out: R/model (synthetic campaigns), R/corpus/<tokens>.parquet


rule model:
    """Make the synthetic model: its geometry, and a tokenizer trained on the corpus."""
    input:
        before_run,
    output:
        R / "model" / "config.json",
    log:
        R / "logs" / "model.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        model=CAMPAIGN.model_arguments,
        corpus=CAMPAIGN.corpus_arguments,
    shell:
        '"$PYTHON" "$SCRIPTS/model.py"'
        ' --out "$(dirname {output:q})"'
        " {params.corpus:q}"
        " {params.model:q}"
        " 2> >(tee {log:q} >&2)"


rule corpus:
    """Tokenize the corpus once, as far as the longest length needs."""
    input:
        before_run,
        model=MODEL_FILES,
    output:
        R / "corpus" / "{tokens}.parquet",
    log:
        R / "logs" / "corpus" / "{tokens}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: ALL_CORES
    params:
        corpus=CAMPAIGN.corpus_arguments,
        tokenizer=CAMPAIGN.tokenizer_arguments,
    shell:
        '"$PYTHON" "$SCRIPTS/corpus.py" build'
        " {params.corpus:q}"
        " {params.tokenizer:q}"
        " --tokens {wildcards.tokens}"
        " --out {output:q}"
        " 2> >(tee {log:q} >&2)"
