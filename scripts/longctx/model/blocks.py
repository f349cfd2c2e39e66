"""The mixers of layers: attention, linear attention, Mamba.

Parameter formulas follow the reference implementations in Hugging Face transformers (modeling_<model_type>.py) and,
for Kimi Linear, flash-linear-attention; the tests compare them with the counts of those models. State types and
shapes follow vLLM (model_executor/layers/mamba/mamba_utils.py).
"""

from dataclasses import replace
from typing import Any

from longctx.model.fields import Fields
from longctx.model.layers import Attention, Block, Indexer, Matrix, State, parameters_of


def named(prefix: str, *modules: tuple[str, int, int], count: int = 1, copied: tuple[str, ...] = ()) -> list[Matrix]:
    """Return matrices from (name, rows, columns); those named in `copied` are whole on each rank."""
    return [Matrix(f"{prefix}.{name}", rows, cols, count, name in copied) for name, rows, cols in modules]


def gqa(
    f: Fields,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    dim: int | None = None,
    v_dim: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: str = "",
    gate: str = "",
    sinks: bool = False,
    own_dim: bool = False,
    mha: bool = False,
    window: int | None = None,
    chunked: bool = False,
) -> Block:
    """Grouped-query attention. `heads`, `kv_heads` and `dim` come from the standard fields where they are not given.

    `qk_norm` is 'head' (one norm for all heads) or 'layer' (as wide as all heads). `gate` on the output is 'query' (as
    wide as the queries, and part of their matrix), 'full' (as wide as the values) or 'head' (a number per head).
    `own_dim`: head_dim must be given, for transformers' class does not derive it; `mha`: the class reads an absent
    num_key_value_heads as all heads.
    """
    hidden = f.count("hidden_size")
    heads = heads or f.count("num_attention_heads")
    names = ("num_key_value_heads", "num_attention_groups")
    kv_heads = kv_heads or f.count(*names, **({"default": heads} if mha else {}))
    if heads % kv_heads:
        raise f.fail("num_key_value_heads", f"is {kv_heads}", f"it must divide num_attention_heads ({heads})")
    dim = dim or head_dim(f, heads, own_dim=own_dim)
    v_dim = v_dim or dim
    query, keys, values, output = heads * dim, kv_heads * dim, kv_heads * v_dim, heads * v_dim
    norm = {"": 0, "head": 2 * dim, "layer": query + keys}[qk_norm]
    gated, query = {"head": heads, "full": output}.get(gate, 0), query * 2 if gate == "query" else query
    projections = ("q_proj", query, hidden), ("k_proj", keys, hidden), ("v_proj", values, hidden)
    matrices = named("self_attn", *projections, ("o_proj", hidden, output))
    matrices += named("self_attn", ("g_proj", gated, hidden)) if gated else []
    parameters = parameters_of(matrices) + (query + keys + values) * qkv_bias + hidden * out_bias + norm + heads * sinks
    attention = Attention("gqa", heads, kv_heads, dim, v_dim, keys + values, window, chunked)
    width = query + keys + values + gated + output
    return Block(parameters, replicated=norm, width=width, attention=attention, matrices=tuple(matrices))


def head_dim(f: Fields, heads: int, *, own_dim: bool = False) -> int:
    """Return head_dim, or the hidden size divided by the heads where the file may leave it out."""
    hidden = f.count("hidden_size")
    if own_dim or f.has("head_dim"):
        return f.count("head_dim", "attention_head_dim")
    if hidden % heads:
        raise f.fail("head_dim", "is missing", f"hidden_size ({hidden}) is no multiple of the {heads} heads")
    return hidden // heads


def biases(f: Fields) -> dict[str, Any]:
    """Return gqa's options where attention_bias gives all four projections a bias."""
    bias = f.flag("attention_bias", False)
    return {"qkv_bias": bias, "out_bias": bias}


def windows(f: Fields, layers: int, *, switch: bool = False, period: int = 0) -> list[int | None]:
    """Return each layer's sliding window in tokens: `layer_types` where given, else sliding_window in all layers.

    `switch`: Qwen's use_sliding_window (off unless it says true), for layers from max_window_layers on. `period`: the
    class's own one layer in so many that sees everything; sliding_window_pattern in the file replaces it.
    """
    window = f.count("sliding_window", default=0, at_least=0) or None  # vLLM too reads 0 as none
    used = not switch or f.flag("use_sliding_window", False)
    kinds = ["sliding_attention"] * layers
    patterns = ("sliding_window_pattern", "_sliding_window_pattern")
    if f.has("layer_types"):
        kinds = f.strings("layer_types", layers, "full_attention", "sliding_attention")
        f.skip(*patterns)
        if "sliding_attention" in kinds and used:
            window = f.count("sliding_window")
    elif period and window is not None:
        kinds = _periodic(f, layers, f.get(*patterns, default=period))
    elif switch and used and window is not None:
        full = min(layers, f.count("max_window_layers", at_least=0))
        kinds[:full] = ["full_attention"] * full
    return [window if used and kind == "sliding_attention" else None for kind in kinds]


