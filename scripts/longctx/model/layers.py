"""One layer of a model: attention, recurrent state, parameters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention of one layer.

    `qk_dim` and `v_dim` are the per-head widths of the prefill; `kv_elements` are the cached elements per token
    over all KV heads (MLA: the latent and its rotary part, shared by all heads). `window` is the number of tokens
    that a query sees (None: all); `chunked` windows start again instead of sliding.
    """

    kind: str  # 'mla' or 'gqa' (MHA and MQA are GQA with as many KV heads as heads, or one)
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    kv_elements: int
    window: int | None = None
    chunked: bool = False

    def seen_pairs(self, tokens: int) -> float:
        """Return the query-key pairs of a causal prefill of `tokens`, each counted once."""
        if self.window is None or tokens <= self.window:
            return tokens * tokens / 2
        if self.chunked:
            chunks, rest = divmod(tokens, self.window)
            return (chunks * self.window**2 + rest**2) / 2
        return self.window * tokens - self.window**2 / 2

    def prefill_flops(self, tokens: int) -> float:
        """Return the FLOPs of a causal prefill: 2 * heads * (d_qk + d_v) per query-key pair."""
        return 2.0 * self.heads * (self.qk_dim + self.v_dim) * self.seen_pairs(tokens)

    def held_elements(self, tokens: int) -> int:
        """Return the cached elements of `tokens` of context."""
        return self.kv_elements * min(tokens, self.window or tokens)

    @property
    def windowed_elements(self) -> int:
        """Return the most cached elements of a windowed layer, 0 of one that sees the whole context."""
        return self.kv_elements * (self.window or 0)


@dataclass(frozen=True, slots=True)
class State:
    """The constant state of a linear-attention or Mamba layer, for one sequence, over all heads (elements)."""

    kind: str  # 'kda', 'gdn', 'mamba1', 'mamba2'
    conv_elements: int
    recurrent_elements: int
    conv_bytes: int  # per element
    recurrent_bytes: int  # per element

    @property
    def size_bytes(self) -> int:
        return self.conv_elements * self.conv_bytes + self.recurrent_elements * self.recurrent_bytes


@dataclass(frozen=True, slots=True)
class Layer:
    """`count` consecutive equal layers; parameters are per layer.

    `parameters_replicated` are those that tensor parallelism copies to each rank (norms, routers, MLA's down
    projections). `parameters_mixer` (attention or linear) and `parameters_experts` (the routed ones) are those that
    some quantisations treat separately.
    `width` is the number of activation elements per token that live at once in the layer's widest part,
    `sharded_widths` are the feed-forward widths that tensor parallelism divides.
    """

    kind: str
    count: int
    attention: Attention | None
    state: State | None
    parameters: int
    parameters_active: int
    parameters_replicated: int
    parameters_mixer: int
    parameters_experts: int
    parameters_experts_active: int
    width: int
    sharded_widths: tuple[int, ...] = ()
