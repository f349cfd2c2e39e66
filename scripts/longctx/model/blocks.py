"""The blocks of layers: mixers (attention, linear attention, Mamba) and feed-forward networks.

Parameter formulas follow the reference implementations in Hugging Face transformers (modeling_<model_type>.py) and,
for Kimi Linear, flash-linear-attention; the tests compare them with the counts of those models. State types and
shapes follow vLLM (model_executor/layers/mamba/mamba_utils.py).
"""

from typing import Any

from longctx.model.fields import Fields
from longctx.model.layers import Attention, Block, Matrix, State


def _named(prefix: str, *modules: tuple[str, int, int], count: int = 1, copied: tuple[str, ...] = ()) -> list[Matrix]:
    """Return matrices from (name, rows, columns); those named in `copied` are whole on each rank."""
    return [Matrix(f"{prefix}.{name}", rows, cols, count, name in copied) for name, rows, cols in modules]


def _sum(matrices: list[Matrix]) -> int:
    return sum(matrix.parameters for matrix in matrices)


def gqa(
    f: Fields,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: str = "",
    gated: bool = False,
    sinks: bool = False,
    own_dim: bool = False,
    mha: bool = False,
    window: int | None = None,
    chunked: bool = False,
) -> Block:
    """Grouped-query attention; `gated` doubles the query projection (Qwen3-Next's output gate).

    `qk_norm` is 'head' (one norm for all heads) or 'layer' (as wide as all heads). `own_dim`: head_dim must be given,
    for transformers' class does not derive it; `mha`: the class reads an absent num_key_value_heads as all heads.
    """
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    kv_heads = f.count("num_key_value_heads", **({"default": heads} if mha else {}))
    if heads % kv_heads:
        raise f.fail("num_key_value_heads", f"is {kv_heads}", f"it must divide num_attention_heads ({heads})")
    if own_dim or f.has("head_dim"):
        dim = f.count("head_dim", "attention_head_dim")
    elif hidden % heads:
        raise f.fail("head_dim", "is missing", f"hidden_size ({hidden}) is no multiple of the {heads} heads")
    else:
        dim = hidden // heads
    query, keys = heads * dim * (2 if gated else 1), kv_heads * dim
    norm = {"": 0, "head": 2 * dim, "layer": heads * dim + keys}[qk_norm]
    projections = ("q_proj", query, hidden), ("k_proj", keys, hidden), ("v_proj", keys, hidden)
    matrices = _named("self_attn", *projections, ("o_proj", hidden, heads * dim))
    parameters = _sum(matrices) + (query + 2 * keys) * qkv_bias + hidden * out_bias + norm + heads * sinks
    attention = Attention("gqa", heads, kv_heads, dim, dim, 2 * keys, window, chunked)
    width = query + 2 * keys + heads * dim
    return Block(parameters, replicated=norm, width=width, attention=attention, matrices=tuple(matrices))


def biases(f: Fields) -> dict[str, Any]:
    """Return gqa's options where attention_bias gives all four projections a bias."""
    bias = f.flag("attention_bias", False)
    return {"qkv_bias": bias, "out_bias": bias}


def windows(f: Fields, layers: int, *, switch: bool = False) -> list[int | None]:
    """Return each layer's sliding window in tokens: `layer_types` where given, else sliding_window in all layers.

    `switch`: Qwen's use_sliding_window (off unless it says true), for layers from max_window_layers on.
    """
    window = f.count("sliding_window", default=0, at_least=0) or None  # vLLM too reads 0 as none
    used = not switch or f.flag("use_sliding_window", False)
    kinds = ["sliding_attention"] * layers
    if f.has("layer_types"):
        kinds = f.strings("layer_types", layers, "full_attention", "sliding_attention")
        if "sliding_attention" in kinds and used:
            window = f.count("sliding_window")
    elif switch and used and window is not None:
        full = min(layers, f.count("max_window_layers", at_least=0))
        kinds[:full] = ["full_attention"] * full
    return [window if used and kind == "sliding_attention" else None for kind in kinds]


