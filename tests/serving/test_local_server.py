"""Launcher `local` with real vLLM on the CPU: facts, contract, and nothing left behind, whoever dies."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.processes import process_identity
from longctx.prompts import synthetic_model
from longctx.serve.lifecycle import serve

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
pytestmark = [pytest.mark.serving, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")]
OWNER = """
import pickle, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from longctx.serve.lifecycle import serve
recipe, launcher, folder = pickle.loads(bytes.fromhex(sys.argv[2]))
with serve(recipe, launcher, run_dir=folder / "run", log_path=folder / "log", campaign="c", start_timeout_s=600):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("model")
    synthetic_model.make_model(folder, {"vocab_size": 2048, "max_position_embeddings": 16384}, training_chars=200_000)
    return Recipe(
        model=str(folder),
        served_name="synthetic",
        max_model_len=4096,
        load_format="dummy",
        enforce_eager=True,
        kv_cache_dtype="fp8_e4m3",
        versions={"vllm": "0.32.0", "torch": ">=2.13"},
        extra_args=("--distributed-executor-backend", "uni"),
        env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"},
    )


LAUNCHER = ServeConfig(python=str(PYTHON))


def options(folder: Path) -> dict[str, object]:
    return {"run_dir": folder / "run", "log_path": folder / "log", "campaign": "c", "start_timeout_s": 600}


def owner_id(folder: Path) -> str:
    (record,) = (folder / "run").glob("server-*.json")
    return str(json.loads(record.read_text())["id"])


def gone_within(owner: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process_identity.marked(owner) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not process_identity.marked(owner)


def test_a_real_server_keeps_its_contract_and_its_death_is_known(tmp_path: Path, recipe: Recipe) -> None:
    with serve(recipe, LAUNCHER, **options(tmp_path)) as server:
        assert {entry["setting"]: entry for entry in server.contract if entry["ok"] is not True} == {}
        assert server.facts["attention_backend"] == "CPU_ATTN"
        assert server.facts["torch_version"].startswith("2.")
        assert server.facts["max_num_batched_tokens"] > 0
        assert server.facts["cudagraph_mode"] == "NONE"
        assert server.facts["prefix_caching"] is False
        assert server.capacity_tokens() == (1 << 30) // (2 * 2 * 64)  # keys and values, 2 layers, 1 head of 64, 1 byte
        # vLLM 0.32 dies by SIGILL on CPUs with AMX if the very first prompt is under a dozen tokens: a longer one first
        for count in (64, 3):
            body = {"model": server.model, "prompt": [9] * count, "max_tokens": 2, "ignore_eos": True}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300, trust_env=False).json()
            assert answer.get("usage", {}).get("prompt_tokens") == count, answer
        mark = owner_id(tmp_path)
        assert server.process
        os.kill(server.process.pid, signal.SIGKILL)  # vLLM's API server; its engine is another process
        assert gone_within(mark, 120)
        assert not server.alive()
        assert "killed by SIGKILL" in server.death_reason()


def test_sigkill_of_the_owner_leaves_nothing(tmp_path: Path, recipe: Recipe) -> None:
    arguments = pickle.dumps((recipe, LAUNCHER, tmp_path)).hex()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(ROOT / "scripts"), arguments], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        mark = owner_id(tmp_path)
        assert len(process_identity.marked(mark)) >= 3
        owner.kill()
        assert gone_within(mark, 120)
    assert not list((tmp_path / "run").iterdir())


def test_a_kv_cache_that_is_too_small_says_what_it_holds(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(ServerError, match=r"holds 4\d{6} tokens at most") as error:
        serve(replace(recipe, max_model_len=8 << 20), LAUNCHER, **options(tmp_path)).__enter__()
    assert error.value.reason == "kv_too_small"
    assert error.value.kv_tokens is not None
    assert 4_000_000 < error.value.kv_tokens <= (1 << 30) // 256
