"""Block-sparse and compressed attention: MiniMax M3 and DeepSeek V4.

Sources: transformers' modeling_minimax_m3_vl.py and modeling_deepseek_v4.py; the caches are those of vLLM 0.32
(models/minimax_m3, models/deepseek_v4).
"""

from collections.abc import Callable
from dataclasses import replace

from longctx.model.blocks import INDEX_SCALE_BLOCK, gqa, mla, named
from longctx.model.feedforward import expert_counts, expert_layers, moe, placed, sparse_layers
from longctx.model.fields import Fields
from longctx.model.layers import Attention, Block, Indexer, Layer, parameters_of

M3_INDEX_BYTES = 2  # per element of the index keys: vLLM's default is BF16, whatever the KV cache's type
V4_FP8_ENTRY_BYTES = 584  # vLLM's fp8_ds_mla for 512 elements: 448 FP8, 64 BF16, 8 scales


def _minimax_m3(f: Fields, dtype_bytes: int) -> list[Layer]:
    """MiniMax M3: after the first layers a query sees the blocks of keys that an indexer selects."""
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    is_sparse_attention, sizes = _m3_sparse(f, n)
    if f.get("qk_norm_type", default="per_head") != "per_head" or not f.flag("use_qk_norm", True):
        raise f.fail("qk_norm_type", f"is {f.get('qk_norm_type', default=None)!r}", "known is per_head")
    f.refuse("attention_output_gate", "a gate on the attention's output")
    full = gqa(f, qk_norm="head", own_dim=True)
    heads, dim, block, blocks = sizes
    index = ("index_q_proj", heads * dim, hidden), ("index_k_proj", dim, hidden)
    matrices = (*full.matrices, *named("self_attn", *index, copied=("index_q_proj", "index_k_proj")))
    assert full.attention is not None
    indexer, selected = Indexer(heads, dim, dim * M3_INDEX_BYTES), block * blocks
    sparse = replace(
        full,
        parameters=full.parameters + hidden * (heads * dim + dim) + 2 * dim,
        replicated=full.replicated + hidden * (heads * dim + dim) + 2 * dim,
        attention=replace(full.attention, indexer=indexer, selected=selected),
        matrices=matrices,
    )
    mixers = {True: ("sparse", sparse), False: ("full", full)}
    ffns = _m3_ffns(f, n)
    return [Layer(*mixers[mark], ffn, 2 * hidden) for mark, ffn in zip(is_sparse_attention, ffns, strict=True)]


def _m3_sparse(f: Fields, layers: int) -> tuple[list[bool], tuple[int, int, int, int]]:
    """Return which layers are sparse, and the index heads, their size, tokens per block and selected blocks."""
    if f.has("sparse_attention_config"):
        inner = f.inner("sparse_attention_config")
        names = "sparse_num_index_heads sparse_index_dim sparse_block_size sparse_topk_blocks"
        marks = inner.items("sparse_attention_freq", int)
        if len(marks) != layers or set(marks) - {0, 1}:
            raise inner.fail("sparse_attention_freq", "is not a list of 0 or 1 per layer", f"give {layers} entries")
        is_sparse = [mark == 1 for mark in marks]
    else:
        inner, names = f, "index_n_heads index_head_dim index_block_size index_topk_blocks"
        kinds = f.strings("layer_types", layers, "full_attention", "minimax_m3_sparse")
        is_sparse = [kind == "minimax_m3_sparse" for kind in kinds]
        f.skip("index_local_blocks")
    heads, dim, block, blocks = (inner.count(name) for name in names.split())
    return is_sparse, (heads, dim, block, blocks)


def _m3_ffns(f: Fields, layers: int) -> list[Block]:
    (experts, used), inner = expert_counts(f), f.count("intermediate_size")
    if f.has("moe_intermediate_size") and f.count("moe_intermediate_size") != inner:
        raise f.fail("moe_intermediate_size", f"is {f.count('moe_intermediate_size')}", f"known is {inner}")
    shared = f.count("shared_intermediate_size") * f.count("n_shared_experts", default=1)
    extra = experts * f.flag("use_routing_bias", True)
    sparse = moe(f, experts, used, inner, shared=shared, extra=extra)
    return placed(f, sparse, sparse_layers(f, layers), width="dense_intermediate_size")


_V4_KINDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _deepseek_v4(f: Fields, dtype_bytes: int) -> list[Layer]:
    """DeepSeek V4: each layer sees a short window, and the context compressed by 4 (selected), by 128, or not at all.

    Hyper-connections carry `hc_mult` streams of the hidden state from layer to layer; their weights count as norms.
    """
    n, hidden, streams = f.count("num_hidden_layers"), f.count("hidden_size"), f.count("hc_mult")
    (experts, used), inner = expert_counts(f), f.count("moe_intermediate_size")
    f.expect("n_shared_experts", 1)
    hashed = _v4_hash_layers(f, n)
    mix = (2 + streams) * streams
    norms = 2 * hidden + 2 * (mix * streams * hidden + mix + 3)
    ratios = _v4_ratios(f, n)
    mixers = {ratio: _v4_attention(f, ratio) for ratio in set(ratios)}
    layers = []
    for ratio, is_hashed in zip(ratios, hashed, strict=True):
        ffn = moe(f, experts, used, inner, shared=inner, extra=0 if is_hashed else experts)
        kind = {0: "sliding", 4: "sparse", 128: "compressed"}[ratio]
        layers.append(Layer(kind, mixers[ratio], ffn, norms))
    head = streams * streams * hidden + streams + 1  # joins the streams before the output matrix
    layers[-1] = replace(layers[-1], norms=norms + head)
    return layers


