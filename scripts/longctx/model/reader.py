"""Read a model's geometry from a config.json: a file, the Hugging Face cache, or resources/models.

A `hf_quant_config.json` beside it is read as vLLM does: where config.json itself has no `quantization_config`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from longctx.errors import GeometryError
from longctx.model.families.registry import ALIASES, CLASS_DEFAULTS, FAMILIES, FP8_CACHE_BY_DEFAULT
from longctx.model.fields import REQUIRED, Fields
from longctx.model.geometry import Geometry
from longctx.model.quantization import read_quantization
from longctx.resources import MODELS_DIR

_QUANTIZED_NAME = re.compile(r"(?:NV|MX)?FP[48]", re.IGNORECASE)


def read_geometry(source: str | Path, revision: str | None = None) -> Geometry:
    """Read a config.json, a folder with one, a cached Hugging Face model, or one of resources/models.

    Those of resources/models are named by file name ('kimi-linear-48b-a3b') or Hugging Face id, so that a machine
    without the model can plan. `revision` is of a cached model (None: its main branch).
    """
    path, name = Path(source).expanduser(), str(source)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        path = _cached_config(name, revision) or _shipped_config(name)
    config = read_config(path)
    geometry = build_geometry(config, config.get("longctx_name") or name)
    if geometry.quantization.rules or not (word := _QUANTIZED_NAME.search(name)):
        return geometry
    note = (
        f"the name says {word[0]}, but no quantization was found: is hf_quant_config.json missing beside config.json?"
    )
    return replace(geometry, notes=(*geometry.notes, note))


def read_config(path: Path) -> dict[str, Any]:
    """Return a config.json with the quantization that vLLM would find for it (transformers_utils/config.py)."""
    config, beside = _read_json(path), path.parent / "hf_quant_config.json"
    found = config.get("quantization_config")
    if path.name != "config.json" or not beside.is_file():
        return config
    if found is None:
        return config | {"quantization_config": _read_json(beside)}
    if isinstance(found, dict) and found.get("quant_algo") == "MIXED_PRECISION" and "quantized_layers" not in found:
        return config | {"quantization_config": found | _read_json(beside)}
    return config


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

    path = try_to_load_from_cache(model_id, "config.json", revision=revision)
    return Path(path) if isinstance(path, str) else None


def _is_model_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _shipped_config(name: str) -> Path:
    shipped = sorted(MODELS_DIR.glob("*.json"))
    for path in shipped:
        if name == path.stem or name in _read_json(path).get("longctx_ids", ()):
            return path
    known = ", ".join(path.stem for path in shipped)
    get = f"; fetch it first: hf download {name} --include '*config.json'" if _is_model_id(name) else ""
    tried = "a config.json, nor its folder, nor a model in the Hugging Face cache"
    raise GeometryError(f"{name}: neither {tried}, nor one of {known}{get}")


# Where multimodal files keep the language model (the second ones in InternVL and DeepSeek-VL2).
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
# Fields that a multimodal file may have outside of that part.
_OUTER = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")
_MTP = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers")


def build_geometry(config: Mapping[str, Any], name: str = "") -> Geometry:
    """Return the geometry of a config.json's content; GeometryError names a missing or unknown field."""
    fields, notes = Fields(config, name), []
    if any(key in config for key in (*_TEXT_PARTS, "thinker_config", "vision_config", "audio_config")):
        notes.append("the vision or audio parts' weights are not counted")
    if "thinker_config" in config:  # Qwen's Omni models: the part that reads and writes text
        fields = fields.inner("thinker_config")
    if part := next((name for name in _TEXT_PARTS if name in fields.values), None):
        fields = fields.inner(part)
    own = fields.values
    outer = {k: config[k] for k in _OUTER if config.get(k) is not None and own.get(k) is None}
    if config.get("tie_word_embeddings") is False:  # transformers ties only where both parts of a file agree
        outer["tie_word_embeddings"] = False
    model_type = fields.text("model_type", config.get("model_type") or REQUIRED)
    model_type = ALIASES.get(model_type, model_type)
    values, defaults = {**own, **outer, "model_type": model_type}, CLASS_DEFAULTS.get(model_type, {})
    values.update({k: v for k, v in defaults.items() if values.get(k) is None})
    fields = replace(fields, values=values)
    if model_type not in FAMILIES:
        raise fields.fail("model_type", f"is {model_type!r}", f"docs/plan.md lists the {len(FAMILIES)} known ones")
    dtype_bytes = fields.dtype_bytes()
    quantization = read_quantization(fields, model_type, dtype_bytes)
    built = FAMILIES[model_type](fields, dtype_bytes)
    per_layer = max(1, len(built) // fields.count("num_hidden_layers", default=len(built)))  # Falcon-H1: two
    stored = [replace(layer, stored=quantization.stored(i // per_layer, layer)) for i, layer in enumerate(built)]
    layers = tuple(replace(layer, count=len(list(run))) for layer, run in groupby(stored))
    vocab_size, hidden_size = fields.count("vocab_size"), fields.count("hidden_size")
    head = 0 if fields.flag("tie_word_embeddings", False) else vocab_size * hidden_size
    head += vocab_size * fields.flag("lm_head_bias", False)
    table = vocab_size * hidden_size + _per_layer_tables(fields)
    max_position = fields.get("max_position_embeddings", "model_max_length", default=None)
    if model_type in FP8_CACHE_BY_DEFAULT and quantization.kv_auto is None:
        quantization = replace(quantization, kv_auto="fp8")
    if quantization.note:
        notes.append(quantization.note)
    fields.skip(*_MTP)
    if any(fields.get(key, default=0) for key in _MTP):
        notes.append("multi-token-prediction layers are not counted")
    fields.refuse_unread(model_type)
    return Geometry(
        name, layers, vocab_size, hidden_size, table, head, dtype_bytes, quantization, max_position, tuple(notes)
    )


def _per_layer_tables(fields: Fields) -> int:
    """Return the parameters of Gemma's embedding tables per layer, 0 where there is none."""
    fields.skip("vocab_size_per_layer_input")
    if not fields.has("hidden_size_per_layer_input"):
        return 0
    width = fields.count("hidden_size_per_layer_input", at_least=0) * fields.count("num_hidden_layers")
    return width * fields.count("vocab_size_per_layer_input") if width else 0
