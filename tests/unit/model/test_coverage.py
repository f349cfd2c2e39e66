"""How many of today's models the planner reads, each with exactly the parameters of the model that transformers builds.

`tests/countparameters.py` counts in the vLLM environment. Its counts of the released files are kept beside them, so
that the quick tests need no torch; a slow test counts again.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from longctx.errors import GeometryError
from longctx.model.families.registry import FAMILIES
from longctx.model.reader import build_geometry

TESTS = Path(__file__).parents[2]
RELEASED = TESTS / "data" / "released"
PYTHON = TESTS.parent / ".venv-vllm" / "bin" / "python"
CONFIGS: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted(RELEASED.glob("*/config.json"))
}
COUNTED: dict[str, dict[str, Any]] = json.loads((RELEASED / "parameters.json").read_text())
# What must be known; raise these where a family is added.
KNOWN_RELEASED, KNOWN_CLASSES = 73, 32
needs_vllm = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")


def known(configs: dict[str, dict[str, Any]], counted: dict[str, dict[str, Any]], of_what: str) -> int:
    """Print and return how many configurations are read; fail where one has other parameters than transformers."""
    read, refused, wrong = 0, [], []
    for name, config in configs.items():
        try:
            parameters = build_geometry(config, name).parameters_total
        except GeometryError as error:
            refused.append(str(error))
            continue
        read += 1
        expected = counted[name].get("parameters", parameters)
        if parameters != expected:
            wrong.append(f"{name}: {parameters} parameters, transformers has {expected}")
    print(f"known: {read} of {len(configs)} {of_what}", *refused, sep="\n  ")
    assert not wrong, "\n".join(wrong)
    return read


def count(*options: str, given: str | None = None) -> dict[str, dict[str, Any]]:
    command = [str(PYTHON), str(TESTS / "countparameters.py"), *options]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=600, check=True)
    counted: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return counted


def test_released_configurations_are_known_with_the_parameters_of_transformers() -> None:
    assert known(CONFIGS, COUNTED, "released configurations") >= KNOWN_RELEASED


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_what_is_not_known_is_refused_in_one_short_sentence(name: str) -> None:
    try:
        build_geometry(CONFIGS[name], name)
    except GeometryError as error:
        said = str(error).removeprefix(f"{name}: ")
        assert "\n" not in said
        assert len(said) < 200


@pytest.mark.slow
@pytest.mark.process
@needs_vllm
def test_the_stored_counts_are_those_of_the_installed_transformers() -> None:
    assert count(given=json.dumps(CONFIGS)) == COUNTED


@pytest.mark.slow
@pytest.mark.process
@needs_vllm
def test_text_models_of_transformers_with_a_long_context() -> None:
    counted = count("--classes")
    configs = {name: entry["config"] for name, entry in counted.items()}
    assert known(configs, counted, "model types of transformers with a default context of 100,000") >= KNOWN_CLASSES


@pytest.mark.slow
@pytest.mark.process
@needs_vllm
def test_a_flag_turned_round_or_a_size_doubled_is_counted_exactly_or_refused() -> None:
    counted = count("--variants", given=json.dumps(sorted(FAMILIES)))
    configs = {name: entry["config"] for name, entry in counted.items()}
    assert known(configs, counted, "variants of transformers' default configurations") > 350