def _periodic(f: Fields, layers: int, pattern: object) -> list[str]:
    """Return each layer's kind by a period (each such layer is full) or letters of one period ('LLLG')."""
    if isinstance(pattern, str) and pattern and not set(pattern) - {"L", "G"}:
        kinds = {"L": "sliding_attention", "G": "full_attention"}
        listed = [kinds[pattern[i % len(pattern)]] for i in range(layers)]
        return [*listed[:-1], "full_attention"]  # transformers 4 and 5, configuration_exaone4.py: the last one is full
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 1:
        raise f.fail("sliding_window_pattern", f"is {pattern!r}", "it must be a period in layers, or letters L and G")
    return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]


FP8_SPARSE_MLA_BYTES = 656  # vLLM's fp8_ds_mla: 512 FP8, four FP32 scales, 64 BF16 (flashmla_sparse.py)
INDEX_SCALE_BLOCK = 128  # elements of an FP8 index key that share an FP32 scale (DeepseekV32IndexerCache)


def mla(f: Fields, *, indexed: bool | None = None, gate: bool = False) -> Block:
    """Multi-head latent attention: the cache keeps kv_lora_rank + qk_rope_head_dim elements per token.

    `indexed` is None for attention that sees everything; True for DeepSeek's sparse attention with an indexer of its
    own, False for one that takes the selection of an earlier layer. `gate`: an output gate as wide as the values.
    """
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    rank, rope = f.count("kv_lora_rank"), f.count("qk_rope_head_dim")
    nope, v_dim = f.count("qk_nope_head_dim"), f.count("v_head_dim")
    qk_dim = nope + rope
    if f.present("q_lora_rank") is not None:
        q_rank = f.count("q_lora_rank")
        query = [("q_a_proj", q_rank, hidden), ("q_b_proj", heads * qk_dim, q_rank)]
    else:
        q_rank, query = 0, [("q_proj", heads * qk_dim, hidden)]
    down, up = ("kv_a_proj_with_mqa", rank + rope, hidden), ("kv_b_proj", heads * (nope + v_dim), rank)
    f.refuse("attention_bias", "a bias in latent attention")
    copied = ("q_a_proj", "kv_a_proj_with_mqa")
    outer = [("o_proj", hidden, heads * v_dim)] + [("g_proj", heads * v_dim, hidden)] * gate
    matrices = named("self_attn", *query, down, up, *outer, copied=copied)
    norms = q_rank + rank
    attention = Attention("mla", heads, 1, qk_dim, v_dim, rank + rope)
    if indexed is not None:
        fp8_bytes = FP8_SPARSE_MLA_BYTES if rank + rope == 576 else None
        indexer, selected = _indexer(f, indexed), f.count("index_topk")
        attention = replace(attention, indexer=indexer, selected=selected, fp8_entry_bytes=fp8_bytes)
        if indexed:
            matrices += _index_matrices(hidden, q_rank, indexer)
            norms += 2 * indexer.dim
    replicated = norms + parameters_of([matrix for matrix in matrices if matrix.copied])
    width = heads * (2 * qk_dim + v_dim)
    return Block(
        parameters_of(matrices) + norms, replicated, width=width, attention=attention, matrices=tuple(matrices)
    )


