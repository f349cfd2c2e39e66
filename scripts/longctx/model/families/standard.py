"""The generic reader: layers from the fields that transformers' configurations have in common.

A family is one line of `STANDARD`: what its class does that its config.json does not say (`Traits`). The rest comes
from the standard fields: `layer_types` and `sliding_window`, `head_dim` and `num_key_value_heads`, `kv_lora_rank`,
`index_topk`, `mlp_layer_types`, `first_k_dense_replace`, the sizes of experts. The traits are those of transformers'
modeling_<model_type>.py; the tests compare the parameters with the models that it builds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from longctx.model.blocks import gqa, mla, windows
from longctx.model.feedforward import dense, expert_counts, expert_layers, moe, placed, qwen_layers
from longctx.model.fields import Fields
from longctx.model.layers import Block, Layer

FeedForward = Callable[[Fields, int], list[Block]]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a family's class does that the file does not say. A string is the name of the field that decides.

    `bias`: of all four projections of the attention; `qkv_bias`, `out_bias`: of some of them. `qk_norm`,
    `gate`, `sinks`, `own_dim` and `mha` as in `gqa`. `latent`: multi-head latent attention. `norms`: vectors of the
    hidden size in a layer; `norm_bias`: each norm, the model's last one too, has a bias beside its weight. `ffn`: each
    layer's feed-forward block. `switch` and `period` as in `windows`; `window_extra`: tokens that a windowed layer sees
    beyond sliding_window. `required`: fields whose absence would mean another size than null, and which the other
    readers leave to a default. `only`: values that fields may have where they are in the file, in a list for each
    layer; another value would be a model that this reader does not know.
    """

    ffn: FeedForward
    bias: str = ""
    qkv_bias: bool | str = False
    out_bias: str = ""
    qk_norm: str = ""
    gate: str = ""
    sinks: bool = False
    own_dim: bool = False
    mha: bool = False
    latent: bool = False
    norms: int = 2
    norm_bias: bool = False
    switch: bool = False
    period: int = 0
    window_extra: int = 0
    required: tuple[str, ...] = ()
    only: tuple[tuple[str, object], ...] = ()


