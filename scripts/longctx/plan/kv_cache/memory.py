"""The memory of the layers on one rank: cache bytes per token, constant states, and the pages that vLLM makes of them.

vLLM gives the KV cache what gpu_memory_utilization leaves after weights, workspace and graphs. In hybrid models a page
is made as large as a layer's constant state (platforms/interface.py, 'Setting attention block size to N tokens').
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.model.kv_format import KvFormat
from longctx.model.layers import Attention, Layer
from longctx.plan.hardware import Parallelism
from longctx.plan.kv_cache.kv_groups import CachePage, PageKind

PARTITION = "VLLM_PP_LAYER_PARTITION"  # a variable of the server
BLOCK_TOKENS = 16
MLA_BLOCK_TOKENS = 64  # FlashMLA's page
CPU_BLOCK_TOKENS = 128
CPU_MLA_BLOCK_TOKENS = 16
COMPRESSED_BLOCK_TOKENS, COMPRESSED_WINDOW_TOKENS = 256, 64  # DeepSeek V4


@dataclass(frozen=True, slots=True)
class Memory:
    """One rank's budget in bytes; for a CPU server only `kv` is known. `kv` may be negative: weights do not fit."""

    kv: int
    weights: int | None = None
    workspace: int | None = None


def pipeline_stages(geometry: Geometry, stages: int, partition: str | None = None) -> list[list[Layer]]:
    """Return each stage's layers as vLLM splits them: evenly, the rest on late stages but not the last.

    `partition` is VLLM_PP_LAYER_PARTITION, each stage's number of layers; ConfigError for one that does not fit.
    """
    layers = list(geometry.each_layer())
    sizes = [len(layers) // stages] * stages
    for i in range(len(layers) % stages):
        sizes[-(i + 2) if stages > 1 else 0] += 1
    if partition is not None:
        sizes = [int(size) if size.strip().isdecimal() else 0 for size in partition.split(",")]
        if len(sizes) != stages or sum(sizes) != len(layers) or not all(sizes):
            wrong = f"{partition!r} is not {stages} numbers of layers that sum up to {len(layers)}"
            raise ConfigError(f"{PARTITION}: {wrong}")
    starts = [sum(sizes[:i]) for i in range(stages)]
    return [layers[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def token_bytes(attention: Attention, tensor: int, kv: KvFormat) -> int:
    """Return a layer's cache bytes per token on one rank: MLA replicated, GQA sharded down to one KV head."""
    entry = attention.sharded(tensor).entry_bytes(kv) + attention.index_bytes
    return ceil(entry / attention.tokens_per_entry)


def layer_kv_bytes(layer: Layer, parallelism: Parallelism, tokens: int, kv: KvFormat, *, read: bool = False) -> int:
    """Return the unpadded cache bytes of `tokens` in one layer on one rank, or those that a decode step reads."""
    if layer.attention is None:
        return 0
    attention = layer.attention.sharded(parallelism.tensor)
    held = tokens if attention.window else ceil(tokens / parallelism.decode_context)
    return attention.read_bytes(held, kv) if read else attention.cache_bytes(held, kv)


def states_bytes(layers: Sequence[Layer], tensor: int) -> list[int]:
    """Return the constant state of each layer that has one, on one rank; tensor parallelism shards its heads."""
    return [ceil(layer.state.size_bytes / tensor) for layer in layers if layer.state]


def block_tokens(geometry: Geometry, tensor: int, kv: KvFormat, kernel_tokens: int) -> int:
    """Return the tokens of a page of full attention: the kernel's, in hybrid models as many as a layer's state takes.

    `kernel_tokens` are those that vLLM rounds a hybrid model's page to.
    """
    largest_state = max(states_bytes(geometry.layers, tensor), default=0)
    caches = [layer.attention for layer in geometry.layers if layer.attention]
    per_token = max((token_bytes(attention, tensor, kv) for attention in caches), default=0)
    return kernel_tokens * max(1, ceil(largest_state / (kernel_tokens * per_token))) if per_token else kernel_tokens


def cache_pages(layer: Layer, tensor: int, kv: KvFormat, page_tokens: int, state_pages: int) -> list[CachePage]:
    """Return the pages of one layer's caches on one rank, attention before state; none for a layer without a cache."""
    pages = []
    if (attention := layer.attention) and attention.kind == "mla" and (attention.window or attention.local):
        return _compressed_pages(attention, kv)
    if attention and attention.kv_elements:
        page_bytes = page_tokens * token_bytes(attention, tensor, kv)
        kind: PageKind = "full" if attention.window is None else "chunk" if attention.chunked else "window"
        pages.append(CachePage(kind, page_tokens, page_bytes, attention.window or 0))
    pages += [CachePage("state", 0, size, state_pages) for size in states_bytes([layer], tensor)]
    return pages


def _compressed_pages(attention: Attention, kv: KvFormat) -> list[CachePage]:
    """Return the pages of DeepSeek V4's caches in one layer: a window of whole tokens, the entries, the index keys.

    The tokens of an entry that is still open are kept in FP32, with their weights; at ratio 4 two entries overlap.
    Sizes and alignment follow vLLM (models/deepseek_v4: attention.py and compressor.py; sparse_swa.py).
    """
    aligned, entry = 576 if kv.is_fp8 else 512, attention.entry_bytes(kv)

    def page(kind: PageKind, tokens: int, size: int, span: int = 0) -> CachePage:
        return CachePage(kind, tokens, ceil(size / aligned) * aligned, span, packed=True)

    span = attention.window or attention.local or 0
    pages = [page("window", COMPRESSED_WINDOW_TOKENS, COMPRESSED_WINDOW_TOKENS * entry, span)]
    if attention.window:
        return pages
    ratio = attention.tokens_per_entry
    entries, overlap, rows = COMPRESSED_BLOCK_TOKENS // ratio, 1 + (ratio == 4), 4 if ratio == 4 else 8
    pages.append(page("full", COMPRESSED_BLOCK_TOKENS, entries * entry))
    widths = [attention.qk_dim]
    if attention.indexer:
        pages.append(page("full", COMPRESSED_BLOCK_TOKENS, entries * attention.index_bytes))
        widths.append(attention.indexer.dim)
    return pages + [page("window", rows, rows * 2 * overlap * width * 4, overlap * ratio) for width in widths]
