"""A model whose layers all have windows: the plan says that it fits, and a real vLLM on the CPU serves it."""

from pathlib import Path

import httpx
import pytest
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.model.reader import read_geometry
from longctx.plan.hardware import Parallelism
from longctx.plan.system import Settings, System
from longctx.prompts import synthetic_model
from longctx.serve.lifecycle import serve

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
pytestmark = [pytest.mark.serving, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")]
WINDOWS = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 2047}
LONGEST = 2048


def test_a_model_of_windows_is_planned_and_served(tmp_path: Path) -> None:
    sizes = {"vocab_size": 2048, "max_position_embeddings": 16384}
    synthetic_model.make_model(tmp_path / "model", sizes | WINDOWS, training_chars=200_000)
    settings = Settings("auto", cpu_kv_gib=2, headroom_tokens=LONGEST - 1024)
    planned = System(read_geometry(str(tmp_path / "model")), None, Parallelism(), settings)
    assert planned.holds(1024)

    recipe = Recipe(
        model=str(tmp_path / "model"), served_name="windows", max_model_len=LONGEST, load_format="dummy",
        enforce_eager=True, extra_args=("--distributed-executor-backend", "uni"),
        env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"},
    )  # fmt: skip
    launcher, run = ServeConfig(python=str(PYTHON)), tmp_path / "run"
    with serve(recipe, launcher, run_dir=run, log_path=tmp_path / "log", campaign="c", start_timeout_s=600) as server:
        # vLLM reports the requests of the longest length that its blocks hold, in tokens.
        pool = planned.cache_pool
        requests = (pool.usable_blocks([2 << 30]) + 1) / pool.blocks(LONGEST)
        assert server.capacity_tokens() == int(requests * LONGEST)
        body = {"model": server.model, "prompt": [9] * 1024, "max_tokens": 2, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300, trust_env=False).json()
        assert answer.get("usage", {}).get("prompt_tokens") == 1024, answer