def standard_layers(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Return the layers of a model whose family is one of STANDARD."""
    n, traits = f.count("num_hidden_layers"), STANDARD[str(f.get("model_type"))]
    hidden = f.count("hidden_size")
    norms = traits.norms * hidden * (1 + traits.norm_bias)
    for name in traits.required:
        f.present(name)
    for name, known in traits.only:
        f.expect(name, known)
    mixers = _latent_mixers(f, n) if traits.latent else attention_mixers(f, n, traits)
    layers = [Layer(*mixer, ffn, norms) for mixer, ffn in zip(mixers, traits.ffn(f, n), strict=True)]
    if traits.norm_bias:
        layers[-1] = replace(layers[-1], norms=norms + hidden)
    return layers


def attention_mixers(f: Fields, layers: int, traits: Traits) -> list[tuple[str, Block]]:
    """Return each layer's kind ('full' or 'sliding') and grouped-query attention."""

    bias = _flag(f, traits.bias)
    qkv_bias, out_bias = bias or _flag(f, traits.qkv_bias), bias or _flag(f, traits.out_bias)

    def build(window: int | None) -> tuple[str, Block]:
        block = gqa(
            f, qkv_bias=qkv_bias, out_bias=out_bias, qk_norm=_norm(f, traits.qk_norm),
            gate=traits.gate, sinks=traits.sinks, own_dim=traits.own_dim, mha=traits.mha, window=window,
        )  # fmt: skip
        return "full" if window is None else "sliding", block

    sliding = windows(f, layers, switch=traits.switch, period=traits.period)
    sliding = [window and window + traits.window_extra for window in sliding]
    built = {window: build(window) for window in dict.fromkeys(sliding)}
    return [built[window] for window in sliding]


def _flag(f: Fields, says: bool | str) -> bool:
    return f.flag(says, False) if says and isinstance(says, str) else bool(says)


def _norm(f: Fields, says: str) -> str:
    """Return the kind of norm on queries and keys; 'field:kind' is that kind where the file's field is true."""
    field, _, kind = says.rpartition(":")
    return kind if not field or f.flag(field) else ""


def _latent_mixers(f: Fields, layers: int) -> list[tuple[str, Block]]:
    """Return each layer's latent attention; with `index_topk` it is sparse, and `indexer_types` may share an indexer.

    Without `indexer_types` a layer has its own indexer where `index_topk_pattern` says F, or by `index_topk_freq` and
    `index_skip_topk_offset`, as in transformers' configuration_glm_moe_dsa.py and vLLM's deepseek_v2.py.
    """
    if not f.has("index_topk"):
        return [("mla", mla(f))] * layers
    if f.has("layer_types"):
        f.strings("layer_types", layers, "indexed_attention", "deepseek_sparse_attention")
    if f.has("indexer_types"):
        own = [kind == "full" for kind in f.strings("indexer_types", layers, "full", "shared")]
        f.skip("index_topk_freq", "index_skip_topk_offset", "index_topk_pattern")
    elif f.has("index_topk_pattern"):
        pattern = f.text("index_topk_pattern")
        if len(pattern) < layers or set(pattern) - {"F", "S"}:
            raise f.fail("index_topk_pattern", f"is {pattern!r}", f"it must be {layers} letters, F or S")
        own = [letter == "F" for letter in pattern[:layers]]
    else:
        every = f.count("index_topk_freq", default=1)
        offset = f.count("index_skip_topk_offset", default=2, at_least=0)
        own = [max(i - offset + 1, 0) % every == 0 for i in range(layers)]
    built = {has: ("sparse", mla(f, indexed=has)) for has in dict.fromkeys(own)}
    return [built[has] for has in own]


def _plain(bias: str = "", matrices: int = 3, extra: int = 0) -> FeedForward:
    """Return plain feed-forward blocks of intermediate_size; `bias` is the field that gives all matrices a bias.

    The activation has `extra` parameters of its own.
    """

    def build(f: Fields, layers: int) -> list[Block]:
        has_bias = bool(bias) and f.flag(bias, False)
        block = dense(f, f.count("intermediate_size"), biases=has_bias, matrices=matrices)
        return [replace(block, parameters=block.parameters + extra)] * layers

    return build


def _all_experts(*, correction: str = "", extra: int = 0, bias: bool = False, shared: str = "") -> FeedForward:
    """Return routed experts of intermediate_size in all layers (Mixtral, MiniMax M2, gpt-oss).

    The router has `extra` more parameters per expert, and one more where the field `correction` is not false. `shared`
    is the field with the width of a block that all tokens use.
    """

    def build(f: Fields, layers: int) -> list[Block]:
        experts, used = expert_counts(f)
        per_expert = extra + (f.flag(correction, True) if correction else 0)
        width, common = f.count("intermediate_size"), f.count(shared, default=0, at_least=0) if shared else 0
        return [moe(f, experts, used, width, shared=common, extra=per_expert * experts, bias=bias)] * layers

    return build


def _deepseek(correction: bool = True, first: int | None = None) -> FeedForward:
    """Return DeepSeek's blocks; `first` is the class's default of first_k_dense_replace where files leave it out."""

    def build(f: Fields, layers: int) -> list[Block]:
        return expert_layers(f, layers, correction=correction, first=first)

    return build


def _qwen(shared: bool) -> FeedForward:
    return lambda f, layers: qwen_layers(f, layers, shared=shared)


def _cohere_experts(f: Fields, layers: int) -> list[Block]:
    """Return Cohere's experts of intermediate_size, and a wider plain block in the first layers where there is one."""
    (experts, used), inner = expert_counts(f), f.count("intermediate_size")
    shared = f.count("num_shared_experts", default=0, at_least=0) * inner
    first = f.count("first_k_dense_replace", default=0, at_least=0)
    is_sparse = [i >= first for i in range(layers)]
    if f.has("mlp_layer_types"):
        is_sparse = [kind == "sparse" for kind in f.strings("mlp_layer_types", layers, "dense", "sparse")]
    f.skip("prefix_dense_sliding_window_pattern")
    return placed(f, moe(f, experts, used, inner, shared=shared), is_sparse, width="prefix_dense_intermediate_size")


def _hunyuan_experts(f: Fields, layers: int) -> list[Block]:
    """Return Hunyuan's experts beside a shared block, all of intermediate_size; files give lists of equal values."""
    width, listed = f.count("intermediate_size"), f.get("moe_topk")
    f.expect("moe_intermediate_size", width)
    used = listed[0] if isinstance(listed, list) and listed else listed
    f.expect("moe_topk", used)
    if isinstance(used, bool) or not isinstance(used, int):
        raise f.fail("moe_topk", f"is {listed!r}", "it must be a whole number or a list of them")
    return [moe(f, f.count("num_experts"), used, width, shared=width)] * layers


_PLAIN, _EXPERTS = _plain(), _deepseek()
_MLA = Traits(_EXPERTS, latent=True)
_TYPES, _BIAS = ("layer_types",), ("attention_bias",)
STANDARD: dict[str, Traits] = {
    "llama": Traits(_plain("mlp_bias"), bias="attention_bias", mha=True),
    "mistral": Traits(_PLAIN, required=("sliding_window",)),  # absent is 4096 to transformers, null is none
    "ministral": Traits(_PLAIN, required=("sliding_window",)),
    "ministral3": Traits(_PLAIN, own_dim=True),
    "phi3": Traits(_PLAIN, mha=True, only=(("full_attn_mod", 1),)),
    "qwen2": Traits(_PLAIN, qkv_bias=True, switch=True),
    "mimo": Traits(_PLAIN, qkv_bias="attention_bias", switch=True, required=_BIAS),
    "qwen3": Traits(_PLAIN, bias="attention_bias", qk_norm="head", own_dim=True, switch=True),
    "olmo2": Traits(_PLAIN, bias="attention_bias", qk_norm="layer", mha=True),
    "olmo3": Traits(_PLAIN, bias="attention_bias", qk_norm="layer", mha=True, required=_TYPES),
    "seed_oss": Traits(
        _plain("mlp_bias"), qkv_bias="attention_bias", out_bias="attention_out_bias", own_dim=True, required=_BIAS,
    ),
    "smollm3": Traits(_plain("mlp_bias"), bias="attention_bias", switch=True),
    "granite": Traits(_plain("mlp_bias"), bias="attention_bias", mha=True),
    "arcee": Traits(_plain("mlp_bias", matrices=2), bias="attention_bias", mha=True),
    "cwm": Traits(_plain("mlp_bias"), own_dim=True, required=_TYPES),
    "ernie4_5": Traits(_plain("use_bias"), bias="use_bias", own_dim=True),
    "glm": Traits(_PLAIN, qkv_bias="attention_bias", own_dim=True, required=_BIAS),
    "glm4": Traits(_PLAIN, qkv_bias="attention_bias", own_dim=True, norms=4, required=_BIAS),
    "exaone4": Traits(_PLAIN, qk_norm="head", period=4, required=("sliding_window",)),
    # Cohere counts the token itself beside the window (vLLM's commandr.py, cohere2_moe.py).
    "cohere2": Traits(
        _PLAIN, bias="attention_bias", mha=True, norms=1, period=4, window_extra=1,
        only=(("order_of_interleaved_layers", "local_attn_first"), ("use_parallel_block", True)),
    ),
    "gemma2": Traits(_PLAIN, bias="attention_bias", own_dim=True, norms=4, period=2),
    "gemma3_text": Traits(_PLAIN, bias="attention_bias", qk_norm="head", own_dim=True, norms=4, period=6),
    "gemma": Traits(_PLAIN, bias="attention_bias", own_dim=True),
    "cohere": Traits(_PLAIN, bias="attention_bias", qk_norm="use_qk_norm:layer", mha=True, norms=1),
    "apertus": Traits(  # its activation has two learned and two fixed numbers
        _plain("mlp_bias", matrices=2, extra=4), bias="attention_bias", qk_norm="head", mha=True,
        only=(("hidden_act", "xielu"), ("post_norm", False), ("qk_norm", True)),
    ),
    "nemotron": Traits(_plain("mlp_bias", matrices=2), bias="attention_bias", mha=True, norm_bias=True),
    "starcoder2": Traits(_plain("use_bias", matrices=2), bias="use_bias", norm_bias=True, required=("sliding_window",)),
    "hyperclovax": Traits(
        _plain("mlp_bias"), bias="attention_bias", mha=True, norms=4, only=(("use_post_norm", True),),
    ),
    "hunyuan_v1_dense": Traits(_PLAIN, bias="attention_bias", qk_norm="head", own_dim=True, mha=True,
        only=(("use_qk_norm", True), ("use_cla", False), ("mlp_bias", False), ("num_experts", 1)),
    ),
    "hunyuan_v1_moe": Traits(_hunyuan_experts, bias="attention_bias", qk_norm="head", own_dim=True, mha=True,
        only=(("use_qk_norm", True), ("use_cla", False), ("mlp_bias", False), ("num_shared_expert", 1),
              ("moe_layer_num_skipped", 0), ("use_mixed_mlp_moe", True)),
    ),
    "mixtral": Traits(_all_experts()),
    "olmoe": Traits(_all_experts(), bias="attention_bias", qk_norm="layer", mha=True),
    "flex_olmo": Traits(_all_experts(), bias="attention_bias", qk_norm="layer", mha=True),
    "phimoe": Traits(_all_experts(), bias="attention_bias", mha=True, norm_bias=True),
    "granitemoe": Traits(_all_experts(), bias="attention_bias", mha=True),
    "granitemoeshared": Traits(_all_experts(shared="shared_intermediate_size"), bias="attention_bias", mha=True),
    "minimax_m2": Traits(
        _all_experts(correction="use_routing_bias"), qk_norm="use_qk_norm:layer", own_dim=True,
        only=(("attn_type_list", 1), ("qk_norm_type", "per_layer"), ("layer_types", "full_attention")),
    ),
    "gpt_oss": Traits(
        _all_experts(extra=1, bias=True), bias="attention_bias", sinks=True, own_dim=True, required=_TYPES,
    ),
    "qwen2_moe": Traits(_qwen(shared=True), qkv_bias="qkv_bias", switch=True),
    "qwen3_moe": Traits(_qwen(shared=False), bias="attention_bias", qk_norm="head", switch=True),
    "mellum": Traits(_qwen(shared=False), bias="attention_bias", qk_norm="head", own_dim=True, required=_TYPES),
    "glm4v_text": Traits(_PLAIN, qkv_bias="attention_bias", norms=4, required=_BIAS),
    "glm4_moe": Traits(_EXPERTS, qkv_bias="attention_bias", qk_norm="use_qk_norm:head"),
    "glm4v_moe_text": Traits(_EXPERTS, qkv_bias="attention_bias", required=_BIAS, only=(("use_qk_norm", False),)),
    "dots1": Traits(_EXPERTS, bias="attention_bias", qk_norm="head", mha=True, switch=True),
    "solar_open": Traits(_deepseek(first=0), qkv_bias="attention_bias", own_dim=True),
    "hy_v3": Traits(_EXPERTS, bias="attention_bias", qk_norm="head", own_dim=True),
    "exaone_moe": Traits(_EXPERTS, qk_norm="head", period=4, required=("sliding_window",)),
    "ernie4_5_moe": Traits(_EXPERTS, only=(("use_bias", False),)),
    "afmoe": Traits(_EXPERTS, bias="attention_bias", qk_norm="head", gate="full", own_dim=True, norms=4, mha=True),
    "step3p5": Traits(_EXPERTS, bias="attention_bias", qk_norm="head", gate="head", own_dim=True, required=_TYPES),
    "cohere2_moe": Traits(
        _cohere_experts, bias="attention_bias", own_dim=True, mha=True, norms=1, window_extra=1, required=_TYPES,
    ),
    "deepseek_v2": Traits(_deepseek(correction=False), latent=True),
    "mistral4": Traits(_deepseek(correction=False), latent=True),
    "youtu": Traits(_PLAIN, latent=True),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa"), _MLA),
}  # fmt: skip
