"""Random weights in a real vLLM: outputs differ, routers use all experts, KV precision and TP change little."""

import json
import math
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from longctx import resources

PYTHON = resources.ROOT / ".venv-vllm" / "bin" / "python"
HERE = Path(__file__).parent
# A mixture of experts whose router adds a bias to each expert, as those of DeepSeek and Kimi do.
MODEL = {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "dtype": "bfloat16", "hidden_size": 256,
    "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "partial_rotary_factor": 0.5, "vocab_size": 4096,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "hidden_act": "silu",
    "attention_bias": False, "use_qk_norm": True, "tie_word_embeddings": False, "n_routed_experts": 32,
    "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
    "norm_topk_prob": True, "first_k_dense_replace": 1,
}  # fmt: skip
TOKENS, CHOSEN = 512, 4
UNIFORM = -math.log(MODEL["vocab_size"])
pytestmark = [
    pytest.mark.serving,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm"),
]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that serves MODEL with arguments of vLLM and returns what weights_probe.py tells; each set once."""
    folder = tmp_path_factory.mktemp("moe")
    (folder / "config.json").write_text(json.dumps(MODEL))
    plugins = resources.ROOT / "scripts" / "vllm_plugins"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (plugins, HERE)))}
    # Two ranks on one NUMA node: without this vLLM refuses to bind their threads.
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}

    @cache
    def run(load_format: str, **arguments: Any) -> dict[str, Any]:
        text = json.dumps({"load_format": load_format, **arguments})
        one_rank = arguments.get("tensor_parallel_size", 1) == 1
        kept = {name: value for name, value in env.items() if not (one_rank and name == "VLLM_CPU_OMP_THREADS_BIND")}
        command = [PYTHON, HERE / "weights_probe.py", folder, text]
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=900)
        told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert told, done.stdout[-2000:] + done.stderr[-4000:]
        result: dict[str, Any] = json.loads(told[0].removeprefix("RESULT "))
        return result

    return run


def logprobs(result: dict[str, Any]) -> Any:
    return np.array(result["logprobs"])


def test_outputs_differ_where_those_of_dummy_weights_are_all_alike(serve: Any) -> None:
    assert np.ptp(logprobs(serve("dummy"))) < 1e-4
    assert logprobs(serve("dummy")) == pytest.approx(UNIFORM, abs=1e-3)
    # Logits of a normalised vector times N(0, 1 / fan-in) are normal with deviation 1.
    assert np.std(logprobs(serve("longctx_random"))) == pytest.approx(1, rel=0.1)


def test_routers_use_all_experts_where_those_of_dummy_weights_use_four(serve: Any) -> None:
    assert {sum(count > 0 for count in layer) for layer in serve("dummy")["experts"]} == {CHOSEN}
    for layer in serve("longctx_random")["experts"]:
        assert sum(layer) == TOKENS * CHOSEN
        assert min(layer) > 0
        assert max(layer) < 4 * np.mean(layer)


def test_tensor_parallelism_changes_outputs_by_rounding_alone(serve: Any) -> None:
    one, two = logprobs(serve("longctx_random")), logprobs(serve("longctx_random", tensor_parallel_size=2))
    assert np.std(one - two) < 0.05  # BF16 has 8 bits; other weights would differ by sqrt(2)


def test_an_fp8_kv_cache_changes_outputs_by_its_rounding(serve: Any) -> None:
    exact, rounded = logprobs(serve("longctx_random")), logprobs(serve("longctx_random", kv_cache_dtype="fp8_e4m3"))
    # E4M3 has 3 bits of fraction: a value is off by 1/32 at most.
    assert 0 < np.std(exact - rounded) < 0.5
