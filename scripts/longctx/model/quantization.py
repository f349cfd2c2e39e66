"""Which matrices a checkpoint quantises, and how: config.json's `quantization_config`, or hf_quant_config.json.

Rules are tried in order, the first that names a matrix decides, as in vLLM (get_quant_method of each method). A name
counts from 'layers.N' on, whatever stands before it. Patterns are exact names (of a matrix or of a module around it),
wildcards, or regular expressions after 're:'.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from longctx.model import schemes
from longctx.model.fields import Fields
from longctx.model.layers import Layer, Matrix, StoredWeights
from longctx.model.schemes import Scheme

_BEFORE = re.compile(r"^(?:model\.|language_model\.|backbone\.|text_model\.)+")
_PREFIXES = ("model.", "", "language_model.model.", "model.language_model.", "backbone.")
_LAYER = re.compile(r"layers\.(\d+)(?=[.*]|$)")
# Modules that vLLM fuses, or that other files call so: a list may name either.
_FUSED = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj", "in_proj_qkv": "in_proj_qkvz", "in_proj_z": "in_proj_qkvz", "in_proj_b": "in_proj_ba",
    "in_proj_a": "in_proj_ba",
}  # fmt: skip
_SHORT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# What a family's checkpoints call a module; the first that fits counts.
_MODULES: dict[str, tuple[tuple[str, str], ...]] = {
    "minimax_m2": (("mlp", "block_sparse_moe"),),
    "mixtral": (("mlp", "block_sparse_moe"),),
    "kimi_linear": (("mlp.experts", "block_sparse_moe.experts"), ("mlp.shared", "block_sparse_moe.shared")),
    "granitemoehybrid": (("mlp.shared_experts", "shared_mlp"), ("mlp", "block_sparse_moe")),
    "llama4_text": (("mlp.shared_experts", "feed_forward.shared_expert"), ("mlp", "feed_forward")),
    "nemotron_h": (("self_attn", "mixer"), ("mamba", "mixer"), ("mlp", "mixer")),
    "mamba2": (("mamba", "mixer"),),
    "deepseek_v4": (("mlp", "ffn"),),
    "qwen2_moe": (("mlp.shared_experts", "mlp.shared_expert"),),
    "qwen3_5_text": (("self_attn.g_proj", "self_attn.q_proj"),),
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), (
        ("mlp.shared_experts", "mlp.shared_expert"), ("self_attn.g_proj", "self_attn.q_proj"))),
    "gemma4_text": (("mlp.experts", "experts"),),
    **dict.fromkeys(("lfm2", "lfm2_moe", "jamba", "falcon_h1"), (("mlp", "feed_forward"),)),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl_text"), (("mlp", "block_sparse_moe"),)),
}  # fmt: skip


class Patterns:
    """Names and patterns of modules; `head` says whether 'everything' (no patterns) includes the output matrix."""

    def __init__(self, texts: Iterable[str] = (), *, everything: bool = False, head: bool = False) -> None:
        self._everything, self._head = everything, head
        self._general: list[str] = []
        self._of_layer: dict[int, list[str]] = defaultdict(list)
        for text in texts:
            pattern = text if text.startswith("re:") else _BEFORE.sub("", text)
            layer = _LAYER.match(pattern)
            (self._of_layer[int(layer[1])] if layer else self._general).append(pattern)

    def match(self, index: int | None, names: Iterable[str]) -> bool:
        """Return whether one of a matrix's `names` is meant, in layer `index` (None: the output matrix)."""
        if self._everything:
            return index is not None or self._head
        if index is None:
            return any(_fits(pattern, name) for pattern in self._general for name in names)
        patterns = self._general + self._of_layer.get(index, [])
        return any(_fits(pattern, f"layers.{index}.{name}") for pattern in patterns for name in names)


def _fits(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], prefix + name) for prefix in _PREFIXES)
    if set("*?[") & set(pattern):
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    return f".{pattern}." in f".{name}."


