"""A server recipe: what a campaign asks of a server (vLLM 0.25.1 and 0.32; older flags are not tried)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from longctx.campaign.config import CampaignConfig
from longctx.campaign.mode import campaign_facet

# Each step of the engine in the log, with its tokens and its time.
LOG_ITERATIONS = "--enable-logging-iteration-details"
# vLLM's load format by model.weights; longctx_random is registered by vllm_plugins/random_weights.py.
LOAD_FORMATS = {"real": "auto", "random": "longctx_random", "dummy": "dummy"}


# What changes no number: left out of a recipe's identity.
OPERATIONAL = {
    "serve": ("python", "start_timeout_s", "contract"),
    "measure": ("stall_s", "blind_stall_s", "retry_doubtful"),
}


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
    revision: str | None = None
    trust_remote_code: bool = False
    load_format: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
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
        """GPUs of the whole server; ranks that share one sequence's cache are among those of TP and PCP."""
        one_replica = self.tensor_parallel_size * self.pipeline_parallel_size * self.prefill_context_parallel_size
        return one_replica * self.data_parallel_size


def serve_settings(config: CampaignConfig, mode: str, length: int, checkpoint_dir: Path | None) -> dict[str, Any]:
    """Return the fields of a recipe for prompts up to `length` tokens; `served_name` and `model` are the campaign's."""
    serve, fields = config.serve, set(Recipe.__dataclass_fields__)
    settings = serve.model_dump(include=fields) | config.model.model_dump(include=fields)
    settings["max_model_len"] = length + serve.headroom_tokens
    settings["load_format"] = LOAD_FORMATS[config.model.weights]
    settings["prefix_caching"] |= config.checkpoint is not None or campaign_facet(mode).needs_prefix_caching
    if config.model.source == "synthetic" and not config.model.geometry:
        # A rotary table just long enough for the tiny Llama: it has no limit, and a long one costs gigabytes.
        override = orjson.dumps({"max_position_embeddings": settings["max_model_len"]}).decode()
        settings["extra_args"] += ("--hf-overrides", override)
    if campaign_facet(mode).logs_iterations:
        settings["extra_args"] += (LOG_ITERATIONS,)
    if serve.cpu_kv_cache_gib:
        settings["env"].setdefault("VLLM_CPU_KVCACHE_SPACE", str(serve.cpu_kv_cache_gib))
    if config.checkpoint:
        # vLLM 0.25.1 finds no block of an earlier process unless both hash alike.
        settings["env"].setdefault("PYTHONHASHSEED", "0")
    versions = {"vllm": serve.vllm_version, "aiter": serve.aiter_version}
    settings["versions"] = {name: version for name, version in versions.items() if version}
    connector = campaign_facet(mode).kv_transfer_config(config)
    if connector is None and checkpoint_dir and config.checkpoint:
        extra: dict[str, Any] = {"spec_name": "TieringOffloadingSpec"}
        extra["cpu_bytes_to_use"] = int(config.checkpoint.cpu_gib * 2**30)
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(checkpoint_dir)}]
        connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return settings | {"kv_transfer_config": connector}


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterable[str]:
    """Yield 'key: old -> new' for every setting that differs between two identities."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from changed_settings(before, after, f"{path}{key}.")
        elif before != after:
            yield f"{path}{key}: {before!r} -> {after!r}"
