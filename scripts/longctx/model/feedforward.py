"""Feed-forward blocks and which layers have which: plain ones, routed experts, shared ones, latent ones.

Which layers are sparse is said by one of several standard fields (`mlp_layer_types`, `first_k_dense_replace`, ...).
"""

from typing import Any

from longctx.model.blocks import named
from longctx.model.fields import REQUIRED, Fields
from longctx.model.layers import Block, Matrix, parameters_of


def _network(prefix: str, hidden: int, inner: int, matrices: int, count: int = 1) -> list[Matrix]:
    """Return the matrices of a feed-forward network: gate (with three), up and down."""
    gate = [("gate_proj", inner, hidden)] * (matrices - 2)
    return named(prefix, *gate, ("up_proj", inner, hidden), ("down_proj", hidden, inner), count=count)


def dense(f: Fields, inner: int, *, matrices: int = 3, biases: bool = False) -> Block:
    hidden = f.count("hidden_size")
    modules = _network("mlp", hidden, inner, matrices)
    parameters = parameters_of(modules) + ((matrices - 1) * inner + hidden) * biases
    return Block(parameters, width=(matrices - 1) * inner, sharded_widths=(inner,), matrices=tuple(modules))


def moe(
    f: Fields,
    experts: int,
    used: int,
    inner: int,
    shared: int = 0,
    extra: int = 0,
    matrices: int = 3,
    bias: int = 0,
    latent: int = 0,
    latent_norm: bool = False,
) -> Block:
    """Return routed experts of width `inner`, a shared one of width `shared`, and a router with `extra` parameters.

    Where `latent` is not 0, the routed experts work on a projection of the hidden state to so many elements, and two
    matrices that each rank copies lead there and back.
    """
    hidden = f.count("hidden_size")
    if used > experts:
        raise f.fail("num_experts_per_tok", f"is {used}", f"there are only {experts} experts")
    seen = latent or hidden
    expert = matrices * seen * inner + ((matrices - 1) * inner + seen) * bias
    modules = _network("mlp.experts.0", seen, inner, matrices, experts)
    modules += _network("mlp.shared_experts", hidden, shared, matrices) if shared else []
    around = ("fc1_latent_proj", latent, hidden), ("fc2_latent_proj", hidden, latent)
    modules += named("mlp", *around, copied=("fc1_latent_proj", "fc2_latent_proj")) if latent else []
    router = hidden * experts + extra + 2 * hidden * latent + latent * latent_norm
    parameters = experts * expert + router + matrices * hidden * shared
    width, widths = (matrices - 1) * (used * inner + shared), (inner, shared) if shared else (inner,)
    return Block(parameters, router, experts * expert, used * expert, width, widths, matrices=tuple(modules))


def expert_counts(f: Fields) -> tuple[int, int]:
    """Return the number of routed experts and of those that one token uses, under the names that files give them."""
    experts = f.count("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    used = f.count("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_top_k")
    return experts, used


def sparse_layers(f: Fields, layers: int, first: int | None = None) -> list[bool]:
    """Return for each layer whether it has routed experts.

    A file without any field that says so is refused, unless `first` is the class's first such layer.
    """
    if f.has("mlp_layer_types"):
        f.skip("first_k_dense_replace", "moe_layer_freq", "num_dense_layers")
        return [kind == "sparse" for kind in f.strings("mlp_layer_types", layers, "dense", "sparse")]
    if isinstance(f.get("moe_layer_freq", default=1), list):
        marks = f.items("moe_layer_freq", int)
        if len(marks) != layers or set(marks) - {0, 1}:
            raise f.fail("moe_layer_freq", "is not a list of 0 or 1 per layer", f"give {layers} entries")
        f.skip("first_k_dense_replace")
        return [mark == 1 for mark in marks]
    if f.has("moe_layer_start_index"):
        first, every = f.count("moe_layer_start_index", at_least=0), f.count("moe_layer_interval")
        last = f.get("moe_layer_end_index", default=-1)
        last = layers - 1 if last == -1 else f.count("moe_layer_end_index", at_least=0)
        return [first <= i <= last and (i + 1) % every == 0 for i in range(layers)]
    default = {} if first is None else {"default": first}
    first = f.count("first_k_dense_replace", "num_dense_layers", at_least=0, **default)
    every = f.count("moe_layer_freq", default=1)
    return [i >= first and i % every == 0 for i in range(layers)]


def expert_layers(
    f: Fields,
    layers: int,
    *,
    correction: bool = True,
    latent: int = 0,
    first: int | None = None,
    shared_default: Any = REQUIRED,
) -> list[Block]:
    """Return each layer's feed-forward block: plain ones, and routed experts beside shared ones as DeepSeek has them.

    `correction`: the router has one more parameter per expert (e_score_correction_bias). `first` is as in
    `sparse_layers`; `shared_default` is the class's number of shared experts where files leave it out.
    """
    (experts, used), inner = expert_counts(f), f.count("moe_intermediate_size")
    if f.has("share_expert_dim"):
        shared = f.count("share_expert_dim")
        f.skip("n_shared_experts")
    else:
        names = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        shared = inner * (0 if f.is_null(*names) else f.count(*names, default=shared_default, at_least=0))
    latent_norm = bool(latent) and f.flag("latent_moe_use_norm", False)
    extra = experts if correction else 0
    sparse = moe(f, experts, used, inner, shared=shared, extra=extra, latent=latent, latent_norm=latent_norm)
    return placed(f, sparse, sparse_layers(f, layers, first))


def placed(f: Fields, sparse: Block, is_sparse: list[bool], width: str = "intermediate_size") -> list[Block]:
    """Return `sparse` in the layers so marked and a plain block of the field `width` in the others."""
    if all(is_sparse):
        f.skip(width)
        return [sparse] * len(is_sparse)
    plain = dense(f, f.count(width))
    return [sparse if mark else plain for mark in is_sparse]


def qwen_layers(f: Fields, layers: int, *, shared: bool) -> list[Block]:
    """Return Qwen's feed-forward blocks: routed experts except in mlp_only_layers and off decoder_sparse_step."""
    dense_layers, step = f.items("mlp_only_layers", int, []), f.count("decoder_sparse_step", default=1)
    width = f.count("shared_expert_intermediate_size", at_least=0) if shared else 0
    experts, used = expert_counts(f)
    gate = f.count("hidden_size") if width else 0
    sparse = moe(f, experts, used, f.count("moe_intermediate_size"), shared=width, extra=gate)
    if f.has("mlp_layer_types"):
        return placed(f, sparse, sparse_layers(f, layers))
    return placed(f, sparse, [i not in dense_layers and (i + 1) % step == 0 for i in range(layers)])
