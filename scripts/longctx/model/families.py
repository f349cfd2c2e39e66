"""From a config.json to layers, one builder per family of softmax-attention models; the others are in `hybrids`.

A size that transformers' class would take from a default of its own must be in the file, except where released files
rely on it (CLASS_DEFAULTS). A field that a family's builder did not read but whose name suggests a size is refused.
"""

from collections.abc import Callable
from typing import Any

from longctx.model.blocks import biases, dense, gdn, gqa, mla, moe, windows
from longctx.model.fields import Fields
from longctx.model.hybrids import HYBRIDS, deepseek_ffns
from longctx.model.layers import Block, Layer

# transformers 4.50 and 5, configuration_gemma2.py and configuration_gemma3.py.
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True},
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window": 4096, "sliding_window_pattern": 6, "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip


def _attention_layers(
    f: Fields, options: dict[str, Any], sliding: list[int | None], ffns: list[Block], norms: int
) -> list[Layer]:
    """Return a layer per entry of `sliding`: its window in tokens, or None where it sees the whole context."""
    kinds = (("full" if window is None else "sliding", gqa(f, window=window, **options)) for window in sliding)
    return [Layer(kind, mixer, ffn, norms) for (kind, mixer), ffn in zip(kinds, ffns, strict=True)]


_DENSE: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "llama": lambda f: {**biases(f), "mha": True},
    "mistral": lambda f: {},
    "phi3": lambda f: {"mha": True},
    "qwen2": lambda f: {"qkv_bias": True},
    "qwen3": lambda f: {**biases(f), "qk_norm": "head", "own_dim": True},
    "olmo2": lambda f: {**biases(f), "qk_norm": "layer", "mha": True},
    "olmo3": lambda f: {**biases(f), "qk_norm": "layer", "mha": True},
    "seed_oss": lambda f: {"qkv_bias": f.flag("attention_bias"), "out_bias": f.flag("attention_out_bias", False),
                           "own_dim": True},
}  # fmt: skip


def _dense(f: Fields, dtype_bytes: int) -> list[Layer]:
    model_type, hidden, n = f.get("model_type"), f.count("hidden_size"), f.count("num_hidden_layers")
    if model_type == "mistral":
        f.present("sliding_window")  # absent is 4096 to transformers, null is none
    if model_type == "olmo3":
        f.strings("layer_types", n, "full_attention", "sliding_attention")
    sliding = windows(f, n, switch=model_type in ("qwen2", "qwen3"))
    has_bias = model_type in ("llama", "seed_oss") and f.flag("mlp_bias", False)
    ffn = dense(f, f.count("intermediate_size"), biases=has_bias)
    return _attention_layers(f, _DENSE[model_type](f), sliding, [ffn] * n, 2 * hidden)


