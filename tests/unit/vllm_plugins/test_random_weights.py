"""Random weights: their spread, their independence of the split, their gates and their quantized forms."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from longctx import resources

PYTHON = resources.ROOT / ".venv-vllm" / "bin" / "python"
PLUGINS = resources.ROOT / "scripts" / "vllm_plugins"
pytestmark = [pytest.mark.process, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm, so no torch")]


@pytest.fixture(scope="module")
def values() -> Any:
    """What drawn_weights.py tells of the weights that it drew."""
    command = [PYTHON, Path(__file__).with_name("drawn_weights.py"), PLUGINS]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_matrices_have_the_deviation_of_their_fan_in(values: Any) -> None:
    spread = {name: pair for name, pair in values["spread"].items() if "recurrent" not in name}
    assert len(spread) == 8
    # One row is looked up, so an embedding's fan-in is 1.
    assert spread.pop("embed.weight")[0] == pytest.approx(1, rel=0.05)
    for name, (deviation, expected) in spread.items():
        assert deviation == pytest.approx(expected, rel=0.15), name


def test_the_ranks_of_every_split_hold_one_model(values: Any) -> None:
    assert values["splits"] == {"2": [], "4": []}


def test_the_same_names_give_the_same_values_and_others_give_others(values: Any) -> None:
    assert values["again"]
    assert abs(values["correlation"]) < 0.05


def test_norms_are_one_biases_zero_and_kv_scales_are_left_alone(values: Any) -> None:
    assert values["norm"] == [1.0]
    assert set(values["biases"]) == {0.0}
    assert values["k_scale"] == 9.0


def test_gates_lie_in_the_range_of_their_papers(values: Any) -> None:
    gates = values["gates"]
    assert all(0 < value < math.log(16) for value in gates["A_log"])
    assert all(-16 < value < -1 for value in gates["A"])
    steps = [math.log1p(math.exp(value)) for value in gates["dt_bias"]]  # softplus
    assert all(0.00099 < step < 0.101 for step in steps)
    assert set(gates["D"]) == {1.0}
    assert len(set(gates["A_log"])) == len(gates["A_log"])


@pytest.mark.parametrize("kind", ["fp8 blocks", "int8 channels", "nvfp4", "nvfp4 of compressed-tensors", "mxfp4"])
def test_quantized_weights_have_the_deviation_of_their_fan_in(values: Any, kind: str) -> None:
    deviation, expected = values["quantized"][kind]
    # A power of two, E8M0's only scale, is up to a factor of sqrt(2) away.
    assert deviation == pytest.approx(expected, rel=0.42 if kind == "mxfp4" else 0.05)


def test_weights_in_groups_of_four_bits_have_it_too(values: Any) -> None:
    deviation, expected = values["quantized"]["int4 groups"]
    assert deviation == pytest.approx(expected, rel=0.05)