def _indexer(f: Fields, own: bool) -> Indexer:
    """Return DeepSeek's lightning indexer; a layer without its own one only takes a selection."""
    heads, dim = f.count("index_n_heads"), f.count("index_head_dim")
    return Indexer(heads, dim, dim + dim // INDEX_SCALE_BLOCK * 4) if own else Indexer(0, dim, 0)


def _index_matrices(hidden: int, q_rank: int, indexer: Indexer) -> list[Matrix]:
    """Return the indexer's matrices: all index heads share one key; each rank has all of them."""
    heads, dim = indexer.heads, indexer.dim
    modules = ("wq_b", heads * dim, q_rank), ("wk", dim, hidden), ("weights_proj", heads, hidden)
    return named("self_attn.indexer", *modules, copied=("wq_b", "wk", "weights_proj"))


def kda(f: Fields, dtype_bytes: int) -> Block:
    """Kimi Delta Attention: FP32 recurrent state per head, three short convolutions."""
    hidden, names = f.count("hidden_size"), ("num_heads", "head_dim", "short_conv_kernel_size")
    linear = f.inner("linear_attn_config") if f.has("linear_attn_config") else f
    if linear is f:  # as transformers 5.19 writes it
        names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads, dim, kernel = (linear.count(name) for name in names)
    inner = heads * dim
    projections = [(f"{name}_proj", inner, hidden) for name in "qkv"] + [("o_proj", hidden, inner)]
    low = "f" if linear.flag("use_full_rank_gate", False) else "fg"  # gates that go through a rank of head_dim
    gates = [(f"{name}_a_proj", dim, hidden) for name in low] + [(f"{name}_b_proj", inner, dim) for name in low]
    gates += [("g_proj", inner, hidden)] if low == "f" else []
    copied = ("f_a_proj", "g_a_proj")
    matrices = named("self_attn", *projections, *gates, ("b_proj", heads, hidden), copied=copied)
    small = inner + heads + dim  # dt_bias, A_log, output norm
    parameters = parameters_of(matrices) + 3 * inner * kernel + small
    state = State(3 * inner * (kernel - 1), heads * dim * dim, dtype_bytes, 4)
    replicated = len(low) * hidden * dim + dim
    return Block(parameters, replicated, width=4 * inner, state=state, matrices=tuple(matrices))


def gdn(f: Fields, dtype_bytes: int) -> Block:
    """Gated DeltaNet as in Qwen3-Next; its state has the model's dtype unless mamba_ssm_dtype says otherwise."""
    hidden = f.count("hidden_size")
    k_heads, v_heads = f.count("linear_num_key_heads"), f.count("linear_num_value_heads")
    k_dim, v_dim = f.count("linear_key_head_dim"), f.count("linear_value_head_dim")
    kernel = f.count("linear_conv_kernel_dim")
    conv, value = 2 * k_heads * k_dim + v_heads * v_dim, v_heads * v_dim
    projections = ("in_proj_qkv", conv, hidden), ("in_proj_z", value, hidden), ("out_proj", hidden, value)
    gates = ("in_proj_b", v_heads, hidden), ("in_proj_a", v_heads, hidden)
    matrices = named("linear_attn", *projections, *gates)
    parameters = parameters_of(matrices) + conv * kernel + 2 * v_heads + v_dim
    recurrent = 4 if f.get("mamba_ssm_dtype", default="auto") == "float32" else dtype_bytes
    state = State(conv * (kernel - 1), v_heads * k_dim * v_dim, dtype_bytes, recurrent)
    return Block(parameters, replicated=v_dim, width=conv + value, state=state, matrices=tuple(matrices))


def mamba2(
    f: Fields, names: str, inner: int, dtype_bytes: int, *, norm: bool = True, recurrent_bytes: int | None = None
) -> Block:
    """Mamba-2 mixer: input and output projection, convolution, dt_bias, A and D per head, a gated norm.

    `names`: the fields of heads, groups, state size, kernel, bias of the convolution, bias of the projections.
    """
    *sizes, conv_bias_name, bias_name = names.split()
    heads, groups, state_size, kernel = (f.count(name) for name in sizes)
    conv_bias, bias = f.flag(conv_bias_name, True), f.flag(bias_name, False)
    hidden, conv = f.count("hidden_size"), inner + 2 * groups * state_size
    matrices = named("mamba", ("in_proj", inner + conv + heads, hidden), ("out_proj", hidden, inner))
    parameters = parameters_of(matrices) + conv * (kernel + conv_bias) + 3 * heads
    parameters += inner * norm + (inner + conv + heads + hidden) * bias
    state = State(conv * (kernel - 1), inner * state_size, dtype_bytes, recurrent_bytes or dtype_bytes)
    return Block(parameters, inner * norm, width=inner + conv, state=state, matrices=tuple(matrices))


def mamba1(f: Fields, dtype_bytes: int) -> Block:
    """Mamba-1 mixer with the three inner norms of Jamba."""
    hidden, n = f.count("hidden_size"), f.count("mamba_d_state")
    inner, kernel = f.count("mamba_expand") * hidden, f.count("mamba_d_conv")
    rank = f.get("mamba_dt_rank")
    rank = -(-hidden // 16) if rank == "auto" else f.count("mamba_dt_rank")
    outer = ("in_proj", 2 * inner, hidden), ("out_proj", hidden, inner)
    matrices = named("mamba", *outer, ("x_proj", rank + 2 * n, inner), ("dt_proj", inner, rank))
    parameters = parameters_of(matrices) + inner * kernel + inner * n + 2 * inner + rank + 2 * n
    parameters += inner * f.flag("mamba_conv_bias", True)
    parameters += (2 * inner + hidden) * f.flag("mamba_proj_bias", False)
    state = State(inner * (kernel - 1), inner * n, dtype_bytes, dtype_bytes)
    return Block(parameters, rank + 2 * n, width=3 * inner, state=state, matrices=tuple(matrices))


def short_conv(f: Fields, dtype_bytes: int) -> Block:
    """LFM2's gated short convolution: its state is the last inputs of the hidden size."""
    hidden, kernel, bias = f.count("hidden_size"), f.count("conv_L_cache"), f.flag("conv_bias", False)
    matrices = named("conv", ("in_proj", 3 * hidden, hidden), ("out_proj", hidden, hidden))
    parameters = parameters_of(matrices) + hidden * kernel + 5 * hidden * bias
    state = State(hidden * (kernel - 1), 0, dtype_bytes, dtype_bytes)
    return Block(parameters, width=4 * hidden, state=state, matrices=tuple(matrices))