def mla(f: Fields) -> Block:
    """Multi-head latent attention: the cache keeps kv_lora_rank + qk_rope_head_dim elements per token."""
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
    matrices = _named("self_attn", *query, down, up, ("o_proj", hidden, heads * v_dim), copied=copied)
    norms = q_rank + rank
    replicated, width = norms + hidden * (q_rank + rank + rope), heads * (2 * qk_dim + v_dim)
    attention = Attention("mla", heads, 1, qk_dim, v_dim, rank + rope)
    return Block(_sum(matrices) + norms, replicated, width=width, attention=attention, matrices=tuple(matrices))


def kda(f: Fields, dtype_bytes: int) -> Block:
    """Kimi Delta Attention: FP32 recurrent state per head, three short convolutions."""
    hidden, linear = f.count("hidden_size"), f.inner("linear_attn_config")
    heads, dim, kernel = linear.count("num_heads"), linear.count("head_dim"), linear.count("short_conv_kernel_size")
    inner = heads * dim
    projections = [(f"{name}_proj", inner, hidden) for name in "qkv"] + [("o_proj", hidden, inner)]
    down = [(f"{name}_a_proj", dim, hidden) for name in "fg"]  # forget and output gate go through a rank of head_dim
    up = [(f"{name}_b_proj", inner, dim) for name in "fg"]
    copied = ("f_a_proj", "g_a_proj")
    matrices = _named("self_attn", *projections, *down, *up, ("b_proj", heads, hidden), copied=copied)
    small = inner + heads + dim  # dt_bias, A_log, output norm
    parameters = _sum(matrices) + 3 * inner * kernel + small
    state = State(3 * inner * (kernel - 1), heads * dim * dim, dtype_bytes, 4)
    replicated = 2 * hidden * dim + dim
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
    matrices = _named("linear_attn", *projections, *gates)
    parameters = _sum(matrices) + conv * kernel + 2 * v_heads + v_dim
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
    matrices = _named("mamba", ("in_proj", inner + conv + heads, hidden), ("out_proj", hidden, inner))
    parameters = _sum(matrices) + conv * (kernel + conv_bias) + 3 * heads
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
    matrices = _named("mamba", *outer, ("x_proj", rank + 2 * n, inner), ("dt_proj", inner, rank))
    parameters = _sum(matrices) + inner * kernel + inner * n + 2 * inner + rank + 2 * n
    parameters += inner * f.flag("mamba_conv_bias", True)
    parameters += (2 * inner + hidden) * f.flag("mamba_proj_bias", False)
    state = State(inner * (kernel - 1), inner * n, dtype_bytes, dtype_bytes)
    return Block(parameters, rank + 2 * n, width=3 * inner, state=state, matrices=tuple(matrices))


def _ffn(prefix: str, hidden: int, inner: int, matrices: int, count: int = 1) -> list[Matrix]:
    """Return the matrices of a feed-forward network: gate (with three), up and down."""
    gate = [("gate_proj", inner, hidden)] * (matrices - 2)
    return _named(prefix, *gate, ("up_proj", inner, hidden), ("down_proj", hidden, inner), count=count)


def dense(f: Fields, inner: int, *, matrices: int = 3, biases: bool = False) -> Block:
    hidden = f.count("hidden_size")
    modules = _ffn("mlp", hidden, inner, matrices)
    parameters = _sum(modules) + ((matrices - 1) * inner + hidden) * biases
    return Block(parameters, width=(matrices - 1) * inner, sharded_widths=(inner,), matrices=tuple(modules))


def moe(
    f: Fields, experts: int, used: int, inner: int, shared: int = 0, extra: int = 0, matrices: int = 3, bias: int = 0
) -> Block:
    """Return routed experts of width `inner`, a shared one of width `shared`, and a router with `extra` parameters."""
    hidden = f.count("hidden_size")
    if used > experts:
        raise f.fail("num_experts_per_tok", f"is {used}", f"there are only {experts} experts")
    expert = matrices * hidden * inner + ((matrices - 1) * inner + hidden) * bias
    router = hidden * experts + extra
    modules = _ffn("mlp.experts.0", hidden, inner, matrices, experts)
    modules += _ffn("mlp.shared_experts", hidden, shared, matrices) if shared else []
    parameters = experts * expert + router + matrices * hidden * shared
    width, widths = (matrices - 1) * (used * inner + shared), (inner, shared) if shared else (inner,)
    return Block(parameters, router, experts * expert, used * expert, width, widths, matrices=tuple(modules))
