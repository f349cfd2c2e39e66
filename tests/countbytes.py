"""Count the bytes of the weights that vLLM allocates for a checkpoint: the oracle of longctx.model.quantization.

Runs in the vLLM environment. Builds each model on the meta device, without weights and without a GPU: what chooses a
kernel for a GPU is replaced, for parameters are made before a kernel is. Reads {name: {"config": content of
config.json, "beside": content of hf_quant_config.json or null}} from standard input and writes
{name: {"bytes": number, "kv_cache_dtype": what `auto` became}} or {name: {"error": why}}.

With --rules it reads {name: {"quantization": content of a ModelOpt quantization, "modules": names}} instead, and writes
{name: {module: bits per weight}}: which modules vLLM quantises, also of models that it cannot build on a CPU.
"""

import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model

_TEXT_ARCHITECTURES = {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM",
                       "kimi_k2": "DeepseekV3ForCausalLM", "gemma4_text": "Gemma4ForCausalLM"}  # fmt: skip
# Scales of the attention backend, and parts of a multimodal model that are no text model.
_NOT_COUNTED = ("q_scale", "k_scale", "v_scale", "prob_scale", "visual.", "vision_tower.", "mm_projector.")
_LAYERS = "vllm.model_executor.layers.quantization."
_CHOOSES_A_KERNEL = {
    "modelopt": ("init_nvfp4_linear_kernel", "init_fp8_linear_kernel", "select_fp8_moe_backend",
                 "select_nvfp4_moe_backend"),
    "fp8": ("init_fp8_linear_kernel", "select_fp8_moe_backend"),
    "mxfp4": ("select_mxfp4_moe_backend",),
    "quark.schemes.quark_w8a8_fp8": ("init_fp8_linear_kernel",),
    "quark.schemes.quark_ocp_mx": ("init_mxfp4_linear_kernel",),
}  # fmt: skip


def replace_kernels() -> None:
    for module, names in _CHOOSES_A_KERNEL.items():
        loaded = import_module(_LAYERS + module)
        for name in names:
            if hasattr(loaded, name):
                chosen = (mock.MagicMock(), mock.MagicMock()) if name.startswith("select") else mock.MagicMock()
                setattr(loaded, name, lambda *_, chosen=chosen, **__: chosen)


def weights(folder: Path) -> dict[str, Any]:
    """Return the bytes of the text model's weights and the cache's type."""
    options = {"load_format": "dummy", "enforce_eager": True, "max_model_len": 4096, "skip_tokenizer_init": True}
    config = EngineArgs(model=str(folder), tokenizer=str(folder), **options).create_engine_config()
    config.model_config.dtype = torch.bfloat16
    destroy_model_parallel()  # the groups of one model need not be those of the next
    destroy_distributed_environment()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = initialize_model(config)
    sizes = {
        id(parameter): parameter.numel() * parameter.element_size()
        for name, parameter in model.named_parameters()
        if not any(part in name for part in _NOT_COUNTED)
    }
    return {"bytes": sum(sizes.values()), "kv_cache_dtype": config.cache_config.cache_dtype}


def text_only(files: dict[str, Any]) -> dict[str, Any]:
    """Return the files of the text model alone: its own architecture, and module names as they are there."""
    inner = files["config"].get("text_config")
    if not inner:
        return files
    bare = json.dumps(files)
    for prefix in ("language_model.model.", "model.language_model."):
        bare = bare.replace(prefix, "model.")
    files = json.loads(bare.replace("language_model.lm_head", "lm_head"))
    whole, model_type = files["config"], inner["model_type"]
    architecture = _TEXT_ARCHITECTURES.get(model_type) or inner.get("architectures", [None])[0]
    config = files["config"]["text_config"] | {"architectures": [architecture]}
    kept = ("quantization_config", "torch_dtype", "dtype", "tie_word_embeddings")
    return {**files, "config": {key: whole[key] for key in kept if key in whole} | config}


def count(files: dict[str, Any]) -> dict[str, Any]:
    files = text_only(files)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(files["config"]))
        if files.get("beside"):
            (folder / "hf_quant_config.json").write_text(json.dumps(files["beside"]))
        try:
            return weights(folder)
        except Exception as error:
            if os.environ.get("TRACE"):
                raise
            return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def rules(asked: dict[str, Any]) -> dict[str, int]:
    """Return the bits per weight of each module that vLLM's rules for a ModelOpt checkpoint give; experts are one."""
    modelopt, found = import_module(_LAYERS + "modelopt"), asked["quantization"]
    mixed = (found.get("quantization") or found)["quant_algo"] == "MIXED_PRECISION"
    config = (modelopt.ModelOptMixedPrecisionConfig if mixed else modelopt.ModelOptNvFp4Config).from_config(found)
    if mixed:
        bits = {None: 16, "FP8": 8, "NVFP4": 4, "W4A16_NVFP4": 4}
        return {name: bits[config._resolve_quant_algo(name)] for name in asked["modules"]}
    modules = {name: name.partition(".experts.")[0] + ".experts" * (".experts." in name) for name in asked["modules"]}
    return {name: 16 if config.is_layer_excluded(module) else 4 for name, module in modules.items()}


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # libraries print
    asked = json.load(sys.stdin)
    if "--rules" in sys.argv:
        found = {name: rules(given) for name, given in asked.items()}
    else:
        replace_kernels()
        found = {name: count(files) for name, files in asked.items()}
    json.dump(found, out, indent=1)


if __name__ == "__main__":
    main()