@dataclass(frozen=True, slots=True)
class Quantization:
    """A checkpoint's rules: patterns and the scheme of what they name (None: not quantised, as where no rule fits).

    `kv_auto` is the cache's type for --kv-cache-dtype auto (None: the model's dtype). `block` is the side of FP8's
    scaled blocks (0: none), of which a rank's share of a matrix must be whole ones.
    """

    model_type: str
    dtype_bytes: int
    rules: tuple[tuple[Patterns, Scheme | None], ...] = ()
    kv_auto: str | None = None
    block: int = 0
    note: str = ""

    def scheme(self, index: int | None, matrix: Matrix) -> Scheme:
        """Return how a matrix of layer `index` is stored; None is the output matrix."""
        names = self.names(matrix.name)
        found = next((scheme for patterns, scheme in self.rules if patterns.match(index, names)), None)
        return found or Scheme(8 * self.dtype_bytes)

    def stored(self, index: int, layer: Layer) -> StoredWeights:
        """Return the bytes of a layer by its place in the model, from 0."""
        total, active, copied = 0.0, 0.0, 0.0
        multiplied = {"bf16": 0.0, "fp8": 0.0, "fp4": 0.0}
        for block in (layer.mixer, layer.ffn):
            rest, idle = float(block.parameters), float(block.experts - block.experts_active)
            rest_copied = block.replicated
            for matrix in block.matrices:
                scheme, parameters = self.scheme(index, matrix), matrix.parameters
                size = scheme.size_bytes(matrix)
                used = block.experts_active / block.experts if matrix.count > 1 else 1.0
                total, active = total + size, active + size * used
                multiplied[scheme.products] += parameters * used
                rest, idle = rest - parameters, idle - parameters * (1 - used)
                if matrix.copied:
                    copied, rest_copied = copied + size, rest_copied - parameters
            total, active = total + rest * self.dtype_bytes, active + (rest - idle) * self.dtype_bytes
            copied += rest_copied * self.dtype_bytes
        norms = layer.norms * self.dtype_bytes
        sizes = total + norms, active + norms, copied + norms
        return StoredWeights(*sizes, multiplied["fp8"], multiplied["fp4"])

    def names(self, name: str) -> list[str]:
        """Return what checkpoints call the matrix `name`: in this family, fused with others, and by a short name."""
        for usual, own in _MODULES.get(self.model_type, ()):
            if name.startswith(usual):
                name = own + name.removeprefix(usual)
                break
        parent, _, module = name.rpartition(".")
        return [name, *(f"{parent}.{names[module]}" for names in (_FUSED, _SHORT) if module in names)]


_IGNORED = {  # the others: modules_to_not_convert or ignored_layers
    "modelopt": ("ignore", "exclude_modules"), "compressed-tensors": ("ignore",), "quark": ("exclude",),
}  # fmt: skip
_METHODS = "fp8, fbgemm_fp8, mxfp4, mxfp8, awq, gptq, compressed-tensors, modelopt, quark"


def read_quantization(fields: Fields, model_type: str, dtype_bytes: int) -> Quantization:
    """Return the rules of a config.json's `quantization_config`; GeometryError names what is not known in it."""
    experts = fields.get("expert_dtype", default="")  # DeepSeek V4: MXFP4 beside an fp8 quantization_config
    name = "quantization_config" if fields.has("quantization_config") else "compression_config"
    if not fields.has(name):
        return Quantization(model_type, dtype_bytes)
    found = fields.inner(name)
    if found.has("quantization"):  # as hf_quant_config.json nests it
        found = Fields({**found.values, **found.inner("quantization").values}, found.name, found.where)
    method = _method(found)
    exceptions = _IGNORED.get(method, ("modules_to_not_convert", "ignored_layers"))
    ignored = Patterns(pattern for key in exceptions for pattern in found.items(key, str, []))
    rules: list[tuple[Patterns, Scheme | None]] = [(ignored, None)]
    if method == "quark":
        rules += _quark_rules(found)
    elif method in ("compressed-tensors", "modelopt"):
        rules = _mixed_rules(found) or rules + _group_rules(
            found, head=method == "modelopt" and any(map(found.has, exceptions))
        )
    elif method == "mxfp4":  # gpt-oss: its experts only
        rules.append((Patterns(["*.experts.*"]), schemes.MXFP4))
    else:
        if routed := _routed_experts(found, experts):
            rules.insert(0, (Patterns(["*.experts.*"]), routed))
        rules.append((Patterns(everything=True), _uniform(found, method)))
    block = max((max(scheme.block) for _, scheme in rules if scheme and min(scheme.block) > 1), default=0)
    complete = method != "modelopt" or len(rules) != 2 or any(map(found.has, exceptions))
    note = (
        "" if complete else "the quantization names no module that it leaves out: all but the tables count as quantised"
    )
    return Quantization(model_type, dtype_bytes, tuple(rules), _kv_auto(found, method), block, note)


def _method(found: Fields) -> str:
    """Return `quant_method`; ModelOpt's first versions left it out."""
    method = str(found.get("quant_method", default="")).lower().replace("_", "-").replace("fbgemm-fp8", "fbgemm_fp8")
    producer = found.get("producer", default=None)
    if not method and (
        found.has("quant_algo") or (isinstance(producer, Mapping) and producer.get("name") == "modelopt")
    ):
        return "modelopt"
    return "modelopt" if method.startswith("modelopt") else method


