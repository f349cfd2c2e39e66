"""One layer of a model: attention, recurrent state, parameters."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from longctx.model.kv_format import KvFormat


@dataclass(frozen=True, slots=True)
class Indexer:
    """The small attention of a sparse layer that scores all cached tokens and selects those the layer attends to.

    `heads` and `dim` are of its score products. `entry_bytes` are its cached key and scale per entry, in the type that
    vLLM gives this cache whatever the KV cache's type is. `heads` and `entry_bytes` are 0 in a layer that takes the
    selection of an earlier one.
    """

    heads: int
    dim: int
    entry_bytes: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention of one layer.

    `qk_dim` and `v_dim` are the per-head widths of the prefill; `kv_elements` are the cached elements per entry
    over all KV heads (MLA: the latent and its rotary part, shared by all heads; 0: the layer reads another one's
    cache). `window` is the number of tokens that a query sees (None: all); `chunked` windows start again instead of
    sliding. Sparse attention has an `indexer`, and `selected` tokens per query. DeepSeek V4 compresses
    `tokens_per_entry` tokens into one cached entry, and sees the last `local` tokens uncompressed, from a windowed
    cache beside. `fp8_entry_bytes` replace kv_elements where an FP8 cache has a layout of its own, with its scales.
    """

    kind: str  # 'mla' or 'gqa' (MHA and MQA are GQA with as many KV heads as heads, or one)
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    kv_elements: int
    window: int | None = None
    chunked: bool = False
    indexer: Indexer | None = None
    selected: int | None = None
    tokens_per_entry: int = 1
    local: int | None = None
    fp8_entry_bytes: int | None = None

    @property
    def index_bytes(self) -> int:
        """Return the indexer's bytes per cached entry; tensor parallelism copies them to each rank."""
        return self.indexer.entry_bytes if self.indexer else 0

    def entry_bytes(self, kv: KvFormat) -> int:
        """Return the KV bytes of one cached entry in this format, scales included, the indexer's not counted."""
        if kv.is_fp8 and self.fp8_entry_bytes is not None:
            return self.fp8_entry_bytes
        if self.kind == "mla" or not self.kv_elements:
            return kv.head_bytes(self.kv_elements, 0) if self.kv_elements else 0
        both = self.kv_elements // self.kv_heads
        return self.kv_heads * kv.head_bytes(both - self.v_dim, self.v_dim)

    def sharded(self, tensor: int) -> "Attention":
        """Return what one of `tensor` ranks caches: GQA's KV heads are shared out, down to one; MLA's latent is not."""
        if self.kind == "mla" or tensor == 1:
            return self
        heads = -(-self.kv_heads // tensor)
        return replace(self, kv_elements=self.kv_elements // self.kv_heads * heads, kv_heads=heads)

    def cache_bytes(self, tokens: int, kv: KvFormat) -> int:
        """Return the bytes that `tokens` of context occupy, indexer and window included, states and padding not."""
        held = min(tokens, self.window) if self.window else tokens
        entries = -(-held // self.tokens_per_entry)
        beside = min(tokens, self.local) if self.local else 0
        entry = self.entry_bytes(kv)
        return entries * (entry + self.index_bytes) + beside * entry

    def read_bytes(self, tokens: int, kv: KvFormat) -> int:
        """Return the cached bytes that a decode step reads after `tokens`: the index keys, the selected entries."""
        seen = tokens if self.selected is None else min(tokens, self.selected)
        index = -(-tokens // self.tokens_per_entry) * self.index_bytes
        return replace(self, indexer=None).cache_bytes(seen, kv) + index

    def prefill_flops(self, tokens: int) -> float:
        """Return the FLOPs of a causal prefill: 2 * heads * (d_qk + d_v) per query-key pair, each counted once."""
        limit = self.window if self.selected is None else self.selected
        if self.chunked and limit is not None and tokens > limit:
            chunks, rest = divmod(tokens, limit)
            pairs = (chunks * limit**2 + rest**2) / 2
        else:
            pairs = _causal_pairs(tokens, limit) / self.tokens_per_entry
        if self.local is not None:
            pairs += _causal_pairs(tokens, self.local)
        return 2.0 * self.heads * (self.qk_dim + self.v_dim) * pairs

    def index_flops(self, tokens: int) -> float:
        """Return the FLOPs of the indexer's scores in a causal prefill: 2 * heads * dim per query-entry pair.

        They grow with the square of the tokens. A prompt within the selection needs no scores.
        """
        if self.indexer is None or tokens <= (self.selected or 0):
            return 0.0
        return 2.0 * self.indexer.heads * self.indexer.dim * _causal_pairs(tokens, None) / self.tokens_per_entry


def _causal_pairs(tokens: int, limit: int | None) -> float:
    """Return the query-key pairs of a causal prefill in which a query sees the last `limit` tokens (None: all)."""
    if limit is None or tokens <= limit:
        return tokens * tokens / 2
    return limit * tokens - limit**2 / 2


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


def parameters_of(matrices: Iterable[Matrix]) -> int:
    return sum(matrix.parameters for matrix in matrices)


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
