"""Families whose layers differ from each other in more than the standard fields say: one builder each.

The sources are transformers' modeling_<model_type>.py, and for Nemotron-NAS vLLM's nemotron_nas.py.
"""

import json
from collections.abc import Callable
from dataclasses import replace

from longctx.model.blocks import biases, gdn, gqa, windows
from longctx.model.families.standard import STANDARD, attention_mixers
from longctx.model.feedforward import dense, expert_counts, expert_layers, moe, placed, qwen_layers, sparse_layers
from longctx.model.fields import Fields
from longctx.model.layers import NOTHING, Block, Layer, Matrix, parameters_of


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
    attention = gqa(f, qk_norm="head", gate="query", own_dim=True, **biases(f))
    mixers = {"full_attention": ("full", attention), "linear_attention": ("gdn", gdn(f, dtype_bytes))}
    is_dense = f.get("model_type") == "qwen3_5_text"
    ffns = [dense(f, f.count("intermediate_size"))] * n if is_dense else qwen_layers(f, n, shared=True)
    return [Layer(*mixers[kind], ffn, 2 * hidden) for kind, ffn in zip(kinds, ffns, strict=True)]


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


def _gemma4(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Gemma 4: full layers have wider heads and may use the keys as values; the last layers share earlier caches.

    A shared layer has neither key nor value matrices nor a cache of its own. Where the file has a hidden size per
    layer input, each layer has a gate and a projection for it, and a share of the model's projection.
    """
    n, hidden = f.count("num_hidden_layers"), f.count("hidden_size")
    shared = f.count("num_kv_shared_layers", default=0, at_least=0)
    inner, wide = f.count("intermediate_size"), f.flag("use_double_wide_mlp", False)
    full_dim, full_kv_heads = _gemma4_global(f)
    per_layer = f.count("hidden_size_per_layer_input", at_least=0)
    has_experts = f.flag("enable_moe_block", False)
    f.expect("use_bidirectional_attention", "vision")  # in the images only
    norms = (7 if has_experts else 4) * hidden + 1  # layer_scalar
    layers = []
    for i, window in enumerate(windows(f, n, period=6)):
        full, is_shared = window is None, i >= n - shared > 0
        dim, kv_heads = (full_dim, full_kv_heads) if full else (f.count("head_dim"), f.count("num_key_value_heads"))
        attention = gqa(f, dim=dim, kv_heads=kv_heads, qk_norm="head", window=window, **biases(f))
        if is_shared:
            attention = _without_cache(attention)
        elif full and f.flag("attention_k_eq_v", False):
            attention = _without(attention, "v_proj")
        ffn = dense(f, 2 * inner if wide and is_shared else inner)
        if has_experts:
            ffn = _beside(ffn, _gemma4_experts(f))
        if per_layer:
            ffn = _with_layer_input(ffn, hidden, per_layer)
        layers.append(Layer("full" if full else "sliding", attention, ffn, norms))
    if per_layer:  # the norm of the model's projection
        layers[0] = replace(layers[0], norms=norms + per_layer)
    return layers


def _gemma4_global(f: Fields) -> tuple[int, int]:
    """Return head size and KV heads of the full layers; transformers 5.19 writes them as per_layer_config."""
    if f.has("per_layer_config"):
        f.skip("global_head_dim", "num_global_key_value_heads")
        listed = f.inner("per_layer_config")
        entries = {json.dumps(listed.values[name], sort_keys=True): name for name in listed.values}
        if len(entries) != 1:
            raise f.fail("per_layer_config", "gives layers different sizes", "known is one size for all full layers")
        entry = listed.inner(next(iter(entries.values())))
        return entry.count("head_dim"), entry.count("num_key_value_heads", default=f.count("num_key_value_heads"))
    kv_heads = f.count("num_key_value_heads")
    if f.flag("attention_k_eq_v", False):
        kv_heads = f.count("num_global_key_value_heads", default=kv_heads)
    else:
        f.skip("num_global_key_value_heads")
    return f.count("global_head_dim"), kv_heads


def _gemma4_experts(f: Fields) -> Block:
    """Return Gemma 4's routed experts: the router has a scale per hidden element and one per expert."""
    experts = f.count("num_experts")
    extra = f.count("hidden_size") + experts
    return moe(f, experts, f.count("top_k_experts"), f.count("moe_intermediate_size"), extra=extra)


def _beside(one: Block, other: Block) -> Block:
    """Return two feed-forward blocks of one layer as one."""
    return replace(
        other,
        parameters=one.parameters + other.parameters,
        width=one.width + other.width,
        sharded_widths=one.sharded_widths + other.sharded_widths,
        matrices=one.matrices + other.matrices,
    )


def _with_layer_input(ffn: Block, hidden: int, width: int) -> Block:
    """Return the block with a gate and a projection for the layer's own input, its norm, and what makes that input."""
    modules = ("per_layer_input_gate", width, hidden), ("per_layer_projection", hidden, width)
    matrices = [Matrix(name, rows, columns) for name, rows, columns in modules]
    parameters = ffn.parameters + 3 * hidden * width + hidden
    return replace(ffn, parameters=parameters, matrices=(*ffn.matrices, *matrices))


def _without(block: Block, *names: str) -> Block:
    """Return the block without some of its matrices."""
    kept = tuple(matrix for matrix in block.matrices if not matrix.name.endswith(names))
    missing = parameters_of(block.matrices) - parameters_of(kept)
    return replace(block, parameters=block.parameters - missing, matrices=kept)


def _without_cache(block: Block) -> Block:
    """Return attention that reads an earlier layer's cache: no key and value matrices, no norm of the keys."""
    assert block.attention is not None
    norm, attention = block.attention.qk_dim, replace(block.attention, kv_elements=0)
    block = _without(block, "k_proj", "v_proj")
    return replace(block, parameters=block.parameters - norm, replicated=block.replicated - norm, attention=attention)


def _mimo_v2(f: Fields, dtype_bytes: int) -> list[Layer]:
    """MiMo-V2: windowed layers have sinks, and sizes of their own (swa_*); values are narrower than keys."""
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    window, kv_heads = f.count("sliding_window"), f.count("num_key_value_heads")
    if f.has("hybrid_layer_pattern"):
        marks = f.items("hybrid_layer_pattern", int)
        if len(marks) != n or set(marks) - {0, 1}:
            raise f.fail("hybrid_layer_pattern", "is not a list of 0 or 1 per layer", f"give {n} entries")
        sliding = [mark == 1 for mark in marks]
        f.skip("layer_types")
    else:
        kinds = f.strings("layer_types", n, "full_attention", "sliding_attention")
        sliding = [kind == "sliding_attention" for kind in kinds]
    qkv_bias, heads = f.flag("attention_bias", False), f.count("num_attention_heads")
    dim, v_dim = f.count("head_dim"), f.count("v_head_dim")
    full = gqa(f, dim=dim, v_dim=v_dim, qkv_bias=qkv_bias, sinks=f.flag("add_full_attention_sink_bias", False))
    swa = gqa(
        f,
        heads=f.count("swa_num_attention_heads", default=heads),
        kv_heads=f.count("swa_num_key_value_heads", default=2 * kv_heads),
        dim=f.count("swa_head_dim", default=dim),
        v_dim=f.count("swa_v_head_dim", default=v_dim),
        qkv_bias=qkv_bias,
        sinks=f.flag("add_swa_attention_sink_bias", True),
        window=window,
    )
    mixers = {False: ("full", full), True: ("sliding", swa)}
    if not f.has("attention_chunk_size") or f.count("attention_chunk_size") == window:
        f.skip("attention_chunk_size")
    else:
        raise f.fail("attention_chunk_size", f"is {f.get('attention_chunk_size')}", f"known is the window ({window})")
    ffns = expert_layers(f, n, shared_default=0)
    return [Layer(*mixers[mark], ffn, norms) for mark, ffn in zip(sliding, ffns, strict=True)]


def _step(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Step 3.5 and 3.7: a gate per head; windowed layers may have more heads; lists are longer by the MTP layers."""
    n, norms, values = f.count("num_hidden_layers"), 2 * f.count("hidden_size"), dict(f.values)
    for name in ("layer_types", "mlp_layer_types"):
        if isinstance(values.get(name), list):
            values[name] = values[name][:n]
    if (listed := values.get("moe_layers_enum")) is not None and values.get("mlp_layer_types") is None:
        items = listed.split(",") if isinstance(listed, str) else f.items("moe_layers_enum", int)
        if not all(str(item).strip().isdigit() for item in items):
            raise f.fail("moe_layers_enum", f"is {listed!r}", "it must be numbers of layers with commas between")
        routed = {int(item) for item in items}
        values["mlp_layer_types"] = ["sparse" if i in routed else "dense" for i in range(n)]
        f.skip("moe_layers_enum")
    cut = replace(f, values=values)
    cut.expect("use_moe_router_bias", True)
    heads = cut.count("num_attention_heads")
    if cut.has("attention_other_setting"):
        other = cut.inner("attention_other_setting")
        heads = other.count("num_attention_heads", default=heads)
        other.expect("num_attention_groups", cut.count("num_key_value_heads", "num_attention_groups"))
        other.expect("head_dim", cut.count("head_dim"))
    heads = cut.count("num_sliding_attention_heads", default=heads)
    mixers = attention_mixers(cut, n, STANDARD["step3p5"])
    if heads != cut.count("num_attention_heads"):
        window = cut.count("sliding_window")
        block = gqa(cut, heads=heads, qk_norm="head", gate="head", own_dim=True, window=window, **biases(cut))
        mixers = [("sliding", block) if kind == "sliding" else (kind, full) for kind, full in mixers]
    f.skip("num_mtp_layers", "moe_every_n_layer", "use_moe", "moe_layer_offset", "use_head_wise_attn_gate")
    ffns = expert_layers(cut, n)
    return [Layer(*mixer, ffn, norms) for mixer, ffn in zip(mixers, ffns, strict=True)]


def _laguna(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Laguna: heads per layer, a gate per head or as wide as the values, a shared expert of its own width."""
    n, norms = f.count("num_hidden_layers"), 2 * f.count("hidden_size")
    heads = f.items("num_attention_heads_per_layer", int, [f.count("num_attention_heads")] * n)
    if len(heads) != n:
        raise f.fail("num_attention_heads_per_layer", f"has {len(heads)} entries", f"give one for each of {n} layers")
    gate = "head" if f.get("gating", default=True) in (True, "per-head") else "full"
    (experts, used), shared = expert_counts(f), f.count("shared_expert_intermediate_size")
    f.skip("decoder_sparse_step", "mlp_only_layers", "gating_types")  # mlp_layer_types and gating decide
    sparse = moe(f, experts, used, f.count("moe_intermediate_size"), shared=shared, extra=experts)
    layers = []
    for count, window, ffn in zip(heads, windows(f, n), placed(f, sparse, sparse_layers(f, n)), strict=True):
        attention = gqa(f, heads=count, qk_norm="head", gate=gate, own_dim=True, window=window, **biases(f))
        layers.append(Layer("full" if window is None else "sliding", attention, ffn, norms))
    return layers


def _nemotron_nas(f: Fields, dtype_bytes: int) -> list[Layer]:
    """Nemotron-NAS (DeciLM): `block_configs` says for each layer whether it has attention, and how wide it is."""
    n, hidden, heads = f.count("num_hidden_layers"), f.count("hidden_size"), f.count("num_attention_heads")
    blocks = f.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != n or not all(isinstance(block, dict) for block in blocks):
        raise f.fail("block_configs", "is not a list of one object per layer", f"give {n} entries")
    f.skip("num_key_value_heads", "intermediate_size")
    layers = []
    for i, values in enumerate(blocks):
        block = Fields(values, f.name, f"{f.where}block_configs.{i}.")
        attention, ffn = block.inner("attention"), block.inner("ffn")
        for name in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens"):
            attention.refuse(name, "another block")
            ffn.refuse(name, "another block")
        mixer, feed = NOTHING, NOTHING
        if has_attention := not attention.flag("no_op", False):
            mixer = gqa(f, kv_heads=heads // attention.count("n_heads_in_group"), **biases(f))
        if has_ffn := not ffn.flag("no_op", False):
            feed = dense(f, _nas_width(ffn, hidden), biases=f.flag("mlp_bias", False))
        layers.append(Layer("full" if has_attention else "mlp", mixer, feed, (has_attention + has_ffn) * hidden))
    return layers


def _nas_width(ffn: Fields, hidden: int) -> int:
    """Return the width as vLLM's nemotron_nas.py has it: 2/3 of ffn_mult times the hidden size, in whole 256."""
    if ffn.has("intermediate_size"):
        return ffn.count("intermediate_size")
    factor = ffn.get("ffn_mult")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
        raise ffn.fail("ffn_mult", f"is {factor!r}", "it must be a positive number")
    return -(-int(2 * factor * hidden / 3) // 256) * 256


VARIANTS: dict[str, Callable[[Fields, int], list[Layer]]] = {
    "qwen3_next": _qwen_gdn, "qwen3_5_text": _qwen_gdn, "qwen3_5_moe_text": _qwen_gdn, "llama4_text": _llama4,
    "gemma4_text": _gemma4, "gemma4_unified_text": _gemma4, "mimo_v2_flash": _mimo_v2, "step3p5": _step,
    "laguna": _laguna, "nemotron-nas": _nemotron_nas,
}  # fmt: skip