def _mixtral(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    ffn = moe(f, f.count("num_local_experts"), f.count("num_experts_per_tok"), f.count("intermediate_size"))
    return _attention_layers(f, {}, windows(f, n), [ffn] * n, 2 * hidden)


def _gemma(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Gemma 2 (every other layer has a window) and Gemma 3 (five of six)."""
    n, hidden, window = f.count("num_hidden_layers"), f.count("hidden_size"), f.count("sliding_window")
    is_gemma2 = f.get("model_type") == "gemma2"
    if f.has("layer_types"):
        sliding = windows(f, n)
        f.skip("sliding_window_pattern", "_sliding_window_pattern")
    else:
        period = 2 if is_gemma2 else f.count("sliding_window_pattern", "_sliding_window_pattern")
        sliding = [window if (i + 1) % period else None for i in range(n)]
    options = {**biases(f), "qk_norm": "" if is_gemma2 else "head", "own_dim": True}
    return _attention_layers(f, options, sliding, [dense(f, f.count("intermediate_size"))] * n, 4 * hidden)


def _qwen_moe(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden, is_qwen2 = f.count("num_hidden_layers"), f.count("hidden_size"), f.get("model_type") == "qwen2_moe"
    options = {"qkv_bias": f.flag("qkv_bias", True)} if is_qwen2 else {**biases(f), "qk_norm": "head"}
    return _attention_layers(f, options, windows(f, n, switch=True), qwen_ffns(f, n, shared=is_qwen2), 2 * hidden)


def qwen_ffns(f: Fields, layers: int, *, shared: bool) -> list[Block]:
    """Return Qwen's feed-forward blocks: routed experts except in mlp_only_layers and off decoder_sparse_step."""
    dense_layers, step = f.items("mlp_only_layers", int, []), f.count("decoder_sparse_step", default=1)
    width = f.count("shared_expert_intermediate_size", at_least=0) if shared else 0
    experts, used = f.count("num_experts", "num_local_experts"), f.count("num_experts_per_tok")
    gate = f.count("hidden_size") if width else 0
    sparse = moe(f, experts, used, f.count("moe_intermediate_size"), shared=width, extra=gate)
    is_dense = [i in dense_layers or (i + 1) % step != 0 for i in range(layers)]
    plain = dense(f, f.count("intermediate_size")) if any(is_dense) else sparse
    return [plain if without_experts else sparse for without_experts in is_dense]


def _qwen_gdn(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Qwen3-Next and Qwen3.5: three Gated DeltaNet layers, then one of gated attention."""
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    if f.has("layer_types"):
        kinds = f.strings("layer_types", n, "full_attention", "linear_attention")
        f.skip("full_attention_interval")
    else:
        interval = f.count("full_attention_interval")
        kinds = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n)]
    f.skip("attn_output_gate")  # always on in these families
    attention = gqa(f, qk_norm="head", gated=True, own_dim=True, **biases(f))
    mixers = {"full_attention": ("full", attention), "linear_attention": ("gdn", gdn(f, dtype_bytes))}
    is_dense = f.get("model_type") == "qwen3_5_text"
    ffns = [dense(f, f.count("intermediate_size"))] * n if is_dense else qwen_ffns(f, n, shared=True)
    return [Layer(*mixers[kind], ffn, 2 * hidden) for kind, ffn in zip(kinds, ffns, strict=True)]


def _deepseek(f: Fields, dtype_bytes: int) -> list[Layer]:
    """DeepSeek V2, V3, R1 and Kimi K2: MLA everywhere, routed experts after the first dense layers."""
    f.refuse("index_topk", "DeepSeek's sparse attention")
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    return [Layer("mla", mla(f), ffn, norms) for ffn in deepseek_ffns(f, n)]


def _glm4_moe(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    options = {"qkv_bias": f.flag("attention_bias"), "qk_norm": "head" if f.flag("use_qk_norm") else ""}
    return _attention_layers(f, options, [None] * n, deepseek_ffns(f, n), 2 * hidden)


def _minimax_m2(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, hidden, experts = f.count("num_hidden_layers"), f.count("hidden_size"), f.count("num_local_experts")
    kinds = f.items("attn_type_list", int, [1] * n)
    if kinds != [1] * n:
        raise f.fail("attn_type_list", "is not 1 in each layer", f"known is softmax attention (1) in all {n} layers")
    if f.get("qk_norm_type", default="per_layer") != "per_layer":
        raise f.fail("qk_norm_type", f"is {f.get('qk_norm_type')!r}", "known is per_layer")
    norm = "layer" if f.flag("use_qk_norm", True) else ""
    bias = experts * f.flag("use_routing_bias", True)
    ffn = moe(f, experts, f.count("num_experts_per_tok"), f.count("intermediate_size"), extra=bias)
    return _attention_layers(f, {"qk_norm": norm, "own_dim": True}, [None] * n, [ffn] * n, 2 * hidden)


def _llama4(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Llama 4's text model: three chunked-attention layers, then one that sees everything."""
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    chunk = f.count("attention_chunk_size")
    if f.has("layer_types"):
        kinds = f.strings("layer_types", n, "full_attention", "chunked_attention")
        chunked = [kind == "chunked_attention" for kind in kinds]
    elif rope_layers := f.items("no_rope_layers", int, []):
        chunked = [bool(rope) for rope in rope_layers]
    else:
        interval = f.count("no_rope_layer_interval", default=4)
        chunked = [bool((i + 1) % interval) for i in range(n)]
    if len(chunked) != n:
        raise f.fail("no_rope_layers", f"has {len(chunked)} entries", f"give one for each of the {n} layers")
    step, inner = f.count("interleave_moe_layer_step"), f.count("intermediate_size")
    routed = set(f.items("moe_layers", int) if f.has("moe_layers") else range(step - 1, n, step))
    sparse = moe(f, f.count("num_local_experts"), f.count("num_experts_per_tok"), inner, shared=inner)
    plain = dense(f, f.count("intermediate_size_mlp")) if len(routed) < n else sparse
    local = gqa(f, window=chunk, chunked=True, own_dim=True)
    mixers = {True: ("chunked", local), False: ("full", gqa(f, own_dim=True))}
    f.skip("intermediate_size_mlp", "no_rope_layers", "no_rope_layer_interval")
    return [Layer(*mixers[part], sparse if i in routed else plain, norms) for i, part in enumerate(chunked)]


def _gpt_oss(f: Fields, dtype_bytes: int) -> list[Layer]:
    n, norms, experts = f.count("num_hidden_layers"), 2 * f.count("hidden_size"), f.count("num_local_experts")
    f.strings("layer_types", n, "full_attention", "sliding_attention")
    used = f.count("num_experts_per_tok", "experts_per_token")
    ffn = moe(f, experts, used, f.count("intermediate_size"), extra=experts, bias=True)
    bias = f.flag("attention_bias", True)
    options = {"qkv_bias": bias, "out_bias": bias, "sinks": True, "own_dim": True}
    return _attention_layers(f, options, windows(f, n), [ffn] * n, norms)


_Builder = Callable[[Fields, int], list[Layer]]
FAMILIES: dict[str, _Builder] = {
    **dict.fromkeys(_DENSE, _dense), "mixtral": _mixtral, "gemma2": _gemma, "gemma3_text": _gemma,
    "qwen2_moe": _qwen_moe, "qwen3_moe": _qwen_moe, "qwen3_next": _qwen_gdn, "qwen3_5_text": _qwen_gdn,
    "qwen3_5_moe_text": _qwen_gdn, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek,
    "glm4_moe": _glm4_moe, "minimax_m2": _minimax_m2, "llama4_text": _llama4, "gpt_oss": _gpt_oss, **HYBRIDS,
}  # fmt: skip
