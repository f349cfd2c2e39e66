"""How many tokens of one sequence a rank's memory holds, as vLLM pages it.

vLLM gives the KV cache what gpu_memory_utilization leaves after weights, workspace and graphs, and cuts it into
blocks that all layer groups share (v1/core/kv_cache_utils.py). In hybrid models a block is made as large as a
layer's constant state (platforms/interface.py, 'Setting attention block size to N tokens'), groups are padded to
equal size, and the last block of a sequence is charged whole. All of it is reckoned here, so that the plan promises
no more than the server grants.
"""

from collections import Counter
from dataclasses import dataclass
from math import ceil, inf

from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.model.layers import Attention, Layer, State
from longctx.plan.hardware import Hardware, Parallelism

DEFAULT_UTILIZATION = 0.9  # vLLM 0.25.1's --gpu-memory-utilization
DEFAULT_BATCHED_TOKENS = 8192  # vLLM's usual chunk for a server on a large GPU
# Beside weights and KV: context, communication buffers and CUDA graphs, then activations of one prefill chunk. The
# factor counts the copies of the widest layer that live at once. Both set on one H200 probe (measured: 4.9 GiB with a
# 16,384-token chunk, planned: 5.3 GiB), so the plan errs towards less capacity.
FIXED_WORKSPACE_BYTES = 5 * 2**29
ACTIVATION_COPIES = 4
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
    tensor, context = parallelism.tensor, parallelism.decode_context
    for layer in geometry.layers:
        _check_blocks(layer, geometry.stored.block, tensor)
        attention = layer.attention
        if attention is None:
            continue
        if attention.heads % tensor:
            raise ConfigError(f"tensor_parallel_size: {tensor} does not divide the {attention.heads} attention heads")
        if attention.kind != "gqa":
            continue
        if max(attention.kv_heads, tensor) % min(attention.kv_heads, tensor):
            raise ConfigError(
                f"tensor_parallel_size: {tensor} and the {attention.kv_heads} KV heads do not divide each other"
            )
        if context > 1 and tensor < context * attention.kv_heads:
            raise ConfigError(
                f"decode_context_parallel_size: {context} needs at least {context * attention.kv_heads} TP ranks,"
                f" since this model's {attention.kv_heads} KV heads are sharded before the context is"
            )
    if parallelism.pipeline > geometry.layer_count:
        raise ConfigError(f"pipeline_parallel_size: {parallelism.pipeline} exceeds the {geometry.layer_count} layers")


