"""The longest sequence by vLLM's own functions, for the plan's tests: run by .venv-vllm's Python, JSON in and out.

In: {"cases": […], "entries": […]}; out: the same keys with numbers. A case has `config` (a released config.json),
`tensor`, `pipeline`, `decode_context`, `kv_dtype`, `chunk` (max_num_batched_tokens), `kv_bytes` (of each rank), `gpu`,
`prefix_caching`; out come the tokens, or null where nothing limits them. An entry has `kv_dtype`, `heads` (0: MLA) and
`head_size`; out come the bytes of one token in one layer. The layers' specs are made here from the config; sizes of
pages, alignment, groups, stages, tokens in flight and the search are vLLM's.
"""

import contextlib
import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm import config as vllm_configs
from vllm.config import VllmConfig
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.attention.mla_attention import MLACommonBackend
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator, MambaStateShapeCalculator
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE, nvfp4_kv_cache_full_dim
from vllm.v1.attention.backend import AttentionBackend, MultipleOf
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
from vllm.v1.attention.ops.ultraquant.format import slot_size
from vllm.v1.core import kv_cache_utils as paging
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    get_kv_quant_mode,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

DTYPES = {**STR_DTYPE_TO_TORCH_DTYPE, "auto": torch.bfloat16}
LONGEST = 2**40


def kinds(text: dict[str, Any]) -> list[str]:
    """Return what each layer of the language model caches, by the fields that transformers and vLLM read."""
    count = text["num_hidden_layers"]
    if linear := text.get("linear_attn_config"):
        return ["mla" if i + 1 in linear["full_attn_layers"] else "kda" for i in range(count)]
    if ratios := text.get("compress_ratios"):
        return [f"v4_{ratio}" for ratio in ratios[:count]]
    if types := text.get("indexer_types"):
        return ["dsa" if kind == "full" else "dsa_shared" for kind in types]
    if blocks := text.get("sparse_attention_config"):
        return ["blocks" if sparse else "full" for sparse in blocks["sparse_attention_freq"]]
    if "kv_lora_rank" in text:
        return ["dsa" if "index_topk" in text else "mla"] * count
    if pattern := text.get("hybrid_override_pattern"):
        return [{"M": "mamba2", "*": "full"}.get(kind, "none") for kind in pattern]
    if pattern := text.get("hybrid_layer_pattern"):
        return ["window" if is_window else "full" for is_window in pattern]
    if types := text.get("layer_types"):
        names = {"full_attention": "full", "sliding_attention": "window", "linear_attention": "gdn"}
        return [names[kind] for kind in types]
    if text["model_type"] == "llama4_text":
        return ["full" if (i + 1) % 4 == 0 else "chunk" for i in range(count)]
    if text["model_type"] == "cohere2":
        return ["full" if (i + 1) % text["sliding_window_pattern"] == 0 else "window" for i in range(count)]
    if text["model_type"] == "gemma3_text":
        return ["full" if (i + 1) % 6 == 0 else "window" for i in range(count)]
    if text["model_type"] == "qwen3_next":
        return ["full" if (i + 1) % 4 == 0 else "gdn" for i in range(count)]
    return ["window" if text.get("sliding_window") else "full"] * count


def state(kind: str, text: dict[str, Any], tensor: int) -> tuple[Any, Any]:
    """Return the shapes and dtypes of a layer's constant state on one rank."""
    shapes, dtypes = MambaStateShapeCalculator, MambaStateDtypeCalculator
    if kind == "kda":
        linear = text["linear_attn_config"]
        heads, dim, kernel = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]
        return shapes.kda_state_shape(tensor, heads, dim, conv_kernel_size=kernel), dtypes.kda_state_dtype(
            torch.bfloat16, "auto"
        )
    if kind == "gdn":
        sizes = [text[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "key_head_dim")]
        sizes += [text["linear_value_head_dim"], text["linear_conv_kernel_dim"]]
        ssm = text.get("mamba_ssm_dtype", "auto")
        return shapes.gated_delta_net_state_shape(tensor, *sizes), dtypes.gated_delta_net_state_dtype(
            torch.bfloat16, "auto", ssm
        )
    heads, dim = text["mamba_num_heads"], text["mamba_head_dim"]
    names = ("n_groups", "ssm_state_size", "conv_kernel")
    groups, size, kernel = (text[name] for name in names)
    shape = shapes.mamba2_state_shape(tensor, heads * dim, groups, heads, dim, size, kernel)
    return shape, dtypes.mamba2_state_dtype(torch.bfloat16, "auto", text.get("mamba_ssm_cache_dtype", "auto"))


class Backend(AttentionBackend):
    """An attention kernel that takes pages of a multiple of `tokens`."""

    tokens = 16

    @classmethod
    def get_supported_kernel_block_sizes(cls, kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(cls.tokens)]


