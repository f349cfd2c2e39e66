"""Families of linear-attention and Mamba models, pure or mixed with softmax attention: a config's layers in order."""

from collections.abc import Callable
from dataclasses import replace

from longctx.model.blocks import biases, gdn, gqa, kda, mamba1, mamba2, mla, short_conv
from longctx.model.feedforward import dense, expert_counts, expert_layers, moe, placed, sparse_layers
from longctx.model.fields import Fields
from longctx.model.layers import NOTHING, Block, Layer


def _kimi_linear(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Kimi Linear and the text model of Kimi K3, which adds latent experts, output gates and residual attention."""
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    full = _kimi_full_layers(f, n)
    f.expect("tie_word_embeddings", False)  # transformers' class never ties them
    attention = mla(f, gate=f.flag("mla_use_output_gate", False))
    mixers = {True: ("mla", attention), False: ("kda", kda(f, dtype_bytes))}
    residual = f.get("attn_res_block_size", default=None) is not None  # two norms and two vectors more in each layer
    latent = f.count("routed_expert_hidden_size", default=0, at_least=0)
    ffns = expert_layers(f, n, latent=latent)
    norms = (6 if residual else 2) * hidden
    layers = [Layer(*mixers[i + 1 in full], ffn, norms) for i, ffn in enumerate(ffns)]
    if residual:
        layers[-1] = replace(layers[-1], norms=norms + 2 * hidden)
    return layers


def _kimi_full_layers(f: Fields, layers: int) -> set[int]:
    """Return the numbers, from 1, of the layers with attention; transformers 5.19 writes them as layer_types."""
    if not f.has("linear_attn_config") and f.has("layer_types"):
        kinds = f.strings("layer_types", layers, "full_attention", "linear_attention")
        return {i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"}
    f.skip("layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")
    linear = f.inner("linear_attn_config")
    full, delta = set(linear.items("full_attn_layers", int)), set(linear.items("kda_layers", int))
    if full & delta or full | delta != set(range(1, layers + 1)):
        problem = "and kda_layers do not name each layer once"
        raise linear.fail("full_attn_layers", problem, f"number them 1 to {layers}")
    return full


# Sizes of layer kinds that a model may not have.
_NEMOTRON_UNUSED = (
    "head_dim", "attention_head_dim", "n_routed_experts", "n_shared_experts", "moe_intermediate_size",
    "moe_shared_expert_intermediate_size", "num_experts_per_tok", "moe_latent_size",
)  # fmt: skip
_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SAME_KIND = {"linear_attention": "mamba", "full_attention": "attention"}  # as transformers 5 writes them


def _mamba_kinds(f: Fields, *kinds: str) -> list[str]:
    """Return each layer's kind from the list of them, whose length is the number of layers where no field has it."""
    name = "layers_block_type" if f.has("layers_block_type") else "layer_types"
    n = f.count("num_hidden_layers", default=len(f.items(name, str)))
    listed = f.strings(name, n, *kinds, *_SAME_KIND)
    return [_SAME_KIND.get(kind, kind) for kind in listed]


def _nemotron_h(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Nemotron-H: each layer is one of Mamba-2, attention, a squared-ReLU feed-forward, or routed ones of that kind."""
    hidden = f.count("hidden_size")
    if f.has("layers_block_type") or f.has("layer_types"):
        kinds = _mamba_kinds(f, *_NEMOTRON.values())
    else:
        n, pattern = f.count("num_hidden_layers"), f.get("hybrid_override_pattern")
        if not isinstance(pattern, str) or len(pattern) != n or set(pattern) - set(_NEMOTRON):
            raise f.fail("hybrid_override_pattern", f"is {pattern!r}", f"known are {n} letters of M, *, - and E")
        kinds = [_NEMOTRON[letter] for letter in pattern]
    f.expect("tie_word_embeddings", False)  # transformers' class never ties them
    inner = f.count("mamba_num_heads") * f.count("mamba_head_dim")
    recurrent = {"float32": 4}.get(f.text("mamba_ssm_cache_dtype", "float32"), dtype_bytes)
    names = "mamba_num_heads n_groups ssm_state_size conv_kernel use_conv_bias use_bias"
    mamba = mamba2(f, names, inner, dtype_bytes, recurrent_bytes=recurrent)
    builders: dict[str, Callable[[], tuple[str, Block, Block]]] = {
        "mamba": lambda: ("mamba2", mamba, NOTHING),
        "attention": lambda: ("full", gqa(f, own_dim=True), NOTHING),
        "mlp": lambda: ("mlp", NOTHING, dense(f, f.count("intermediate_size"), matrices=2)),
        "moe": lambda: ("moe", NOTHING, _nemotron_moe(f)),
    }
    f.skip(*_NEMOTRON_UNUSED)
    blocks = {kind: builders[kind]() for kind in dict.fromkeys(kinds)}
    return [Layer(*blocks[kind], hidden) for kind in kinds]


def _nemotron_moe(f: Fields) -> Block:
    experts, shared = f.count("n_routed_experts"), f.count("n_shared_experts", at_least=0)
    width = f.count("moe_shared_expert_intermediate_size") if shared else 0
    used, inner = f.count("num_experts_per_tok"), f.count("moe_intermediate_size")
    latent = f.count("moe_latent_size", default=0, at_least=0)
    return moe(f, experts, used, inner, shared=width, extra=experts, matrices=2, latent=latent)


def _jamba(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, norms, experts = f.count("num_hidden_layers"), 2 * f.count("hidden_size"), f.count("num_experts")
    inner = f.count("intermediate_size")
    attention_every, attention_at = f.count("attn_layer_period"), f.count("attn_layer_offset", at_least=0)
    sparse_every, sparse_at = f.count("expert_layer_period"), f.count("expert_layer_offset", at_least=0)
    mixers = {True: ("full", gqa(f)), False: ("mamba1", mamba1(f, dtype_bytes))}
    plain = dense(f, inner)
    sparse = moe(f, experts, f.count("num_experts_per_tok"), inner) if experts > 1 else plain
    ffns = [sparse if i % sparse_every == sparse_at else plain for i in range(n)]
    return [Layer(*mixers[i % attention_every == attention_at], ffn, norms) for i, ffn in enumerate(ffns)]


def _mamba_n(f: Fields, dtype_bytes: int, inner: int, *, norm: bool = True) -> Block:
    """Mamba-2 as Bamba, Granite and Falcon-H1 name its fields."""
    heads = f.count("mamba_n_heads")
    if f.get("mamba_d_head", default="auto") != "auto" and heads * f.count("mamba_d_head") != inner:
        raise f.fail("mamba_d_head", f"is {f.get('mamba_d_head')}", f"times mamba_n_heads ({heads}) it must be {inner}")
    names = "mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv mamba_conv_bias mamba_proj_bias"
    return mamba2(f, names, inner, dtype_bytes, norm=norm)


def _bamba(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    full = set(f.items("attn_layer_indices", int))
    mamba = _mamba_n(f, dtype_bytes, f.count("mamba_expand") * hidden)
    mixers = {True: ("full", gqa(f, **biases(f))), False: ("mamba2", mamba)}
    ffn = dense(f, f.count("intermediate_size"), biases=f.flag("mlp_bias", False))
    return [Layer(*mixers[i in full], ffn, 2 * hidden) for i in range(n)]


def _granite(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Granite 4: Mamba-2 or attention, then a shared feed-forward beside routed experts (none in the small ones)."""
    hidden, experts = f.count("hidden_size"), f.count("num_local_experts", at_least=0)
    kinds = _mamba_kinds(f, "mamba", "attention")
    shared = f.count("shared_intermediate_size")
    ffn = dense(f, shared)
    if experts:
        ffn = moe(f, experts, f.count("num_experts_per_tok"), f.count("intermediate_size"), shared=shared)
    mamba = _mamba_n(f, dtype_bytes, f.count("mamba_expand") * hidden)
    mixers = {"attention": ("full", gqa(f, mha=True, **biases(f))), "mamba": ("mamba2", mamba)}
    return [Layer(*mixers[kind], ffn, 2 * hidden) for kind in kinds]


def _falcon_h1(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Falcon-H1: attention and Mamba-2 side by side in each layer; here two layers, each with its own cache."""
    hidden, inner = f.count("hidden_size"), f.count("mamba_d_ssm")
    f.refuse("projectors_bias", "a bias of Mamba's output")
    f.refuse("mamba_proj_bias", "a bias of Mamba's input alone")
    mamba = _mamba_n(f, dtype_bytes, inner, norm=f.flag("mamba_rms_norm"))
    ffn = dense(f, f.count("intermediate_size"), biases=f.flag("mlp_bias", False))
    attention = Layer("full", gqa(f, **biases(f)), NOTHING, 0)
    return [attention, Layer("mamba2", mamba, ffn, 2 * hidden)] * f.count("num_hidden_layers")


def _mamba2(f: Fields, dtype_bytes: int) -> list[Layer]:
    hidden, inner, heads = f.count("hidden_size"), f.count("expand") * f.count("hidden_size"), f.count("num_heads")
    if heads * f.count("head_dim") != inner:
        raise f.fail("num_heads", f"is {heads}", f"times head_dim ({f.count('head_dim')}) it must be {inner}")
    f.skip("rms_norm")
    mixer = mamba2(f, "num_heads n_groups state_size conv_kernel use_conv_bias use_bias", inner, dtype_bytes)
    return [Layer("mamba2", mixer, NOTHING, hidden)] * f.count("num_hidden_layers")


# They repeat other fields, or say how the training began.
_LFM2_SAME = (
    "conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_dim", "block_mlp_init_scale", "block_norm_eps",
    "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init", "num_heads",
)  # fmt: skip


def _lfm2(f: Fields, dtype_bytes: int) -> list[Layer]:
    """LFM2: attention or a short convolution, whose last inputs are its state; plain or routed feed-forward blocks."""
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    if f.has("layer_types"):
        kinds = f.strings("layer_types", n, "full_attention", "conv")
        f.skip("full_attn_idxs")
    else:
        full = set(f.items("full_attn_idxs", int))
        kinds = ["full_attention" if i in full else "conv" for i in range(n)]
    mixers = {"full_attention": ("full", gqa(f, qk_norm="head")), "conv": ("conv", short_conv(f, dtype_bytes))}
    f.skip(*_LFM2_SAME)
    return [Layer(*mixers[kind], ffn, norms) for kind, ffn in zip(kinds, _lfm2_ffns(f, n), strict=True)]


def _lfm2_ffns(f: Fields, layers: int) -> list[Block]:
    if f.has("num_experts"):
        experts, used = expert_counts(f)
        extra = experts * f.flag("use_expert_bias", True)
        return placed(f, moe(f, experts, used, f.count("moe_intermediate_size"), extra=extra), sparse_layers(f, layers))
    width = f.count("block_ff_dim", "intermediate_size")
    if f.flag("block_auto_adjust_ff_dim"):
        factor, whole = f.get("block_ffn_dim_multiplier"), f.count("block_multiple_of")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            raise f.fail("block_ffn_dim_multiplier", f"is {factor!r}", "it must be a positive number")
        width = -(-int(factor * int(2 * width / 3)) // whole) * whole
    f.skip("block_ffn_dim_multiplier", "block_multiple_of")
    return [dense(f, width)] * layers


def _olmo_hybrid(f: Fields, dtype_bytes: int) -> list[Layer]:
    """OLMo hybrid: Gated DeltaNet or attention with norms as wide as all heads."""
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    kinds = f.strings("layer_types", n, "full_attention", "linear_attention")
    attention = gqa(f, qk_norm="layer", mha=True, **biases(f))
    mixers = {"full_attention": ("full", attention), "linear_attention": ("gdn", gdn(f, dtype_bytes))}
    ffn = dense(f, f.count("intermediate_size"))
    return [Layer(*mixers[kind], ffn, norms) for kind in kinds]


HYBRIDS: dict[str, Callable[[Fields, int], list[Layer]]] = {
    "kimi_linear": _kimi_linear, "nemotron_h": _nemotron_h, "jamba": _jamba, "bamba": _bamba,
    "granitemoehybrid": _granite, "falcon_h1": _falcon_h1, "mamba2": _mamba2, "lfm2": _lfm2,
    "lfm2_moe": _lfm2, "olmo_hybrid": _olmo_hybrid,
}  # fmt: skip