def _v4_ratios(f: Fields, layers: int) -> list[int]:
    """Return how many tokens each layer compresses into one entry (0: it has a window only); MTP entries are cut."""
    if f.has("layer_types"):
        f.skip("compress_ratios", "compress_rates")
        return [_V4_KINDS[kind] for kind in f.strings("layer_types", layers, *_V4_KINDS)]
    ratios = f.items("compress_ratios", int)[:layers]
    if len(ratios) != layers or set(ratios) - set(_V4_KINDS.values()):
        raise f.fail("compress_ratios", "is not a list of 0, 4 or 128 per layer", f"give {layers} entries")
    return ratios


def _v4_hash_layers(f: Fields, layers: int) -> list[bool]:
    """Return which layers route by a table of token ids and have no correction bias."""
    if f.has("mlp_layer_types"):
        return [kind == "hash_moe" for kind in f.strings("mlp_layer_types", layers, "hash_moe", "moe")]
    hashed = f.count("num_hash_layers", at_least=0)
    return [i < hashed for i in range(layers)]


def _v4_attention(f: Fields, ratio: int) -> Block:
    """Return a layer's attention: one shared key-value head, a grouped low-rank output, sinks, and a compressor."""
    hidden, heads, dim = f.count("hidden_size"), f.count("num_attention_heads"), f.count("head_dim")
    q_rank, o_rank, groups = f.count("q_lora_rank"), f.count("o_lora_rank"), f.count("o_groups")
    if f.count("num_key_value_heads") != 1:
        raise f.fail("num_key_value_heads", f"is {f.count('num_key_value_heads')}", "known is one shared head")
    f.refuse("attention_bias", "a bias in latent attention")
    f.skip("qk_rope_head_dim", "qk_nope_head_dim", "index_n_heads", "index_head_dim", "index_topk")
    down = [("wq_a", q_rank, hidden), ("wkv", dim, hidden)]
    up = [("wq_b", heads * dim, q_rank), ("wo_a", groups * o_rank, heads * dim // groups),
          ("wo_b", hidden, groups * o_rank)]  # fmt: skip
    small = q_rank + dim  # norms
    attention = Attention("mla", heads, 1, dim, dim, dim, fp8_entry_bytes=V4_FP8_ENTRY_BYTES)
    window = f.count("sliding_window")
    if ratio:
        wide = 2 if ratio == 4 else 1  # the entries of ratio 4 overlap
        down += [("compressor.wkv", wide * dim, hidden), ("compressor.wgate", wide * dim, hidden)]
        small += ratio * wide * dim + dim
        attention = replace(attention, tokens_per_entry=ratio, local=window)
    else:
        attention = replace(attention, window=window)
    if ratio == 4:
        heads_i, dim_i = f.count("index_n_heads"), f.count("index_head_dim")
        down += [("indexer.wq_b", heads_i * dim_i, q_rank), ("indexer.weights_proj", heads_i, hidden),
                 ("indexer.compressor.wkv", 2 * dim_i, hidden),
                 ("indexer.compressor.wgate", 2 * dim_i, hidden)]  # fmt: skip
        small += ratio * 2 * dim_i + dim_i
        indexer = Indexer(heads_i, dim_i, dim_i + dim_i // INDEX_SCALE_BLOCK * 4)
        attention = replace(attention, indexer=indexer, selected=f.count("index_topk") * ratio)
    copied = named("attn", *down, copied=tuple(name for name, _, _ in down))
    matrices = (*copied, *named("attn", *up))
    replicated = small + parameters_of(copied)
    parameters = small + parameters_of(matrices) + heads  # sinks
    return Block(parameters, replicated, width=3 * heads * dim, attention=attention, matrices=matrices)


def _hy_v4(f: Fields, dtype_bytes: int) -> list[Layer]:
    """HY V4: sparse latent attention with sinks and an output gate, an indexer in some layers, hyper-connections."""
    n, hidden, streams = f.count("num_hidden_layers"), f.count("hidden_size"), f.count("hc_mult")
    f.strings("layer_types", n, "indexed_attention")
    own = [kind == "full" for kind in f.strings("indexer_types", n, "full", "shared")]
    mixers = {}
    for has in set(own):
        block = mla(f, indexed=has, gate=True)
        mixers[has] = replace(block, parameters=block.parameters + f.count("num_attention_heads"))  # sinks
    mix = 2 * streams
    norms = 2 * hidden + 2 * (mix * streams * hidden + mix + 2)
    layers = [Layer("sparse", mixers[has], ffn, norms) for has, ffn in zip(own, expert_layers(f, n), strict=True)]
    head = streams * streams * hidden + streams + 1
    layers[-1] = replace(layers[-1], norms=norms + head)
    return layers


SPARSE: dict[str, Callable[[Fields, int], list[Layer]]] = {
    "minimax_m3": _minimax_m3, "minimax_m3_vl_text": _minimax_m3, "deepseek_v4": _deepseek_v4,
    "hy_v4": _hy_v4,
}  # fmt: skip