def servers_config(case: dict[str, Any], text: dict[str, Any], layers: list[str]) -> Any:
    """Return what vLLM's functions read of a VllmConfig, with the block size that its platform would set."""
    tensor, gpu, is_mla = case["tensor"], case["gpu"], "kv_lora_rank" in text
    layout = KVCacheLayout.BLNHC if "compress_ratios" in text else KVCacheLayout.LBNHC
    kv_heads = max(1, (text.get("num_key_value_heads") or text["num_attention_heads"]) // tensor)
    head_size = text["kv_lora_rank"] + text["qk_rope_head_dim"] if is_mla else text.get("head_dim") or (
        text["hidden_size"] // text["num_attention_heads"]
    )  # fmt: skip
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=LONGEST, use_mla=is_mla, dtype=torch.bfloat16, architecture="",
            get_num_kv_heads=lambda _: 1 if is_mla else kv_heads, get_head_size=lambda: head_size,
        ),
        cache_config=SimpleNamespace(
            cache_dtype=case["kv_dtype"], block_size=(64 if is_mla else 16) if gpu else 128, mamba_block_size=None,
            mamba_cache_mode="align" if case["prefix_caching"] else "none", num_gpu_blocks_override=None,
            mamba_page_size_padded=None, kv_cache_dtype_skip_layers=[], prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=case["pipeline"], decode_context_parallel_size=case["decode_context"],
            tensor_parallel_size=tensor,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=case["chunk"], async_scheduling=gpu,
            disable_hybrid_kv_cache_manager="chunk" in layers,
        ),
        attention_config=SimpleNamespace(hisparse_config=None), speculative_config=None, use_v2_model_runner=gpu,
    )  # fmt: skip
    config.max_concurrent_batches = VllmConfig.max_concurrent_batches.fget(config)
    config.max_in_flight_tokens = VllmConfig.max_in_flight_tokens.fget(config)
    states = {kind for kind in layers if kind in ("kda", "gdn", "mamba2")}
    if states:
        shapes, dtypes = state(states.pop(), text, tensor)
        model = SimpleNamespace(
            get_mamba_state_shape_from_config=lambda _: shapes, get_mamba_state_dtype_from_config=lambda _: dtypes
        )
        ModelRegistry.resolve_model_cls = lambda *_, **__: (model, "")
        Backend.tokens = 64 if is_mla else 16 if gpu else 32
        platform = type("OnePlatform", (), {"_find_non_ssm_backends": staticmethod(lambda _: [Backend])})
        Platform._align_hybrid_block_size.__func__(platform, config, Backend)
    return config