def _uniform(found: Fields, method: str) -> Scheme:
    if method == "fp8":
        return schemes.fp8_blocks(found)
    if method == "fbgemm_fp8":
        return Scheme(8, 4, (1, 0), products="fp8")
    if method in ("awq", "gptq"):
        return schemes.integers(found)
    if method == "mxfp8":
        return schemes.modelopt(found, "MXFP8", 32)
    known = f"known are {_METHODS}; plan with the unquantised config"
    raise found.fail("quant_method", f"is {found.get('quant_method')!r}", known)


def _routed_experts(found: Fields, experts: object) -> Scheme | None:
    """Return the scheme of DeepSeek V4's routed experts where it is not that of the other matrices."""
    if str(found.get("moe_quant_algo", default="")).upper() == "NVFP4":
        return schemes.nvfp4(found.count("group_size", default=16))
    return schemes.MXFP4 if experts == "fp4" else None


def _mixed_rules(found: Fields) -> list[tuple[Patterns, Scheme | None]]:
    """Return the rules of ModelOpt's MIXED_PRECISION: each entry of `quantized_layers` has a scheme of its own."""
    if str(found.get("quant_algo", default="")).upper() != "MIXED_PRECISION":
        return []
    layers, names = found.inner("quantized_layers"), defaultdict(list)
    for name in layers.values:
        entry = layers.inner(name)
        scheme = schemes.modelopt(entry, entry.text("quant_algo"), entry.count("group_size", default=16))
        names[scheme].append(name)
    return [(Patterns(listed), scheme) for scheme, listed in names.items()]


def _group_rules(found: Fields, *, head: bool) -> list[tuple[Patterns, Scheme | None]]:
    """Return the rules of `quant_algo`, else of `config_groups`: names first, then classes ('Linear').

    `head`: a rule for everything means the output matrix too, which only ModelOpt's does.
    """
    algorithm, group = found.get("quant_algo", default=None), found.count("group_size", default=16)
    groups = found.inner("config_groups") if found.has("config_groups") or not algorithm else Fields({}, found.name)
    if algorithm:
        entries = [groups.inner(name) for name in groups.values]
        weights_only = entries and not any(entry.has("input_activations") for entry in entries)
        name = "W4A16_NVFP4" if weights_only and str(algorithm).upper() == "NVFP4" else str(algorithm)
        return [(Patterns(everything=True, head=head), schemes.modelopt(found, name, group))]
    named: list[tuple[Patterns, Scheme | None]] = []
    classes: list[tuple[Patterns, Scheme | None]] = []
    for name in groups.values:
        entry = groups.inner(name)
        targets = entry.items("targets", str, ["Linear"])
        if len(targets) == 1 and targets[0].endswith("Attention"):  # of the cache, not of weights
            continue
        scheme = schemes.config_group(entry)
        named.append((Patterns(target for target in targets if "." in target or target.startswith("re:")), scheme))
        if "Linear" in targets:
            classes.append((Patterns(everything=True, head=head), scheme))
    return named + classes


def _quark_rules(found: Fields) -> list[tuple[Patterns, Scheme | None]]:
    """Return Quark's rules: `layer_quant_config` by name, then by class, then `global_quant_config`."""
    rules: list[tuple[Patterns, Scheme | None]] = []
    if found.has("layer_quant_config"):
        layers = found.inner("layer_quant_config")
        rules += [(Patterns([name]), schemes.quark(layers.inner(name))) for name in layers.values]
    if found.has("layer_type_quant_config"):
        types = found.inner("layer_type_quant_config")
        linear = (types.inner(name) for name in types.values if "Linear" in name)
        rules += [(Patterns(everything=True), schemes.quark(entry)) for entry in linear]
    return [*rules, (Patterns(everything=True), schemes.quark(found.inner("global_quant_config")))]


def _kv_auto(found: Fields, method: str) -> str | None:
    """Return the cache's type that `auto` becomes: FP8 or NVFP4 where the file says so, None for the model's dtype.

    So vLLM (utils/torch_utils.py, resolve_kv_cache_dtype_string); Quark's own entry for the cache does not change it.
    """
    scheme = found.get("kv_cache_scheme", "kv_cache_quant_algo", default=None)
    if method == "quark" or scheme is None:
        return None
    if isinstance(scheme, Mapping):
        entry = found.inner("kv_cache_scheme")
        bits = entry.count("num_bits")
        if bits not in (4, 8):
            raise entry.fail("num_bits", f"is {bits}", "known are 8 bits and 4")
        return "fp8" if bits == 8 else "nvfp4"
    return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(scheme).lower())
