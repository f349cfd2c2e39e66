"""From a config.json to layers, one builder per model family.

Parameter formulas follow the reference implementations in Hugging Face transformers (modeling_<model_type>.py) and,
for Kimi Linear, flash-linear-attention; the tests compare them with the counts of those models. State types and
shapes follow vLLM (model_executor/layers/mamba/mamba_utils.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from longctx.geometry import Attention, Geometry, Layer, State
from longctx.modelfields import Fields, weight_bytes

# Class defaults that released config.json files rely on (transformers 4.50 and 5: configuration_gemma3.py).
_GEMMA3_DEFAULTS = {
    "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "sliding_window_pattern": 6, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """A mixer (attention or linear) or a feed-forward part: its parameters and what it caches."""

    parameters: int
    active: int
    replicated: int = 0
    experts: int = 0
    experts_active: int = 0
    width: int = 0
    attention: Attention | None = None
    state: State | None = None


NOTHING = Part(0, 0)


def _layer(kind: str, mixer: Part, ffn: Part, norms: int) -> Layer:
    return Layer(
        kind=kind, count=1, attention=mixer.attention, state=mixer.state,
        parameters=mixer.parameters + ffn.parameters + norms,
        parameters_active=mixer.active + ffn.active + norms,
        parameters_replicated=mixer.replicated + ffn.replicated + norms,
        parameters_experts=ffn.experts, parameters_experts_active=ffn.experts_active,
        width=max(mixer.width, ffn.width),
    )  # fmt: skip


def _merge(layers: list[Layer]) -> tuple[Layer, ...]:
    runs: list[Layer] = []
    for layer in layers:
        if runs and replace(runs[-1], count=1) == layer:
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            runs.append(layer)
    return tuple(runs)


# --- mixers ---------------------------------------------------------------------------------------------------


def gqa(fields: Fields, *, qkv_bias: bool = False, out_bias: bool = False, qk_norm: bool = False, gated: bool = False,
        sinks: bool = False, window: int | None = None, chunked: bool = False) -> Part:  # fmt: skip
    """Grouped-query attention; `gated` doubles the query projection (Qwen3-Next's output gate)."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.fail("num_key_value_heads", f"is {kv_heads}", f"it must divide num_attention_heads ({heads})")
    if fields.has("head_dim"):
        dim = fields.count("head_dim")
    elif hidden % heads:
        raise fields.fail("head_dim", "is missing", f"hidden_size ({hidden}) is no multiple of the {heads} heads")
    else:
        dim = hidden // heads
    query = heads * dim * (2 if gated else 1)
    parameters = hidden * (query + 2 * kv_heads * dim) + heads * dim * hidden
    parameters += (query + 2 * kv_heads * dim) * qkv_bias + hidden * out_bias + 2 * dim * qk_norm + heads * sinks
    attention = Attention("gqa", heads, kv_heads, dim, dim, 2 * kv_heads * dim, window, chunked)
    return Part(parameters, parameters, replicated=2 * dim * qk_norm, width=query + 2 * kv_heads * dim + heads * dim,
                attention=attention)  # fmt: skip


def mla(fields: Fields) -> Part:
    """Multi-head latent attention: the cache keeps kv_lora_rank + qk_rope_head_dim elements per token."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    rank, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    nope, v_dim = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    qk_dim = nope + rope
    if fields.has("q_lora_rank"):
        q_rank = fields.count("q_lora_rank")
        down, query = hidden * q_rank + q_rank, q_rank * heads * qk_dim
    else:
        down, query = 0, hidden * heads * qk_dim
    down += hidden * (rank + rope) + rank
    parameters = down + query + rank * heads * (nope + v_dim) + heads * v_dim * hidden
    attention = Attention("mla", heads, 1, qk_dim, v_dim, rank + rope)
    return Part(parameters, parameters, replicated=down, width=heads * (2 * qk_dim + v_dim), attention=attention)


def kda(fields: Fields, dtype_bytes: int) -> Part:
    """Kimi Delta Attention: FP32 recurrent state per head, three short convolutions."""
    hidden, linear = fields.count("hidden_size"), fields.inner("linear_attn_config")
    heads, dim, kernel = linear.count("num_heads"), linear.count("head_dim"), linear.count("short_conv_kernel_size")
    inner = heads * dim
    gates = 2 * (hidden * dim + dim * inner)  # forget and output gate, each through a rank of head_dim
    small = inner + heads + dim  # dt_bias, A_log, output norm
    parameters = 4 * hidden * inner + 3 * inner * kernel + gates + hidden * heads + small
    state = State("kda", 3 * inner * (kernel - 1), heads * dim * dim, dtype_bytes, 4)
    return Part(parameters, parameters, replicated=2 * hidden * dim + dim, width=4 * inner, state=state)


def gdn(fields: Fields, dtype_bytes: int) -> Part:
    """Gated DeltaNet as in Qwen3-Next; its state has the model's dtype unless mamba_ssm_dtype says otherwise."""
    hidden = fields.count("hidden_size")
    k_heads, v_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    k_dim, v_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    kernel = fields.count("linear_conv_kernel_dim")
    conv, value = 2 * k_heads * k_dim + v_heads * v_dim, v_heads * v_dim
    parameters = hidden * (conv + value + 2 * v_heads) + conv * kernel + 2 * v_heads + v_dim + value * hidden
    recurrent = 4 if fields.get("mamba_ssm_dtype", default="auto") == "float32" else dtype_bytes
    state = State("gdn", conv * (kernel - 1), v_heads * k_dim * v_dim, dtype_bytes, recurrent)
    return Part(parameters, parameters, replicated=v_dim, width=conv + value, state=state)


def mamba2(hidden: int, inner: int, heads: int, groups: int, state_size: int, kernel: int, biases: int,
           dtype_bytes: int, recurrent_bytes: int) -> Part:  # fmt: skip
    """Mamba-2 mixer; `biases` is the number of bias parameters beside dt_bias, A and D."""
    conv = inner + 2 * groups * state_size
    parameters = hidden * (inner + conv + heads) + conv * kernel + 3 * heads + inner + inner * hidden + biases
    state = State("mamba2", conv * (kernel - 1), inner * state_size, dtype_bytes, recurrent_bytes)
    return Part(parameters, parameters, replicated=inner, width=inner + conv, state=state)


def mamba1(fields: Fields, dtype_bytes: int) -> Part:
    """Mamba-1 mixer with the three inner norms of Jamba."""
    hidden, n = fields.count("hidden_size"), fields.count("mamba_d_state")
    inner, kernel = fields.count("mamba_expand") * hidden, fields.count("mamba_d_conv")
    rank = fields.get("mamba_dt_rank")
    rank = -(-hidden // 16) if rank == "auto" else fields.count("mamba_dt_rank")
    parameters = hidden * 2 * inner + inner * kernel + inner * (rank + 2 * n) + rank * inner + inner
    parameters += inner * n + inner + inner * hidden + rank + 2 * n
    parameters += inner * fields.flag("mamba_conv_bias", True)
    parameters += (2 * inner + hidden) * fields.flag("mamba_proj_bias", False)
    state = State("mamba1", inner * (kernel - 1), inner * n, dtype_bytes, dtype_bytes)
    return Part(parameters, parameters, replicated=rank + 2 * n, width=3 * inner, state=state)


# --- feed-forward ---------------------------------------------------------------------------------------------


def dense(fields: Fields, inner: int, *, matrices: int = 3, biases: bool = False) -> Part:
    """Feed-forward of width `inner`: gate, up and down projection, or without the gate where `matrices` is 2."""
    hidden = fields.count("hidden_size")
    parameters = matrices * hidden * inner + ((matrices - 1) * inner + hidden) * biases
    return Part(parameters, parameters, width=(matrices - 1) * inner)


def moe(fields: Fields, experts: int, used: int, inner: int, *, shared: int = 0, extra: int = 0, matrices: int = 3,
        expert_bias: bool = False) -> Part:  # fmt: skip
    """Routed experts of width `inner`, a shared one of width `shared`, a router; `extra` router parameters."""
    hidden = fields.count("hidden_size")
    if used > experts:
        raise fields.fail("num_experts_per_tok", f"is {used}", f"there are only {experts} experts")
    one = matrices * hidden * inner + ((matrices - 1) * inner + hidden) * expert_bias
    router = hidden * experts + extra
    always = router + matrices * hidden * shared
    return Part(experts * one + always, used * one + always, replicated=router, experts=experts * one,
                experts_active=used * one, width=(matrices - 1) * (used * inner + shared))  # fmt: skip


# --- families -------------------------------------------------------------------------------------------------


def _llama_like(f: Fields, dtype_bytes: int) -> list[Layer]:
    model_type, hidden, n = f.get("model_type"), f.count("hidden_size"), f.count("num_hidden_layers")
    f.refuse("attention_chunk_size", "attention in chunks")
    options = {
        "llama": {"qkv_bias": f.flag("attention_bias", False), "out_bias": f.flag("attention_bias", False)},
        "qwen2": {"qkv_bias": True},
        "qwen3": {"qkv_bias": f.flag("attention_bias", False), "out_bias": f.flag("attention_bias", False),
                  "qk_norm": True},
    }.get(model_type, {})  # fmt: skip
    windows = _windows(f, n)
    ffn = dense(f, f.count("intermediate_size"), biases=f.flag("mlp_bias", False))
    return [_layer("full" if w is None else "sliding", gqa(f, window=w, **options), ffn, 2 * hidden) for w in windows]


def _windows(f: Fields, layers: int) -> list[int | None]:
    """Return each layer's window: `layer_types` where given, else the family's rule for `sliding_window`."""
    window = f.get("sliding_window", default=None)
    if window is None or f.get("use_sliding_window", default=True) is False:
        return [None] * layers
    window = f.count("sliding_window")
    if f.has("layer_types"):
        kinds = f.strings("layer_types", layers, {"full_attention": 0, "sliding_attention": 0})
        return [window if kind == "sliding_attention" else None for kind in kinds]
    if f.get("model_type") in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        first = f.count("max_window_layers", at_least=0)
        return [None if i < first else window for i in range(layers)]
    return [window] * layers


def _mixtral(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    ffn = moe(f, f.count("num_local_experts"), f.count("num_experts_per_tok"), f.count("intermediate_size"))
    return [_layer("full" if w is None else "sliding", gqa(f, window=w), ffn, 2 * hidden) for w in _windows(f, n)]


def _gemma3(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden, window = f.count("num_hidden_layers"), f.count("hidden_size"), f.count("sliding_window")
    if f.has("layer_types"):
        kinds = f.strings("layer_types", n, {"full_attention": 0, "sliding_attention": 0})
        full = [kind == "full_attention" for kind in kinds]
    else:
        period = f.count("sliding_window_pattern", "_sliding_window_pattern")
        full = [(i + 1) % period == 0 for i in range(n)]
    ffn = dense(f, f.count("intermediate_size"))
    mixers = {True: gqa(f, qk_norm=True), False: gqa(f, qk_norm=True, window=window)}
    return [_layer("full" if whole else "sliding", mixers[whole], ffn, 4 * hidden) for whole in full]


def _qwen_moe(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Qwen2-MoE, Qwen3-MoE and Qwen3-Next: softmax attention or Gated DeltaNet before routed experts."""
    model_type, hidden, n = f.get("model_type"), f.count("hidden_size"), f.count("num_hidden_layers")
    dense_layers, step = f.get("mlp_only_layers", default=[]), f.count("decoder_sparse_step", default=1)
    shared = 0 if model_type == "qwen3_moe" else f.count("shared_expert_intermediate_size", at_least=0)
    experts, used = f.count("num_experts", "num_local_experts"), f.count("num_experts_per_tok")
    sparse = moe(f, experts, used, f.count("moe_intermediate_size"), shared=shared, extra=hidden if shared else 0)
    layers = []
    for i, (kind, mixer) in enumerate(_qwen_mixers(f, n, dtype_bytes)):
        is_dense = i in dense_layers or (i + 1) % step
        ffn = dense(f, f.count("intermediate_size")) if is_dense else sparse
        layers.append(_layer(kind, mixer, ffn, 2 * hidden))
    return layers


def _qwen_mixers(f: Fields, layers: int, dtype_bytes: int) -> list[tuple[str, Part]]:
    model_type = f.get("model_type")
    if model_type != "qwen3_next":
        options = {"qkv_bias": True} if model_type == "qwen2_moe" else {"qk_norm": True}
        return [("full" if w is None else "sliding", gqa(f, window=w, **options)) for w in _windows(f, layers)]
    if f.has("layer_types"):
        kinds = f.strings("layer_types", layers, {"full_attention": 0, "linear_attention": 0})
    else:
        interval = f.count("full_attention_interval")
        kinds = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    mixers = {"full_attention": ("full", gqa(f, qk_norm=True, gated=True)),
              "linear_attention": ("gdn", gdn(f, dtype_bytes))}  # fmt: skip
    return [mixers[kind] for kind in kinds]


def _deepseek(f: Fields, dtype_bytes: int) -> list[Layer]:
    """DeepSeek V2, V3, R1 and Kimi K2: MLA everywhere, routed experts after the first dense layers."""
    f.refuse("index_topk", "DeepSeek's sparse attention")
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    return [_layer("mla", mla(f), ffn, norms) for ffn in _deepseek_ffns(f, n)]


def _deepseek_ffns(f: Fields, layers: int) -> list[Part]:
    experts = f.count("n_routed_experts", "num_experts")
    inner, shared = f.count("moe_intermediate_size"), f.count("n_shared_experts", "num_shared_experts", at_least=0)
    first, every = f.count("first_k_dense_replace", at_least=0), f.count("moe_layer_freq", default=1)
    correction = experts if f.get("model_type") != "deepseek_v2" else 0  # e_score_correction_bias
    sparse = moe(f, experts, f.count("num_experts_per_tok", "num_experts_per_token"), inner, shared=shared * inner,
                 extra=correction)  # fmt: skip
    plain = dense(f, f.count("intermediate_size"))
    return [sparse if i >= first and i % every == 0 else plain for i in range(layers)]


def _kimi_linear(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, linear = f.count("num_hidden_layers"), f.inner("linear_attn_config")
    full, delta = set(linear.get("full_attn_layers")), set(linear.get("kda_layers"))
    if full & delta or full | delta != set(range(1, n + 1)):
        raise linear.fail("full_attn_layers", "and kda_layers do not name each layer once", f"number them 1 to {n}")
    mixers = {True: ("mla", mla(f)), False: ("kda", kda(f, dtype_bytes))}
    norms = 2 * f.count("hidden_size")
    return [_layer(*mixers[i + 1 in full], ffn, norms) for i, ffn in enumerate(_deepseek_ffns(f, n))]


def _llama4(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Llama 4's text model: three chunked-attention layers, then one that sees everything."""
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    chunk = f.count("attention_chunk_size")
    if f.has("no_rope_layers") and f.get("no_rope_layers"):
        chunked = [bool(rope) for rope in f.get("no_rope_layers")[:n]]
    else:
        interval = f.count("no_rope_layer_interval", default=4)
        chunked = [bool((i + 1) % interval) for i in range(n)]
    step, inner = f.count("interleave_moe_layer_step"), f.count("intermediate_size")
    sparse = moe(f, f.count("num_local_experts"), f.count("num_experts_per_tok"), inner, shared=inner)
    plain = dense(f, f.count("intermediate_size_mlp"))
    mixers = {True: ("chunked", gqa(f, window=chunk, chunked=True)), False: ("full", gqa(f))}
    return [_layer(*mixers[local], plain if (i + 1) % step else sparse, norms) for i, local in enumerate(chunked)]


def _gpt_oss(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, norms, experts = f.count("num_hidden_layers"), 2 * f.count("hidden_size"), f.count("num_local_experts")
    window = f.count("sliding_window")
    kinds = f.strings("layer_types", n, {"full_attention": 0, "sliding_attention": 0})
    ffn = moe(f, experts, f.count("num_experts_per_tok", "experts_per_token"), f.count("intermediate_size"),
              extra=experts, expert_bias=True)  # fmt: skip
    whole = gqa(f, qkv_bias=True, out_bias=True, sinks=True)
    local = gqa(f, qkv_bias=True, out_bias=True, sinks=True, window=window)
    mixers = {"full_attention": ("full", whole), "sliding_attention": ("sliding", local)}
    return [_layer(*mixers[kind], ffn, norms) for kind in kinds]


def _nemotron_h(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Nemotron-H: each layer is one of Mamba-2 (M), attention (*) or a squared-ReLU feed-forward (-)."""
    pattern, n, hidden = f.get("hybrid_override_pattern"), f.count("num_hidden_layers"), f.count("hidden_size")
    if not isinstance(pattern, str) or len(pattern) != n or set(pattern) - set("M*-"):
        raise f.fail("hybrid_override_pattern", f"is {pattern!r}", f"known are {n} letters of M, * and -")
    heads, dim, state = f.count("mamba_num_heads"), f.count("mamba_head_dim"), f.count("ssm_state_size")
    groups, kernel = f.count("n_groups"), f.count("conv_kernel")
    inner = heads * dim
    biases = (inner + 2 * groups * state) * f.flag("use_conv_bias", True)
    recurrent = {"float32": 4}.get(f.get("mamba_ssm_cache_dtype", default="float32"), dtype_bytes)
    parts = {
        "M": ("mamba2", mamba2(hidden, inner, heads, groups, state, kernel, biases, dtype_bytes, recurrent), NOTHING),
        "*": ("full", gqa(f, qkv_bias=f.flag("attention_bias", False)), NOTHING),
        "-": ("mlp", NOTHING, dense(f, f.count("intermediate_size"), matrices=2)),
    }
    return [_layer(kind, mixer, ffn, hidden) for kind, mixer, ffn in (parts[letter] for letter in pattern)]


def _jamba(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, norms, experts = f.count("num_hidden_layers"), 2 * f.count("hidden_size"), f.count("num_experts")
    inner = f.count("intermediate_size")
    attention_every, attention_at = f.count("attn_layer_period"), f.count("attn_layer_offset", at_least=0)
    sparse_every, sparse_at = f.count("expert_layer_period"), f.count("expert_layer_offset", at_least=0)
    mixers = {True: ("full", gqa(f)), False: ("mamba1", mamba1(f, dtype_bytes))}
    plain = dense(f, inner)
    sparse = moe(f, experts, f.count("num_experts_per_tok"), inner) if experts > 1 else plain
    return [
        _layer(*mixers[i % attention_every == attention_at], sparse if i % sparse_every == sparse_at else plain, norms)
        for i in range(n)
    ]


def _bamba(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    full = set(f.get("attn_layer_indices"))
    heads, groups, state = f.count("mamba_n_heads"), f.count("mamba_n_groups"), f.count("mamba_d_state")
    inner = f.count("mamba_expand") * hidden
    biases = (inner + 2 * groups * state) * f.flag("mamba_conv_bias", True)
    linear = mamba2(hidden, inner, heads, groups, state, f.count("mamba_d_conv"), biases, dtype_bytes, dtype_bytes)
    mixers = {True: ("full", gqa(f)), False: ("mamba2", linear)}
    ffn = dense(f, f.count("intermediate_size"))
    return [_layer(*mixers[i in full], ffn, 2 * hidden) for i in range(n)]


_Builder = Callable[[Fields, int], list[Layer]]
FAMILIES: dict[str, _Builder] = {
    "llama": _llama_like, "mistral": _llama_like, "qwen2": _llama_like, "qwen3": _llama_like,
    "mixtral": _mixtral, "gemma3_text": _gemma3, "qwen2_moe": _qwen_moe, "qwen3_moe": _qwen_moe,
    "qwen3_next": _qwen_moe, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek,
    "kimi_linear": _kimi_linear, "llama4_text": _llama4, "gpt_oss": _gpt_oss, "nemotron_h": _nemotron_h,
    "jamba": _jamba, "bamba": _bamba,
}  # fmt: skip
# A multimodal config holds the language model under text_config.
_WRAPPERS = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral"}


def _text_fields(config: Mapping[str, Any], name: str) -> tuple[Fields, tuple[str, ...]]:
    fields = Fields(config, name)
    if "text_config" not in config:
        return fields, ()
    inner = fields.inner("text_config")
    outer = {k: config[k] for k in ("dtype", "torch_dtype", "quantization_config") if config.get(k) is not None}
    own = {k: v for k, v in inner.values.items() if v is not None}
    model_type = inner.get("model_type", default=_WRAPPERS.get(config.get("model_type", "")))
    values = {**outer, **own, "model_type": model_type}
    return replace(inner, values=values), ("the vision or audio parts' weights are not counted",)


def build_geometry(config: Mapping[str, Any], name: str) -> Geometry:
    """Return the geometry of a config.json's content; GeometryError names what is missing or unknown."""
    fields, notes = _text_fields(config, name)
    model_type = fields.get("model_type")
    if model_type not in FAMILIES:
        raise fields.fail("model_type", f"is {model_type!r}", f"known are {', '.join(sorted(FAMILIES))}")
    if model_type == "gemma3_text":
        own = {k: v for k, v in fields.values.items() if v is not None}
        fields = replace(fields, values={**_GEMMA3_DEFAULTS, **own})
    dtype_bytes = fields.dtype_bytes()
    layers = _merge(FAMILIES[model_type](fields, dtype_bytes))
    table = fields.count("vocab_size") * fields.count("hidden_size")
    linear_bytes, expert_bytes = weight_bytes(fields, dtype_bytes)
    if fields.get("num_nextn_predict_layers", default=0):
        notes = (*notes, "multi-token-prediction layers are not counted")
    return Geometry(
        name=name, model_type=model_type, layers=layers, vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"), embedding_parameters=table,
        head_parameters=0 if fields.flag("tie_word_embeddings", False) else table,
        dtype_bytes=dtype_bytes, linear_bytes=linear_bytes, expert_bytes=expert_bytes, notes=notes,
    )  # fmt: skip
