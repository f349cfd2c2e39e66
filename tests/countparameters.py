"""Count the parameters of models that transformers builds on the meta device: the oracle of longctx.model.

Runs in the vLLM environment, the only one with torch. Reads {name: content of a config.json} from standard input and
writes {name: {"parameters": number}} or {name: {"error": why}}. With --classes it reads nothing: it takes the default
configuration of each text model in transformers with a context of at least 100,000 tokens, and writes it beside the
number under "config". With --variants it reads a list of model types and does the same for their defaults,
and for copies of these with one flag turned round or one size doubled.

    .venv-vllm/bin/python tests/countparameters.py --classes > defaults.json
"""

import argparse
import json
import os
import re
import sys
import warnings
from typing import Any

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

LONG = 100_000  # tokens
_CONTEXT = ("max_position_embeddings", "max_seq_len", "n_positions", "model_max_length")
# The same architecture under another name in released files: their auto_map or `architectures` says so.
_FLAGS = re.compile(r"bias|norm|tie|gat|latent|wide|k_eq_v|moe|sink|adjust")
_SIZES = re.compile(
    r"shared|vocab_size$|intermediate|index_|per_layer|dense|sliding_window$|key_value_heads|global|latent"
)
_COMPUTED = re.compile(r"slope_rate|_decay$")
_SAME = {"kimi_k2": "deepseek_v3", "deepseek_ref": "deepseek_v4", "mimo": "qwen2", "minimax_m3": "minimax_m3_vl_text"}


def parameters(config: dict[str, Any]) -> int:
    """Return the text model's parameters, tied ones once.

    Numbers that a checkpoint stores and transformers keeps as buffers count too: a router's e_score_correction_bias,
    Gemma 4's layer_scalar. Tables of integers (DeepSeek V4's tid2eid) and tables that the class computes do not.
    """
    values = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
    inner = values.get("text_config") or values.get("llm_config") or values.get("language_config") or {}
    if values["model_type"] not in CONFIG_MAPPING and inner:
        values = {key: value for key, value in inner.items() if key not in ("quantization_config", "auto_map")}
    values["model_type"] = _SAME.get(values["model_type"], values["model_type"])
    kind = CONFIG_MAPPING[values["model_type"]]
    if "text_config" in kind.sub_configs and "text_config" not in values:  # a copy that keeps the text part only
        text_only = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
        values = {"model_type": values["model_type"], "text_config": text_only}
    whole = kind.from_dict(values)
    text = whole.get_text_config()
    with torch.device("meta"):
        if text.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            model = AutoModelForCausalLM.from_config(text)
        else:
            model = AutoModelForImageTextToText.from_config(whole)
    model.tie_weights()
    head = model.get_output_embeddings().state_dict(prefix="head.", keep_vars=True)
    stored = model.get_decoder().state_dict(keep_vars=True) | head
    once = {
        id(tensor): tensor.numel()
        for name, tensor in stored.items()
        if tensor.is_floating_point() and not _COMPUTED.search(name)
    }
    return sum(once.values())


def long_defaults() -> dict[str, dict[str, Any]]:
    """Return the default configurations of transformers' text models with a long context, by model_type."""
    found = {}
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            text = CONFIG_MAPPING[model_type]().get_text_config()
        except (TypeError, ValueError):  # composed of parts that must be given
            continue
        except Exception as error:  # huggingface_hub's errors have no common base
            if "validation" not in str(error).lower():
                raise
            continue
        longest = max((value for key in _CONTEXT if isinstance(value := getattr(text, key, None), int)), default=0)
        if longest >= LONG:
            found[text.model_type] = {**text.to_dict(), "architectures": None}
    return found


def variants(model_types: list[str]) -> dict[str, dict[str, Any]]:
    """Return the default configuration of each type that has one, and copies with one field changed, by a name."""
    found = {}
    for model_type in model_types:
        try:
            default = CONFIG_MAPPING[model_type]().get_text_config().to_dict() | {"architectures": None}
        except (KeyError, TypeError, ValueError):
            continue
        found[model_type] = default
        for key, value in default.items():
            if isinstance(value, bool) and _FLAGS.search(key):
                found[f"{model_type}, {key} {not value}"] = {**default, key: not value}
            elif type(value) is int and _SIZES.search(key):
                found[f"{model_type}, {key} {value * 2 or 2}"] = {**default, key: value * 2 or 2}
    return found


def count(config: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"parameters": parameters(config)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", action="store_true", help="count the classes' default configurations")
    parser.add_argument("--variants", action="store_true", help="count variants of the classes' configurations")
    wanted = parser.parse_args()
    given = {} if wanted.classes else json.load(sys.stdin)
    configs = long_defaults() if wanted.classes else variants(given) if wanted.variants else given
    counted = {}
    for name, config in configs.items():
        counted[name] = {**count(config), **({"config": config} if wanted.classes or wanted.variants else {})}
    json.dump(counted, sys.stdout, indent=1, default=str)


if __name__ == "__main__":
    main()
