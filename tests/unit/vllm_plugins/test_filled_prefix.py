"""Noise in a KV cache: in the blocks of the prompt alone, with the deviation that was asked for, each a number."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from longctx import resources

PYTHON = resources.ROOT / ".venv-vllm" / "bin" / "python"
EVEN = list(range(0, 64, 2))
pytestmark = [pytest.mark.process, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm, so no vLLM")]


@pytest.fixture(scope="module")
def filled() -> Any:
    """What filled_blocks.py tells of the caches that it filled."""
    command = [PYTHON, Path(__file__).with_name("filled_blocks.py"), resources.ROOT / "scripts" / "vllm_plugins"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_an_fp8_cache_holds_numbers_with_the_deviation_asked_for(filled: Any) -> None:
    assert filled["finite"]
    assert filled["mean"] == pytest.approx(0, abs=0.05)
    assert filled["deviation"] == pytest.approx(1, rel=0.05)


def test_states_of_recurrent_layers_leave_the_blocks_of_attention_alone(filled: Any) -> None:
    assert filled["states"] == pytest.approx(1, rel=0.3)
    assert filled["touched"] == sorted([*EVEN, 1, 3])


def test_a_cache_whose_second_dimension_counts_blocks_is_filled_by_block_too(filled: Any) -> None:
    assert filled["touched_keys"] == EVEN
    assert filled["deviation_keys"] == pytest.approx(1, rel=0.05)


def test_a_cache_with_scales_among_its_bytes_is_left_alone(filled: Any) -> None:
    assert filled["unknown"]