def _check_blocks(layer: Layer, block: int, tensor: int) -> None:
    """Raise where a rank's share of a feed-forward width is no whole number of FP8 blocks (vLLM, fp8_utils.py)."""
    for width in layer.sharded_widths:
        if block and (width % tensor or width // tensor % block):
            raise ConfigError(
                f"tensor_parallel_size: {tensor} leaves {width / tensor:g} of a feed-forward width of {width} per rank,"
                f" which is no multiple of the {block} of the FP8 weights' blocks"
            )


def pipeline_stages(geometry: Geometry, stages: int) -> list[list[Layer]]:
    """Return each stage's layers as vLLM splits them: evenly, the rest on late stages but not the last."""
    layers = list(geometry.each_layer())
    sizes = [len(layers) // stages] * stages
    for i in range(len(layers) % stages):
        sizes[-(i + 2) if stages > 1 else 0] += 1
    starts = [sum(sizes[:i]) for i in range(stages)]
    return [layers[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def token_bytes(attention: Attention, tensor: int, kv_bytes: int) -> int:
    """Return a layer's cache bytes per token on one rank: MLA replicated, GQA sharded down to one KV head."""
    if attention.kind == "mla":
        return attention.kv_elements * kv_bytes
    per_head = attention.kv_elements // attention.kv_heads
    return per_head * ceil(attention.kv_heads / tensor) * kv_bytes


def state_bytes(state: State, tensor: int) -> int:
    """Return a layer's constant state on one rank; its heads are sharded by tensor parallelism."""
    return ceil(state.size_bytes / tensor)


def kv_bytes_per_rank(geometry: Geometry, parallelism: Parallelism, tokens: int, kv_dtype: str) -> int:
    """Return the cache bytes of `tokens` on the fullest rank, without padding."""
    size = geometry.kv_dtype_bytes(kv_dtype)
    stages = pipeline_stages(geometry, parallelism.pipeline)
    return max(sum(_layer_kv_bytes(layer, parallelism, tokens, size) for layer in stage) for stage in stages)


def _layer_kv_bytes(layer: Layer, parallelism: Parallelism, tokens: int, size: int) -> int:
    attention = layer.attention
    if attention is None:
        return 0
    seen = min(tokens, attention.window or tokens)
    held = seen if attention.window else ceil(seen / parallelism.decode_context)
    return held * token_bytes(attention, parallelism.tensor, size)


def state_bytes_per_rank(geometry: Geometry, parallelism: Parallelism) -> int:
    """Return the constant states' bytes on the fullest rank, without padding."""
    stages = pipeline_stages(geometry, parallelism.pipeline)
    return max(sum(state_bytes(y.state, parallelism.tensor) for y in stage if y.state) for stage in stages)


def weight_bytes_per_rank(geometry: Geometry, parallelism: Parallelism) -> int:
    """Return the weights on the fullest rank: matrices sharded, norms, routers and MLA down projections copied."""
    tensor = parallelism.tensor
    table = geometry.vocab_size * geometry.hidden_size * geometry.dtype_bytes / tensor
    totals = [_stage_weights(geometry, stage, tensor) for stage in pipeline_stages(geometry, parallelism.pipeline)]
    totals[0] += table
    if parallelism.pipeline > 1 or geometry.head_parameters:
        totals[-1] += table
    return ceil(max(totals))


def _stage_weights(geometry: Geometry, stage: list[Layer], tensor: int) -> float:
    total = 0.0
    for layer in stage:
        replicated = layer.parameters_replicated * max(geometry.stored.mixer, geometry.stored.ffn)
        total += (geometry.layer_bytes(layer) - replicated) / tensor + replicated
    return total


def workspace_bytes(geometry: Geometry, parallelism: Parallelism, batched_tokens: int) -> int:
    """Return what a rank needs beside weights and KV cache (see FIXED_WORKSPACE_BYTES)."""
    widest = max(layer.width for layer in geometry.layers) / parallelism.tensor
    elements = ACTIVATION_COPIES * batched_tokens * (widest + 2 * geometry.hidden_size)
    return FIXED_WORKSPACE_BYTES + ceil(elements * geometry.dtype_bytes)


def rank_memory(
    geometry: Geometry,
    hardware: Hardware,
    parallelism: Parallelism,
    *,
    gpu_memory_utilization: float | None = None,
    batched_tokens: int | None = None,
) -> Memory:
    """Return a GPU rank's budget: hbm * utilization - weights - workspace is left for the KV cache."""
    check_parallelism(geometry, parallelism)
    if parallelism.gpus > hardware.count:
        raise ConfigError(
            f"hardware.count: {parallelism.label} needs {parallelism.gpus} GPUs and there are {hardware.count}"
        )
    share = DEFAULT_UTILIZATION if gpu_memory_utilization is None else gpu_memory_utilization
    weights = weight_bytes_per_rank(geometry, parallelism)
    workspace = workspace_bytes(geometry, parallelism, batched_tokens or DEFAULT_BATCHED_TOKENS)
    return Memory(int(hardware.hbm_bytes * share) - weights - workspace, weights, workspace)


def block_tokens(geometry: Geometry, parallelism: Parallelism, kv_dtype: str, *, cpu: bool = False) -> int:
    """Return vLLM's block size in tokens; in hybrid models the smallest whose page holds a layer's state."""
    base = MLA_BLOCK_TOKENS if geometry.is_mla else CPU_BLOCK_TOKENS if cpu else BLOCK_TOKENS
    size = geometry.kv_dtype_bytes(kv_dtype)
    per_token = [token_bytes(y.attention, parallelism.tensor, size) for y in geometry.layers if y.attention]
    states = [state_bytes(y.state, parallelism.tensor) for y in geometry.layers if y.state]
    if not states or not per_token:
        return base
    return base * max(1, ceil(max(states) / (base * max(per_token))))


def _windowed_blocks(window: int, batched_tokens: int, block: int) -> int:
    return ceil((window - 1 + batched_tokens) / block) + 1


def _stage_capacity(
    stage: list[Layer], kv: int, block: int, parallelism: Parallelism, kv_element_bytes: int, batched_tokens: int
) -> float:
    """Return the tokens that one pipeline stage holds: pool blocks less the constant ones, over the full groups."""
    buckets = Counter(bucket for layer in stage if (bucket := _bucket(layer)) is not None)
    attention = [token_bytes(y.attention, parallelism.tensor, kv_element_bytes) for y in stage if y.attention]
    states = [state_bytes(y.state, parallelism.tensor) for y in stage if y.state]
    if not buckets:
        return inf
    page = max([block * max(attention, default=0), *states])
    smallest, largest = min(buckets.values()), max(buckets.values())
    group = largest if largest < 1.5 * smallest else smallest
    blocks = max(0, kv) // (page * group) - 1  # one block is vLLM's null block
    groups = {bucket: ceil(count / group) for bucket, count in buckets.items()}
    for (kind, window), count in groups.items():
        if kind == "state":
            blocks -= count
        elif window is not None:
            blocks -= count * _windowed_blocks(window, batched_tokens, block)
    if blocks < 0:
        return 0
    full = sum(count for (kind, window), count in groups.items() if kind != "state" and window is None)
    return blocks // full * block * parallelism.decode_context if full else inf


def _bucket(layer: Layer) -> tuple[str, int | None] | None:
    if layer.state:
        return ("state", None)
    return (layer.attention.kind, layer.attention.window) if layer.attention else None


def capacity_tokens(
    geometry: Geometry,
    parallelism: Parallelism,
    kv: int,
    kv_dtype: str,
    *,
    batched_tokens: int | None = None,
    cpu: bool = False,
) -> int | None:
    """Return the longest single sequence in tokens for `kv` bytes of KV cache per rank; None: not limited by it.

    Prompt, new tokens and headroom all count. The weakest pipeline stage decides.
    """
    block = block_tokens(geometry, parallelism, kv_dtype, cpu=cpu)
    size, chunk = geometry.kv_dtype_bytes(kv_dtype), batched_tokens or DEFAULT_BATCHED_TOKENS
    tokens = min(
        _stage_capacity(stage, kv, block, parallelism, size, chunk)
        for stage in pipeline_stages(geometry, parallelism.pipeline)
    )
    return None if tokens == inf else int(tokens)
