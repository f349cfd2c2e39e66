"""What a vLLM version starts, by the checks of its own configuration, and what differs between versions.

Read in vLLM 0.32 (config/model.py, config/parallel.py, config/vllm.py, v1/core, v1/worker) and seen with 0.25.1 on
H200 (docs/plan.md). Between the two, and before them, the older one's rules hold.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.model.kv_format import KvFormat
from longctx.plan.hardware import Parallelism

NEWEST = Version("0.32")
CHUNKED_GROUPS = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"  # a variable of the server


def vllm_version(required: str | None) -> Version:
    """Return the version that a recipe's `vllm_version` asks for; the newest known one for None and for a range."""
    exact = re.fullmatch(r"(?:==)?\s*v?(\d+(?:\.\d+)*)\S*", required or "")
    return Version(exact[1]) if exact else NEWEST


def default_utilization(version: Version) -> float:
    """Return vLLM's --gpu-memory-utilization where none is given."""
    return 0.92 if version >= NEWEST else 0.9


def hybrid_page_tokens(geometry: Geometry, kernel_tokens: int, version: Version) -> int:
    """Return what vLLM rounds a hybrid model's page to; 0.32 rounds MLA's to 128 tokens, which some kernels need."""
    return max(kernel_tokens, 128) if geometry.is_mla and version >= NEWEST else kernel_tokens


def check_split(geometry: Geometry, split: Parallelism) -> None:
    """Raise ConfigError for a split that cannot be: every version refuses it when it reads its configuration."""
    for fault in _faults(geometry, split):
        raise ConfigError(fault)


def _faults(geometry: Geometry, split: Parallelism) -> Iterator[str]:
    tensor, context, block = split.tensor, split.decode_context, geometry.quantization.block
    for layer in geometry.layers:
        for width in layer.ffn.sharded_widths:
            if width % tensor:
                yield f"tensor_parallel_size: {tensor} does not divide a feed-forward width of {width}"
            if block and width // tensor % block:  # a rank's share must be whole FP8 blocks (vLLM, fp8_utils.py)
                share = f"{width / tensor:g} of a feed-forward width of {width} per rank"
                whole = f"multiple of the {block} of the FP8 weights' blocks"
                yield f"tensor_parallel_size: {tensor} leaves {share}, which is no {whole}"
        if (attention := layer.attention) is None:
            continue
        if attention.heads % tensor:
            yield f"tensor_parallel_size: {tensor} does not divide the {attention.heads} attention heads"
        if attention.kind != "gqa":
            continue
        kv_heads = attention.kv_heads
        if max(kv_heads, tensor) % min(kv_heads, tensor):
            yield f"tensor_parallel_size: {tensor} and the {kv_heads} KV heads do not divide each other"
        if context > 1 and tensor < context * kv_heads:
            yield (
                f"decode_context_parallel_size: {context} needs at least {context * kv_heads} TP ranks,"
                f" since this model's {kv_heads} KV heads are sharded before the context is"
            )
        if context > 1 and attention.heads // kv_heads % context:
            queries = f"the {attention.heads // kv_heads} query heads of each KV head"
            yield f"decode_context_parallel_size: {context} does not divide {queries}"
    if split.pipeline > geometry.layer_count:
        yield f"pipeline_parallel_size: {split.pipeline} exceeds the {geometry.layer_count} layers"


def cpu_problem(geometry: Geometry, split: Parallelism, kv: KvFormat) -> str | None:
    """Return why vLLM's CPU build does not serve the model so, or None (0.32: v1/attention/backends/cpu_attn.py)."""
    if max(split.decode_context, split.prefill_context) > 1:
        return "vLLM on the CPU has no context parallelism"
    if split.pipeline > 1:  # seen with 0.32, eager: 'assert self.intermediate_tensors is not None'
        return "vLLM on the CPU starts with pipeline parallelism and dies at the first request"
    if any(layer.kind == "kda" for layer in geometry.layers):
        return "vLLM on the CPU has no kernel for KDA layers"
    if kv.key_bits < 16 and (geometry.is_mla or kv.name not in ("fp8", "fp8_e4m3", "fp8_e5m2")):
        return f"vLLM on the CPU does not store {'MLA' if geometry.is_mla else 'a KV cache'} as {kv.name}"
    return None


def start_problem(geometry: Geometry, split: Parallelism, version: Version) -> str | None:
    """Return why this version does not start the model with a split that its memory allows, or None.

    A combination that its code has and that nobody is known to have tried counts as a problem too.
    """
    attentions = [layer.attention for layer in geometry.layers if layer.attention]
    has_states = any(layer.state for layer in geometry.layers)
    kinds = {(attention.window, attention.chunked) for attention in attentions} | ({"state"} if has_states else set())
    name = f"vLLM {version}"
    if split.pipeline > 1 and not attentions:
        return f"{name} has no pipeline parallelism for models without attention"
    if split.prefill_context > 1 and version < NEWEST:
        return f"{name} does not run prefill context parallelism"
    if split.prefill_context > 1 and not geometry.is_mla:
        return f"{name} has prefill context parallelism for MLA models only"
    if max(split.decode_context, split.prefill_context) == 1:
        return None
    if len(kinds) > 1 and version < NEWEST:
        return f"{name} refuses context parallelism for hybrid models (layers with caches of several kinds)"
    if any(attention.window for attention in attentions):
        return f"{name} refuses context parallelism for layers with a window"
    if has_states:
        return f"{name} has context parallelism for hybrid models in its code, but nobody here has tried it"
    return None
