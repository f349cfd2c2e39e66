"""Arguments in serve.extra_args that a field of the configuration sets: each is refused with the field's name.

The plan, the contract and the recipe's identity read the fields. vLLM takes the last of two equal flags, so a flag here
would silently change the server and not them. All spellings count that vLLM's parser takes: underscores, --flag=value,
short forms, --no-flag, unique beginnings, and keys inside a JSON or dotted --…-config.
"""

import json
from collections.abc import Iterator, Sequence

# Of vLLM 0.25.1 and 0.32 (engine/arg_utils.py).
ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "--device-memory-utilization": "--gpu-memory-utilization",
}
FIELDS = {
    "--model": "model.source",
    "--revision": "model.revision",
    "--trust-remote-code": "model.trust_remote_code",
    "--load-format": "model.weights",
    "--max-model-len": "serve.headroom_tokens",
    "--enable-prefix-caching": "serve.prefix_caching",
    "--disable-custom-all-reduce": "serve.custom_all_reduce",
    "--compilation-config.cudagraph-mode": "serve.cudagraph_mode",
    "--attention-config.backend": "serve.attention_backend",
    **{
        f"--{name.replace('_', '-')}": f"serve.{name}"
        for name in (
            "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
            "prefill_context_parallel_size", "kv_cache_dtype", "attention_backend", "gpu_memory_utilization",
            "max_num_seqs", "max_num_batched_tokens", "enforce_eager",
        )
    },
}  # fmt: skip
OURS = {
    "--host": "the pipeline chooses the address",
    "--port": "the pipeline chooses the port",
    "--served-model-name": "requests ask for the campaign's own name",
    "--config": "a file of arguments is no part of the recipe's identity; write them here",
}


def faults(extra_args: Sequence[str]) -> Iterator[str]:
    """Yield 'serve.extra_args.<index>: …' for each argument that a field sets."""
    for index, word in enumerate(extra_args):
        following = extra_args[index + 1] if index + 1 < len(extra_args) else ""
        for flag in _flags(word, following):
            if flag in FIELDS:
                yield f"serve.extra_args.{index}: {word!r} has a field of its own; write {FIELDS[flag]} instead"
            elif flag in OURS:
                yield f"serve.extra_args.{index}: {word!r} is not possible; {OURS[flag]}"


def _flags(word: str, following: str) -> Iterator[str]:
    """Yield the flags that a word stands for, dotted for keys of a configuration, in vLLM's long spelling."""
    name, equals, value = word.partition("=")
    if not name.startswith("-"):
        return
    name, dot, key = name.partition(".")
    name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
    name = _whole(ALIASES.get(name, name))
    if dot:
        yield f"{name}.{key.partition('.')[0].replace('_', '-')}"
        return
    yield name
    if name.endswith("-config"):
        try:
            keys = json.loads(value if equals else following)
        except ValueError:
            return
        yield from (f"{name}.{key.replace('_', '-')}" for key in keys if isinstance(keys, dict))


def _whole(name: str) -> str:
    """Return the flag that a name negates or begins, the name itself where that is none of ours."""
    known = [flag.partition(".")[0] for flag in (*FIELDS, *OURS)]
    positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
    if positive in known or len(positive) < 4:
        return positive
    begun = {flag for flag in known if flag.startswith(positive)}
    return begun.pop() if len(begun) == 1 else positive
