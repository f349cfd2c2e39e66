"""The memory of the layers on one rank, and how vLLM pages it.

vLLM gives the KV cache what gpu_memory_utilization leaves after weights, workspace and graphs. It cuts the cache into
blocks that all layer groups share (v1/core/kv_cache_utils.py). In hybrid models a block is made as large as a layer's
constant state (platforms/interface.py, 'Setting attention block size to N tokens'), groups are padded to equal size,
and the last block of a sequence is charged whole. The plan follows all of it, so that it promises no more than the
server grants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.model.layers import Attention, Layer
from longctx.plan.hardware import Parallelism

BLOCK_TOKENS = 16
MLA_BLOCK_TOKENS = 64  # FlashMLA's page
CPU_BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Memory:
    """One rank's budget in bytes; for a CPU server only `kv` is known. `kv` may be negative: weights do not fit."""

    kv: int
    weights: int | None = None
    workspace: int | None = None


def check_parallelism(geometry: Geometry, parallelism: Parallelism) -> None:
    """Raise ConfigError for a split that vLLM refuses for this model."""
    tensor, context, block = parallelism.tensor, parallelism.decode_context, geometry.quantization.block
    for layer in geometry.layers:
        for width in layer.ffn.sharded_widths:  # a rank's share must be whole FP8 blocks (vLLM, fp8_utils.py)
            if block and (width % tensor or width // tensor % block):
                share = f"{width / tensor:g} of a feed-forward width of {width} per rank"
                whole = f"multiple of the {block} of the FP8 weights' blocks"
                raise ConfigError(f"tensor_parallel_size: {tensor} leaves {share}, which is no {whole}")
        if (attention := layer.attention) is None:
            continue
        if attention.heads % tensor:
            raise ConfigError(f"tensor_parallel_size: {tensor} does not divide the {attention.heads} attention heads")
        if attention.kind != "gqa":
            continue
        kv_heads = attention.kv_heads
        if max(kv_heads, tensor) % min(kv_heads, tensor):
            raise ConfigError(f"tensor_parallel_size: {tensor} and the {kv_heads} KV heads do not divide each other")
        if context > 1 and tensor < context * kv_heads:
            raise ConfigError(
                f"decode_context_parallel_size: {context} needs at least {context * kv_heads} TP ranks,"
                f" since this model's {kv_heads} KV heads are sharded before the context is"
            )
    if parallelism.pipeline > geometry.layer_count:
        raise ConfigError(f"pipeline_parallel_size: {parallelism.pipeline} exceeds the {geometry.layer_count} layers")


def pipeline_stages(geometry: Geometry, stages: int) -> list[list[Layer]]:
    """Return each stage's layers as vLLM splits them: evenly, the rest on late stages but not the last."""
    layers = list(geometry.each_layer())
    sizes = [len(layers) // stages] * stages
    for i in range(len(layers) % stages):
        sizes[-(i + 2) if stages > 1 else 0] += 1
    starts = [sum(sizes[:i]) for i in range(stages)]
    return [layers[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def token_bytes(attention: Attention, tensor: int, element_bytes: int) -> int:
    """Return a layer's cache bytes per token on one rank: MLA replicated, GQA sharded down to one KV head."""
    entry = attention.sharded(tensor).entry_bytes(element_bytes) + attention.index_bytes
    return ceil(entry / attention.tokens_per_entry)


def layer_kv_bytes(
    layer: Layer, parallelism: Parallelism, tokens: int, element_bytes: int, *, read: bool = False
) -> int:
    """Return the unpadded cache bytes of `tokens` in one layer on one rank, or those that a decode step reads."""
    if layer.attention is None:
        return 0
    attention = layer.attention.sharded(parallelism.tensor)
    held = tokens if attention.window else ceil(tokens / parallelism.decode_context)
    return attention.read_bytes(held, element_bytes) if read else attention.cache_bytes(held, element_bytes)


def states_bytes(layers: Sequence[Layer], tensor: int) -> list[int]:
    """Return the constant state of each layer that has one, on one rank; tensor parallelism shards its heads."""
    return [ceil(layer.state.size_bytes / tensor) for layer in layers if layer.state]


def tokens_bytes(layers: Sequence[Layer], tensor: int, element_bytes: int) -> list[int]:
    """Return `token_bytes` of each layer that has attention."""
    return [token_bytes(layer.attention, tensor, element_bytes) for layer in layers if layer.attention]
