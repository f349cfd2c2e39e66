"""The plan's capacity equals vLLM's own arithmetic to the token, for every kind of cache that vLLM pages."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from longctx.model.reader import build_geometry
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.system import Settings, System
from longctx.resources import MODELS_DIR

TESTS = Path(__file__).parents[2]
PYTHON = TESTS.parent / ".venv-vllm" / "bin" / "python"
GIB = 2**30
REAL = json.loads((TESTS / "data" / "real_configs.json").read_text())
# Model, splits (TP, PP): its kind of cache. Released files, or resources/models, or tests/data/real_configs.json.
MODELS: dict[str, tuple[tuple[int, int], ...]] = {
    "Llama-3.1-405B-FP8": ((8, 1), (4, 2), (1, 4)),  # full
    "Mistral-7B-v0.1": ((1, 1), (2, 2)),  # windows only
    "Phi-3-mini": ((1, 1), (4, 1), (1, 2)),  # windows only
    "gemma-3-27b": ((1, 1), (2, 1), (1, 2), (4, 4)),  # windows and full, 5:1
    "OLMo-3-7B": ((1, 1), (1, 4)),  # windows and full, 3:1
    "openai--gpt-oss-20b": ((1, 1), (2, 3)),  # windows and full, 1:1
    "XiaomiMiMo--MiMo-V2-Flash": ((1, 1), (4, 1), (2, 4)),  # windows with more KV heads
    "google--gemma-4-26B-A4B": ((1, 1), (2, 1), (2, 2)),  # full layers with wider heads
    "llama-4-scout": ((1, 1), (8, 2)),  # chunks beside full
    "deepseek-v3": ((8, 1), (1, 8)),  # MLA
    "kimi-linear-48b-a3b": ((1, 1), (2, 1), (1, 2), (1, 4), (2, 2), (2, 4), (1, 8)),  # MLA and KDA
    "qwen3-next-80b-a3b": ((1, 1), (2, 1), (2, 4)),  # GQA and GDN, states in the model's dtype
    "Qwen--Qwen3.5-35B-A3B": ((1, 1), (1, 5)),  # GQA and GDN, states in FP32
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ((1, 1), (2, 2)),  # GQA and Mamba 2
    "deepseek-ai--DeepSeek-V3.2": ((1, 1), (8, 1), (1, 4)),  # MLA with an indexer
    "zai-org--GLM-5": ((8, 1),),  # MLA with an indexer
    "zai-org--GLM-5.2-FP8": ((8, 1), (1, 4)),  # MLA, of which some layers have an indexer
    "MiniMaxAI--MiniMax-M3": ((1, 1), (8, 1), (2, 4)),  # GQA, of which most layers have index keys
    "moonshotai--Kimi-K3": ((8, 1), (8, 2)),  # MLA and KDA
    "deepseek-ai--DeepSeek-V4-Flash": ((1, 1), (8, 1), (1, 2), (1, 4)),  # compressed by 4 and 128, windows
    "sgl-project--DeepSeek-V4-Pro-FP8": ((8, 1), (8, 2)),  # the same, other counts of layers
}
CHUNKS, SIZES_GIB = (2048, 16384), (0.3, 2, 17.3, 90.7)


def released(name: str) -> dict[str, Any]:
    if name in REAL:
        return dict(REAL[name]["config"])
    for path in (TESTS / "data" / "released" / name / "config.json", MODELS_DIR / f"{name}.json"):
        if path.exists():
            return dict(json.loads(path.read_text()))
    raise AssertionError(name)


def cases() -> list[dict[str, Any]]:
    """Return each model and split with every chunk and memory, FP8 on GPUs; then what only some of them have."""
    known = {"decode_context": 1, "kv_dtype": "fp8", "gpu": True, "prefix_caching": False}
    found = [
        known | {"name": name, "tensor": tensor, "pipeline": pipeline, "chunk": chunk, "kv_bytes": int(gib * GIB)}
        for name, splits in MODELS.items()
        for tensor, pipeline in splits
        for chunk in CHUNKS
        for gib in SIZES_GIB
    ]
    for name in ("kimi-linear-48b-a3b", "gemma-3-27b", "qwen3-next-80b-a3b"):
        one = known | {"name": name, "tensor": 1, "pipeline": 1, "chunk": 2048, "kv_bytes": 9 * GIB}
        found += [one | {"kv_dtype": "auto"}, one | {"prefix_caching": True}]
    found.append(found[0] | {"name": "deepseek-v3", "decode_context": 8})
    for name in ("Phi-3-mini", "gemma-3-27b", "Mistral-7B-v0.1"):
        one = known | {"name": name, "gpu": False, "kv_dtype": "auto", "chunk": 2048, "kv_bytes": 2 * GIB}
        found += [one | {"tensor": 1, "pipeline": pipeline} for pipeline in (1, 2)]
    return found


def planned_tokens(case: Mapping[str, Any]) -> int | None:
    split = Parallelism(case["tensor"], case["pipeline"], case["decode_context"])
    settings = Settings(case["kv_dtype"], batched_tokens=case["chunk"], prefix_caching=case["prefix_caching"])
    node = load_hardware("H200", split.gpus) if case["gpu"] else None
    geometry = build_geometry(released(case["name"]), case["name"])
    return System(geometry, node, split, settings).capacity_tokens(case["kv_bytes"])


@pytest.mark.process
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")
def test_the_capacity_is_vllms_to_the_token() -> None:
    known = cases()
    text = json.dumps([case | {"config": released(case["name"])} for case in known])
    run = subprocess.run([PYTHON, TESTS / "vllmcapacity.py"], input=text, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    differ = [
        f"{ {key: value for key, value in case.items() if key != 'config'} }: plan {planned}, vLLM {actual}"
        for case, actual in zip(known, json.loads(run.stdout.splitlines()[-1]), strict=True)
        if (planned := planned_tokens(case)) != actual
    ]
    assert not differ, "\n".join([f"{len(differ)} of {len(known)} differ:", *differ])
