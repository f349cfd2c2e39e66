"""Memory and work of a model by its config.json: KV bytes, constant states, parameters, FLOPs.

No weights and no network are needed. A field that is missing, contradictory or unknown is a GeometryError that
names it; nothing is guessed. The families' own rules are in `longctx.model.families`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from longctx.model.kv_format import KV_FORMATS, KvFormat, kv_format
from longctx.model.layers import Layer, Matrix, StoredWeights
from longctx.model.quantization import Quantization


@dataclass(frozen=True, slots=True)
class Geometry:
    """A model's sizes. Bytes and tokens are for one sequence, before any parallelism."""

    name: str
    layers: tuple[Layer, ...]
    vocab_size: int
    hidden_size: int
    embedding_parameters: int  # input table
    head_parameters: int  # output matrix; 0 where it is tied to the input table
    dtype_bytes: int
    quantization: Quantization
    max_position: int | None
    notes: tuple[str, ...] = ()

    def each_layer(self) -> Iterator[Layer]:
        """Yield the layers one by one, in the model's order (count is 1)."""
        for layer in self.layers:
            for _ in range(layer.count):
                yield replace(layer, count=1)

    @property
    def layer_count(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def parameters_total(self) -> int:
        """Return all parameters of the text model, embeddings included, multi-token-prediction layers left out."""
        layers = sum(layer.count * layer.parameters for layer in self.layers)
        return layers + self.embedding_parameters + self.head_parameters + self.hidden_size

    @property
    def parameters_active(self) -> int:
        """Return the parameters that a token uses: with output matrix, no input table (so README_WEIGHTS.md of V3)."""
        return self.layer_parameters_active + (self.head_parameters or self.embedding_parameters) + self.hidden_size

    @property
    def layer_parameters_active(self) -> int:
        """Return the parameters that each prompt token is multiplied with: no embedding table, no output head."""
        idle = sum(layer.count * (layer.ffn.experts - layer.ffn.experts_active) for layer in self.layers)
        return sum(layer.count * layer.parameters for layer in self.layers) - idle

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of all weights as served; the input table keeps the model's dtype."""
        layers = sum(layer.count * self.stored(layer).total_bytes for layer in self.layers)
        return layers + self.head_bytes + (self.embedding_parameters + self.hidden_size) * self.dtype_bytes

    @property
    def active_weight_bytes(self) -> float:
        """Return the weight bytes that one decode step reads: active layers and the output matrix."""
        layers = sum(layer.count * self.stored(layer).active_bytes for layer in self.layers)
        head = self.head_bytes or self.embedding_parameters * self.dtype_bytes
        return layers + head + self.hidden_size * self.dtype_bytes

    @property
    def head_bytes(self) -> float:
        """Return the bytes of the output matrix, 0 where it is the input table."""
        matrix = Matrix("lm_head", self.vocab_size, self.hidden_size)
        return self.quantization.scheme(None, matrix).size_bytes(matrix) if self.head_parameters else 0.0

    def stored(self, layer: Layer) -> StoredWeights:
        """Return how one such layer's weights are kept."""
        return layer.stored or self.quantization.stored(0, layer)

    @property
    def is_mla(self) -> bool:
        return any(layer.attention and layer.attention.kind == "mla" for layer in self.layers)

    def kv_format(self, kv_dtype: str) -> KvFormat:
        """Return how vLLM's --kv-cache-dtype stores this model's cache; ConfigError if it is not a possible one."""
        if kv_dtype == "auto":
            kv_dtype = self.quantization.kv_auto or self.model_kv_format.name
        return kv_format(kv_dtype, {layer.attention.kind for layer in self.layers if layer.attention})

    @property
    def model_kv_format(self) -> KvFormat:
        """Return the format of a cache in the model's own dtype."""
        return KV_FORMATS["float32" if self.dtype_bytes == 4 else "bfloat16"]

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Return the cache's growth per token over all layers that see the whole context, indexers included."""
        size = self.kv_format(kv_dtype)
        seen = ((y.count, y.attention) for y in self.layers if y.attention and not y.attention.window)
        growth = (count * (a.entry_bytes(size) + a.index_bytes) / a.tokens_per_entry for count, a in seen)
        return ceil(sum(growth))

    def kv_bytes(self, tokens: int, kv_dtype: str) -> int:
        """Return the bytes that `tokens` of context occupy, windowed layers included, states and padding not."""
        size = self.kv_format(kv_dtype)
        return sum(y.count * y.attention.cache_bytes(tokens, size) for y in self.layers if y.attention)

    def windowed_bytes(self, kv_dtype: str) -> int:
        """Return the most bytes that the windowed layers' caches hold, at any context."""
        size = self.kv_format(kv_dtype)
        windowed = ((y.count, y.attention) for y in self.layers if y.attention)
        return sum(count * a.entry_bytes(size) * (a.window or a.local or 0) for count, a in windowed)

    def state_bytes(self) -> int:
        """Return the bytes of all constant states of one sequence (independent of its length)."""
        return sum(layer.count * layer.state.size_bytes for layer in self.layers if layer.state)

    def attention_flops(self, tokens: int) -> float:
        """Return the FLOPs of softmax attention in a causal prefill: 2 * heads * (d_qk + d_v) per query-key pair.

        Windows and selections bound the pairs of a query; the indexers' own products are `index_flops`.
        """
        return sum(y.count * y.attention.prefill_flops(tokens) for y in self.layers if y.attention)

    def index_flops(self, tokens: int) -> float:
        """Return the FLOPs of the indexers' scores in a causal prefill, quadratic in the tokens; 0 without indexers."""
        return sum(y.count * y.attention.index_flops(tokens) for y in self.layers if y.attention)

    def linear_flops(self, tokens: int) -> dict[str, float]:
        """Return the FLOPs that grow linearly, by the precision of their products ('bf16', 'fp8', 'fp4').

        2 per active layer parameter, 4 per recurrent state element (states in BF16 or wider).
        """
        states = sum(y.count * y.state.recurrent_elements for y in self.layers if y.state)
        fp8 = sum(layer.count * self.stored(layer).fp8_parameters for layer in self.layers)
        fp4 = sum(layer.count * self.stored(layer).fp4_parameters for layer in self.layers)
        bf16 = 2.0 * (self.layer_parameters_active - fp8 - fp4) + 4.0 * states
        return {"bf16": tokens * bf16, "fp8": tokens * 2.0 * fp8, "fp4": tokens * 2.0 * fp4}
