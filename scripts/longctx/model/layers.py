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

    def prefill_flops(self, tokens: int) -> float:
        """Return the FLOPs of a causal prefill: 2 * heads * (d_qk + d_v) per query-key pair, each counted once."""
        if self.window is None or tokens <= self.window:
            pairs = tokens * tokens / 2
        elif self.chunked:
            chunks, rest = divmod(tokens, self.window)
            pairs = (chunks * self.window**2 + rest**2) / 2
        else:
            pairs = self.window * tokens - self.window**2 / 2
        return 2.0 * self.heads * (self.qk_dim + self.v_dim) * pairs


@dataclass(frozen=True, slots=True)
class State:
    """The constant state of a linear-attention or Mamba layer, for one sequence, over all heads (elements)."""

    conv_elements: int
    recurrent_elements: int
    conv_bytes: int  # per element
    recurrent_bytes: int  # per element

    @property
    def size_bytes(self) -> int:
        return self.conv_elements * self.conv_bytes + self.recurrent_elements * self.recurrent_bytes


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear module of a layer: `rows` outputs, `columns` inputs; `count` alike ones (routed experts).

    `name` is the usual one in checkpoints, from the layer on ('self_attn.q_proj'; experts have the number 0).
    `copied`: tensor parallelism keeps it whole on each rank.
    """

    name: str
    rows: int
    columns: int
    count: int = 1
    copied: bool = False

    @property
    def parameters(self) -> int:
        return self.rows * self.columns * self.count


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The bytes of one layer's weights as served, scales included.

    `active_bytes` are read for one token, `copied_bytes` are on each tensor-parallel rank. `fp8_parameters` and
    `fp4_parameters` are those that a token is multiplied with in FP8 and in FP4, where the chip has such units.
    """

    total_bytes: float
    active_bytes: float
    copied_bytes: float
    fp8_parameters: float = 0
    fp4_parameters: float = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A mixer (attention or linear) or a feed-forward block: its parameters and what it caches.

    `matrices` are its linear modules, which a checkpoint may quantize; the other parameters keep the model's dtype.

    `replicated` are the parameters that tensor parallelism copies to each rank (norms, routers, MLA's down
    projections), `experts` those of the routed experts. `width` is the number of activation elements per token that
    live at once in the widest part, `sharded_widths` are the feed-forward widths that tensor parallelism divides.
    """

    parameters: int
    replicated: int = 0
    experts: int = 0
    experts_active: int = 0
    width: int = 0
    sharded_widths: tuple[int, ...] = ()
    attention: Attention | None = None
    state: State | None = None
    matrices: tuple[Matrix, ...] = ()


NOTHING = Block(0)


@dataclass(frozen=True, slots=True)
class Layer:
    """`count` consecutive equal layers, each of a mixer, a feed-forward block and `norms` parameters.

    `stored`: how the checkpoint keeps them, None until the reader knows it.
    """

    kind: str
    mixer: Block
    ffn: Block
    norms: int
    count: int = 1
    stored: StoredWeights | None = None

    @property
    def attention(self) -> Attention | None:
        return self.mixer.attention

    @property
    def state(self) -> State | None:
        return self.mixer.state

    @property
    def parameters(self) -> int:
        return self.mixer.parameters + self.ffn.parameters + self.norms