def spec(kind: str, text: dict[str, Any], case: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return the specs of one layer by the suffix of their names."""
    block, tensor, dtype = config.cache_config.block_size, case["tensor"], DTYPES[case["kv_dtype"]]
    if kind in ("kda", "gdn", "mamba2"):
        shapes, dtypes = state(kind, text, tensor)
        padded = config.cache_config.mamba_page_size_padded
        mode = config.cache_config.mamba_cache_mode
        block = config.cache_config.mamba_block_size or LONGEST
        return {"state": MambaSpec(
            block_size=block, shapes=shapes, dtypes=dtypes, page_size_padded=padded, mamba_cache_mode=mode
        )}  # fmt: skip
    quantized = get_kv_quant_mode(case["kv_dtype"])
    if kind.startswith("v4_"):
        return compressed(int(kind[3:]), text)
    if kind in ("mla", "dsa", "dsa_shared"):
        size = text["kv_lora_rank"] + text["qk_rope_head_dim"]
        latent = MLAAttentionSpec(
            block_size=block, num_kv_heads=1, head_size=size, dtype=dtype, kv_quant_mode=quantized, max_tp_shards=1,
            cache_dtype_str=case["kv_dtype"],
            state_content_bytes=656 if kind != "mla" and quantized else None,  # fp8 becomes fp8_ds_mla
        )  # fmt: skip
        if kind != "dsa":
            return {"attn": latent}
        keys = text["index_head_dim"]  # FP8 with a scale of four bytes for every 128 (models/deepseek_v32)
        index = MLAAttentionSpec(
            block_size=block, num_kv_heads=1, head_size=keys + keys // 128 * 4, dtype=torch.uint8, max_tp_shards=1
        )
        return {"attn": latent, "indexer": index}
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    heads, value = text.get("num_key_value_heads") or text["num_attention_heads"], text.get("v_head_dim") or head
    if kind == "window" and "swa_num_key_value_heads" in text:
        heads, head, value = text["swa_num_key_value_heads"], text["swa_head_dim"], text["swa_v_head_dim"]
    if kind == "full" and "global_head_dim" in text:
        heads, head = text.get("num_global_key_value_heads") or heads, text["global_head_dim"]
        value = head
    common = {
        "block_size": block, "num_kv_heads": max(1, heads // tensor), "head_size": head, "head_size_v": value,
        "dtype": dtype, "kv_quant_mode": quantized,
    }  # fmt: skip
    if kind == "blocks":  # models/minimax_m3/common/indexer.py
        keys = text["sparse_attention_config"]["sparse_index_dim"]
        index = MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=keys, dtype=torch.bfloat16)
        return {"attn": FullAttentionSpec(**common), "indexer": index}
    if kind == "window":
        window = text["sliding_window"] + (text["model_type"] == "cohere2")  # models/commandr.py adds the token itself
        return {"attn": SlidingWindowSpec(**common, sliding_window=window)}
    if kind == "chunk":
        return {"attn": ChunkedLocalAttentionSpec(**common, attention_chunk_size=text["attention_chunk_size"])}
    return {"attn": FullAttentionSpec(**common)}


def compressed(ratio: int, text: dict[str, Any]) -> dict[str, Any]:
    """Return the specs of one layer of DeepSeek V4 with the fp8_ds_mla layout (models/deepseek_v4, sparse_swa.py)."""
    common = {"num_kv_heads": 1, "max_tp_shards": 1, "alignment": 576}
    packed = {"head_size": text["head_dim"], "dtype": torch.uint8, "state_content_bytes": 584}
    packed["cache_dtype_str"] = "fp8_ds_mla"
    specs = {"swa": SlidingWindowMLASpec(block_size=64, sliding_window=text["sliding_window"], **common, **packed)}
    if not ratio:
        return specs
    specs["attn"] = MLAAttentionSpec(
        block_size=256, tokens_per_state=ratio, model_version="deepseek_v4", **common, **packed
    )
    overlap, rows, keys = 1 + (ratio == 4), 4 if ratio == 4 else 8, text["index_head_dim"]
    state = {"block_size": rows, "dtype": torch.float32, "sliding_window": overlap * ratio, **common}
    specs["state"] = SlidingWindowMLASpec(head_size=2 * overlap * text["head_dim"], **state)
    if ratio == 4:
        row = keys + keys // 128 * 4
        specs["index"] = MLAAttentionSpec(
            block_size=256, head_size=row, dtype=torch.uint8, tokens_per_state=4, **common
        )
        specs["index_state"] = SlidingWindowMLASpec(head_size=2 * overlap * keys, **state)
    return specs


def longest_sequence(case: dict[str, Any]) -> int | None:
    """Return the tokens of the longest sequence that every stage's memory holds."""
    text = case["config"].get("text_config", case["config"])
    layers = kinds(text)
    config, stages = servers_config(case, text, layers), []
    for stage in range(case["pipeline"]):
        first, last = get_pp_indices(len(layers), stage, case["pipeline"])
        named = ((i, spec(layers[i], text, case, config)) for i in range(first, last) if layers[i] != "none")
        stages.append({f"layers.{i}.{name}": one for i, specs in named for name, one in specs.items()})
    merged = {name: one for specs in stages for name, one in specs.items()}
    groups = paging.get_kv_cache_groups(config, merged)
    tokens = LONGEST
    for specs in stages:
        projected = paging._project_kv_cache_groups_to_worker(groups, specs)
        block = paging._pool_bytes_per_block(config, projected)
        usable = case["kv_bytes"] - block
        tokens = min(tokens, paging._estimate_max_model_len_from_groups(config, projected, usable))
    return None if tokens == LONGEST else tokens


def entry_bytes(entry: dict[str, Any]) -> int:
    """Return the bytes of one token in one layer, as the backend that takes this dtype packs it."""
    name, size = entry["kv_dtype"], entry["head_size"]
    common = {"block_size": 1, "head_size": size, "dtype": DTYPES[name], "kv_quant_mode": get_kv_quant_mode(name)}
    if not entry["heads"]:
        own = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}.get(name)  # MLAAttention.get_kv_cache_spec
        return MLACommonBackend.customize_spec(
            MLAAttentionSpec(**common, num_kv_heads=1, cache_dtype_str=name, state_content_bytes=own)
        ).page_size_bytes
    plain = FullAttentionSpec(**common, num_kv_heads=entry["heads"])
    if name.startswith("nvfp4"):  # these two as in the backends' customize_spec, whose modules need a GPU
        content = nvfp4_kv_cache_full_dim(size)
        return replace(plain, num_head_slots=2 * entry["heads"], state_content_bytes=content).page_size_bytes
    if name.startswith("ultraquant"):
        return replace(plain, state_content_bytes=slot_size(size)).page_size_bytes
    backend = TurboQuantAttentionBackend if name.startswith("turboquant") else TritonAttentionBackend
    return backend.customize_spec(plain).page_size_bytes


if __name__ == "__main__":
    vllm_configs.vllm.set_current_vllm_config = lambda _: contextlib.nullcontext()
    asked = json.load(sys.stdin)
    answer = {"cases": list(map(longest_sequence, asked["cases"])), "entries": list(map(entry_bytes, asked["entries"]))}
    json.dump(answer, sys.stdout)
