"""Hosts, GPUs and their memory, environments without secrets; vendors' tools stand in as recorded texts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from longctx.errors import ServerError
from longctx.serve.machine import gpu_memory, gpus, host
from longctx.storage.schemas import HOST_FACTS

NVIDIA = "0, NVIDIA H200, 1024, 143771, 580.95.05\n1, NVIDIA H200, 4, 143771, 580.95.05\n"
NVIDIA_HEAD = "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0     |\n"
ROCM = """WARNING: AMD GPU device(s) is/are in a low-power state.
{"card1": {"Card Series": "AMD Instinct MI355X", "VRAM Total Memory (B)": "309220868096",
           "VRAM Total Used Memory (B)": "297959424"},
 "card0": {"Card Series": "AMD Instinct MI355X", "VRAM Total Memory (B)": "309220868096",
           "VRAM Total Used Memory (B)": "297963520"},
 "system": {"Driver version": "6.14.14"}}
"""
AMD = [
    {
        "gpu": 0,
        "asic": {"market_name": "AMD Instinct MI355X"},
        "driver": {"name": "amdgpu", "version": "6.14.14"},
        "mem_usage": {"total_vram": {"value": 294896, "unit": "MB"}, "used_vram": {"value": 284, "unit": "MB"}},
    }
]
FAKE_SMI = """#!/bin/sh
case "$*" in
  *--query-gpu*) cat "$FAKE_SMI_TEXT" ;;
  *) echo '| CUDA Version: 13.0 |' ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi on PATH; what it prints is in the returned file."""
    tool, text = tmp_path / "bin" / "nvidia-smi", tmp_path / "smi.txt"
    tool.parent.mkdir()
    tool.write_text(FAKE_SMI)
    tool.chmod(0o755)
    text.write_text(NVIDIA)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SMI_TEXT", str(text))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return text


def test_nvidia_smi() -> None:
    first, second = gpus.nvidia(NVIDIA)
    assert first == {
        "index": 0,
        "name": "NVIDIA H200",
        "used": 1 << 30,
        "total": 143771 << 20,
        "driver": "580.95.05",
    }
    assert second["used"] == 4 << 20
    assert gpus.nvidia("0, NVIDIA GB10, [N/A], [N/A], 580.1\n")[0]["used"] is None
    assert gpus.nvidia("No devices were found\n") == []


def test_rocm_smi() -> None:
    first, second = gpus.rocm(ROCM)
    assert (first["index"], first["used"], second["used"]) == (0, 297963520, 297959424)
    assert (first["name"], first["driver"], first["total"]) == ("AMD Instinct MI355X", "6.14.14", 309220868096)
    assert gpus.rocm("no json") == []


def test_amd_smi() -> None:
    (card,) = gpus.amd(json.dumps(AMD))
    assert (card["name"], card["driver"]) == ("AMD Instinct MI355X", "6.14.14")
    assert (card["used"], card["total"]) == (284 << 20, 294896 << 20)
    assert gpus.amd("") == []
    static, metric = [dict(AMD[0], mem_usage="N/A")], [{"gpu": 0, "mem_usage": AMD[0]["mem_usage"]}]
    wrapped = "[WARN] low power\n" + json.dumps({"gpu_data": static}) + "\n[WARN] again\n"
    assert gpus.amd(wrapped, json.dumps(metric)) == [card], "newer ones wrap the list, and warn around it"


@pytest.mark.parametrize("read", [gpus.amd, gpus.rocm, gpus.nvidia])
@pytest.mark.parametrize(
    "text",
    ["null", "[1]", '[{"gpu": "N/A"}]', '{"gpu_data": "N/A"}', '{"card0": "N/A", "cardX": {}}', '[{"gpu": 0', "a, b"],
)
def test_a_tool_that_knows_nothing_shows_no_gpu(read: Any, text: str) -> None:
    assert read(text) == []


def test_parts_that_a_tool_does_not_know_are_none() -> None:
    (card,) = gpus.amd('[{"gpu": 3, "asic": "N/A", "driver": "N/A"}]')
    assert card == {"index": 3, "name": None, "used": None, "total": None, "driver": None}
    assert gpus.rocm('{"card3": {"VRAM Total Memory (B)": "N/A"}}') == [card]


def test_a_tool_without_gpus_leaves_the_question_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi may be installed where only AMD's GPUs are, and amd-smi where it may not look at them."""
    (tmp_path / "rocm.json").write_text(ROCM)
    for name, does in {"nvidia-smi": "exit 9", "amd-smi": "echo 'no permission'", "rocm-smi": "cat rocm.json"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [card["index"] for card in gpus.gpus()] == [0, 1]
    monkeypatch.setattr(host, "ROCM_VERSION", tmp_path / "version")
    (tmp_path / "version").write_text("7.0.2\n")
    assert host.host_facts()["cuda_or_rocm"] == "ROCm 7.0.2"


def test_host_facts_of_a_gpu_host(smi: Path) -> None:
    facts = host.host_facts()
    assert set(facts) == set(HOST_FACTS)
    assert (facts["gpu"], facts["gpu_count"], facts["gpu_driver"]) == ("NVIDIA H200", 2, "580.95.05")
    assert facts["cuda_or_rocm"] == "CUDA 13.0"
    assert facts["cpu_count"] == os.cpu_count()


def test_a_server_counts_the_gpus_that_it_computes_on(smi: Path) -> None:
    assert host.host_facts({}, ranks=1)["gpu_count"] == 1
    assert host.host_facts({}, ranks=2)["gpu_count"] == 2
    assert host.host_facts({}, ranks=16)["gpu_count"] == 16, "over several nodes"
    assert host.host_facts({"CUDA_VISIBLE_DEVICES": "GPU-8a1f"}, ranks=1)["gpu_count"] == 1


@pytest.mark.parametrize(
    ("visible", "ranks", "numbers"),
    [("", 1, (0,)), ("", 2, (0, 1)), ("1", 1, (1,)), ("1,0", 1, (1,)), ("1,0", 2, (1, 0)), ("", 3, ()),
     ("GPU-8a1f", 1, ()), ("GPU-8a1f,GPU-77b0", 2, (0, 1))],
)  # fmt: skip
def test_which_gpus_a_server_computes_on(smi: Path, visible: str, ranks: int, numbers: tuple[int, ...]) -> None:
    assert gpus.gpu_numbers({"CUDA_VISIBLE_DEVICES": visible}, ranks) == numbers


def test_host_facts_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    facts = host.host_facts()
    assert (facts["gpu"], facts["gpu_count"], facts["gpu_driver"], facts["cuda_or_rocm"]) == (None, 0, None, None)


def test_texts_of_the_system() -> None:
    assert host.cpu_name("processor\t: 0\nmodel name\t: AMD EPYC 9575F 64-Core\n") == "AMD EPYC 9575F 64-Core"
    assert host.os_name('ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n') == (
        "Debian GNU/Linux 12 (bookworm)"
    )
    assert host.cuda_version(NVIDIA_HEAD) == "CUDA 13.0"
    assert host.cuda_version("") is None


def test_the_environment_record_has_no_secret() -> None:
    env = {
        "VLLM_USE_X": "1",
        "HF_TOKEN": "hf_abcdefgh",
        "VLLM_API_KEY": "sk-12345678",
        "HF_HOME": "/cache",
        "EDITOR": "vi",
        "CUDA_EXTRA": "token=hf_abcdefgh",
        "OMP_NUM_THREADS": "2",
        "HF_SHORT_TOKEN": "abc",
    }
    assert json.loads(host.environment_json(env)) == {
        "CUDA_EXTRA": "token=[secret]",
        "HF_HOME": "/cache",
        "HF_SHORT_TOKEN": "[secret]",
        "HF_TOKEN": "[secret]",
        "OMP_NUM_THREADS": "2",
        "VLLM_API_KEY": "[secret]",
        "VLLM_USE_X": "1",
    }


def test_memory_that_comes_back_is_waited_for(smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        if seconds == gpu_memory.POLL_S:  # subprocess sleeps, too
            naps.append(seconds)
        if len(naps) == 3:
            smi.write_text(NVIDIA)

    monkeypatch.setattr(gpu_memory.time, "sleep", nap)
    with gpu_memory.resting_level(tmp_path / "run", {}):
        smi.write_text(NVIDIA.replace(" 1024,", " 90000,"))
    assert len(naps) == 3
    gpu_memory.wait_until_free(tmp_path / "run", limit_s=0)
    assert list((tmp_path / "run").iterdir()) == []


def test_memory_that_stays_away_refuses_the_next_start(smi: Path, tmp_path: Path) -> None:
    with gpu_memory.resting_level(tmp_path / "run", {}, limit_s=0):
        smi.write_text(NVIDIA.replace(" 4,", " 90000,"))
    with pytest.raises(ServerError, match=r"GPU 1 holds 87.9 GiB, 0.0 before") as error:
        gpu_memory.wait_until_free(tmp_path / "run", limit_s=0)
    assert error.value.reason == "server_start"
    smi.write_text(NVIDIA)
    gpu_memory.wait_until_free(tmp_path / "run", limit_s=0)
    gpu_memory.wait_until_free(tmp_path / "run", limit_s=0)


@pytest.mark.parametrize(
    ("env", "indices"),
    [
        ({}, {"0", "1"}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"1"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-ab"}, {"0", "1"}),
        ({"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, {"0"}),
    ],
)
def test_only_the_gpus_in_use_are_watched(smi: Path, env: dict[str, Any], indices: set[str]) -> None:
    assert set(gpu_memory.used_bytes(env)) == indices
