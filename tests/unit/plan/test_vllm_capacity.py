"""The plan's capacity equals vLLM's own arithmetic to the token, for every kind of cache that vLLM pages."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from longctx.campaign.config import KvCacheDtype
from longctx.errors import ConfigError
from longctx.model.kv_format import KV_FORMATS
from longctx.model.layers import Attention
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
    "Command-R7B": ((1, 1), (2, 1), (1, 4)),  # windows and full, 3:1, windows one token longer
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


def entries() -> list[dict[str, Any]]:
    """Return every KV cache dtype of vLLM with some sizes of heads; heads 0 is MLA."""
    gqa = [{"heads": heads, "head_size": size} for heads, size in ((8, 128), (2, 256), (1, 64), (5, 96))]
    return [
        sizes | {"kv_dtype": name}
        for name, kv in KV_FORMATS.items()
        for sizes in ([{"heads": 0, "head_size": 576}] if "mla" in kv.kinds else [])
        + (gqa if "gqa" in kv.kinds else [])
    ]


def planned_bytes(entry: Mapping[str, Any]) -> int:
    kv, heads, size = KV_FORMATS[entry["kv_dtype"]], entry["heads"], entry["head_size"]
    if not heads:
        return Attention("mla", 16, 1, 192, 128, size).entry_bytes(kv)
    return Attention("gqa", 16, heads, size, size, 2 * heads * size).entry_bytes(kv)


@pytest.fixture(scope="module")
def vllm_says() -> dict[str, list[int | None]]:
    asked = {
        "cases": [case | {"config": released(case["name"])} for case in cases()],
        "entries": entries(),
    }
    command = [PYTHON, TESTS / "vllmcapacity.py"]
    run = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(json.loads(run.stdout.splitlines()[-1]))


def differing(asked: list[dict[str, Any]], planned: Callable[[Any], int | None], actual: list[int | None]) -> str:
    pairs = [(one, planned(one), other) for one, other in zip(asked, actual, strict=True)]
    lines = [f"{one}: plan {ours}, vLLM {theirs}" for one, ours, theirs in pairs if ours != theirs]
    return "\n".join([f"{len(lines)} of {len(asked)} differ:", *lines]) if lines else ""


@pytest.mark.process
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")
def test_the_capacity_is_vllms_to_the_token(vllm_says: dict[str, list[int | None]]) -> None:
    differ = differing(cases(), planned_tokens, vllm_says["cases"])
    assert not differ, differ


@pytest.mark.process
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")
def test_every_kv_cache_dtype_has_vllms_bytes(vllm_says: dict[str, list[int | None]]) -> None:
    differ = differing(entries(), planned_bytes, vllm_says["entries"])
    assert not differ, differ


def test_every_kv_cache_dtype_of_the_configuration_is_planned() -> None:
    assert set(get_args(KvCacheDtype)) == {"auto", *KV_FORMATS} - {"half", "float32"}


def test_packed_formats_leave_the_ends_of_a_model_in_its_own_dtype() -> None:
    # 32 layers of 8 heads of 128: 28 with 134 B per head and token, and four in BF16.
    plain, kv = 8 * 256 * 2, 8 * (64 + 2 + 64 + 4)
    settings = Settings("turboquant_4bit_nc")
    llama = System(build_geometry(released("llama-3.1-8b")), load_hardware("H200"), Parallelism(), settings)
    assert llama.kv_bytes_per_rank(1) == 4 * plain + 28 * kv


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [("deepseek-v3", "nvfp4"), ("deepseek-v3", "turboquant_k8v4"), ("llama-3.1-8b", "fp8_ds_mla")]
)
def test_a_dtype_that_vllm_does_not_store_so_is_refused(name: str, kv_dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_cache_dtype: vLLM does not store .* as {kv_dtype}"):
        build_geometry(released(name)).kv_format(kv_dtype)
