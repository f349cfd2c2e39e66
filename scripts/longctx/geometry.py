"""What a Hugging Face config.json says about memory and work: KV bytes, constant states, parameters, FLOPs.

No weights and no network are needed. A field that is missing, contradictory or unknown is a GeometryError that
names it; nothing is guessed. The families' own rules are in `longctx.families`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longctx.errors import ConfigError, GeometryError
from longctx.quantisation import WeightBytes

MODELS_DIR = Path(__file__).parents[2] / "resources" / "models"
KV_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention of one layer.

    `qk_dim` and `v_dim` are the per-head widths of the prefill; `kv_elements` is what the cache keeps per token
    over all KV heads (MLA: the latent and its rotary part, shared by all heads). `window` is the number of tokens
    that a query sees (None: all); `chunked` windows start anew instead of sliding.
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
    some quantisations treat apart.
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


@dataclass(frozen=True, slots=True)
class Geometry:
    """A model's sizes. Bytes and tokens are for one sequence, before any parallelism."""

    name: str
    model_type: str
    layers: tuple[Layer, ...]
    vocab_size: int
    hidden_size: int
    embedding_parameters: int  # input table
    head_parameters: int  # output matrix; 0 where it is tied to the input table
    dtype_bytes: int
    stored: WeightBytes  # of the layers; the tables keep dtype_bytes
    max_position: int | None
    notes: tuple[str, ...] = ()

    @staticmethod
    def from_config(config: Mapping[str, Any], name: str = "") -> "Geometry":
        """Read a config.json's content; GeometryError names the field that is missing or unknown."""
        from longctx.families import build_geometry  # families needs this module's classes

        return build_geometry(config, name)

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
        """Return the parameters that one generated token uses: the output matrix counts, the input table's row not.

        DeepSeek's README_WEIGHTS.md counts so (36.6e9 for V3).
        """
        return self.layer_parameters_active + (self.head_parameters or self.embedding_parameters) + self.hidden_size

    @property
    def layer_parameters_active(self) -> int:
        """Return the parameters that each prompt token is multiplied with: no embedding table, no output head."""
        return sum(layer.count * layer.parameters_active for layer in self.layers)

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of all weights as served."""
        return self._layer_bytes(active=False) + self._table_bytes(self.embedding_parameters + self.head_parameters)

    @property
    def active_weight_bytes(self) -> float:
        """Return the weight bytes that one decode step reads: active layers and the output matrix."""
        head = self.head_parameters or self.embedding_parameters
        return self._layer_bytes(active=True) + self._table_bytes(head)

    def _table_bytes(self, parameters: int) -> float:
        return (parameters + self.hidden_size) * self.dtype_bytes

    def _layer_bytes(self, active: bool) -> float:
        return sum(layer.count * self.layer_bytes(layer, active=active) for layer in self.layers)

    def layer_bytes(self, layer: Layer, *, active: bool = False) -> float:
        """Return the weight bytes of one of `layer`, or those that one token is multiplied with."""
        experts = layer.parameters_experts_active if active else layer.parameters_experts
        ffn = (layer.parameters_active if active else layer.parameters) - layer.parameters_mixer - experts
        return layer.parameters_mixer * self.stored.mixer + ffn * self.stored.ffn + experts * self.stored.experts

    @property
    def quantised_weights(self) -> bool:
        return min(self.stored.mixer, self.stored.ffn, self.stored.experts) < self.dtype_bytes

    @property
    def fp8_products(self) -> bool:
        """Return whether some weights have 8 bits, so that products may run at the FP8 peak (4 bits: at BF16's)."""
        return any(1 <= size < 2 for size in (self.stored.mixer, self.stored.ffn, self.stored.experts))

    @property
    def is_mla(self) -> bool:
        return any(layer.attention and layer.attention.kind == "mla" for layer in self.layers)

    def kv_dtype_bytes(self, kv_dtype: str) -> int:
        """Return bytes per cached element for vLLM's --kv-cache-dtype; ConfigError if it is not a known one."""
        if kv_dtype == "auto":
            return self.stored.kv_auto
        if kv_dtype not in KV_DTYPE_BYTES:
            raise ConfigError(f"kv_cache_dtype: {kv_dtype!r} is not one of auto, {', '.join(KV_DTYPE_BYTES)}")
        return KV_DTYPE_BYTES[kv_dtype]

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Return the cache's growth per token over all layers that see the whole context: layers * elements * s."""
        elements = sum(y.count * y.attention.kv_elements for y in self.layers if y.attention and not y.attention.window)
        return elements * self.kv_dtype_bytes(kv_dtype)

    def kv_bytes(self, tokens: int, kv_dtype: str) -> int:
        """Return the bytes that `tokens` of context occupy, windowed layers included, states and padding not."""
        elements = 0
        for layer in self.layers:
            if layer.attention:
                elements += layer.count * layer.attention.kv_elements * min(tokens, layer.attention.window or tokens)
        return elements * self.kv_dtype_bytes(kv_dtype)

    def windowed_bytes(self, kv_dtype: str) -> int:
        """Return what the windowed layers' caches hold at most, whatever the context."""
        windowed = [y for y in self.layers if y.attention and y.attention.window]
        return sum(
            replace(self, layers=(y,)).kv_bytes(y.attention.window or 0, kv_dtype) for y in windowed if y.attention
        )

    def state_bytes(self) -> int:
        """Return the bytes of all constant states of one sequence (independent of its length)."""
        return sum(layer.count * layer.state.size_bytes for layer in self.layers if layer.state)

    def attention_flops(self, tokens: int) -> float:
        """Return the FLOPs of softmax attention in a causal prefill: 2 * heads * (d_qk + d_v) per query-key pair."""
        return sum(
            2.0
            * y.count
            * y.attention.heads
            * (y.attention.qk_dim + y.attention.v_dim)
            * y.attention.seen_pairs(tokens)
            for y in self.layers
            if y.attention
        )

    def linear_flops(self, tokens: int) -> float:
        """Return the FLOPs that grow linearly: 2 per active layer parameter, 4 per recurrent state element."""
        states = sum(y.count * y.state.recurrent_elements for y in self.layers if y.state)
        return tokens * (2.0 * self.layer_parameters_active + 4.0 * states)

    def prefill_flops(self, tokens: int) -> float:
        """Return attention plus linear FLOPs of a prefill of `tokens`."""
        return self.attention_flops(tokens) + self.linear_flops(tokens)

    def decode_bytes(self, context: int, kv_dtype: str, weight_bytes: float | None = None) -> float:
        """Return the bytes moved for one token behind `context` tokens: weights, cache, states read and written.

        `weight_bytes` replaces the computed active weight bytes (a published figure, for instance).
        """
        weights = self.active_weight_bytes if weight_bytes is None else weight_bytes
        return weights + self.kv_bytes(context, kv_dtype) + 2 * self.state_bytes()


def read_geometry(source: str | Path, revision: str | None = None) -> Geometry:
    """Read a config.json, a folder with one, a cached Hugging Face model, or one of resources/models.

    The last by file name ('kimi-linear-48b-a3b') or Hugging Face id, so that a machine without the model can plan.
    `revision` is of a cached model (None: its main branch).
    """
    path = Path(source).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        path = _cached_config(str(source), revision) or _shipped_config(str(source))
    config = _read_json(path)
    return Geometry.from_config(config, name=config.get("longctx_name") or str(source))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GeometryError(f"{path}: not a readable JSON file ({error})") from error
    if not isinstance(config, dict):
        raise GeometryError(f"{path}: holds no JSON object; give a model's config.json")
    return config


def _cached_config(model_id: str, revision: str | None) -> Path | None:
    if not _is_model_id(model_id):
        return None
    from huggingface_hub import try_to_load_from_cache  # slow to import

    found = try_to_load_from_cache(model_id, "config.json", revision=revision)
    return Path(found) if isinstance(found, str) else None


def _is_model_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _shipped_config(name: str) -> Path:
    for path in sorted(MODELS_DIR.glob("*.json")):
        if name == path.stem or name in _read_json(path).get("longctx_ids", ()):
            return path
    known = ", ".join(sorted(path.stem for path in MODELS_DIR.glob("*.json")))
    get = f"; fetch it first: hf download {name} config.json" if _is_model_id(name) else ""
    raise GeometryError(
        f"{name}: neither a config.json, nor its folder, nor a model in the Hugging Face cache, nor one of {known}{get}"
    )
