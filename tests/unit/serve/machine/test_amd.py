"""AMD's GPUs: the texts of its tools, recorded or changed by hand."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from longctx.serve.machine import amd, gpus, host
from longctx.serve.machine.gpu import Gpu

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
AMD_LIST = '[{"gpu": 0, "power": {"socket_power": {"value": 140, "unit": "W"}, "gfx_voltage": "N/A"}},' + (
    ' {"gpu": 1, "power": {"socket_power": {"value": 1000.5, "unit": "W"}}}]'
)
AMD_DICT = 'WARNING: user is not in the render group\n{"gpu_data": [{"gpu": 3, "power": {"socket_power": "N/A"}}]}'
AMD_OLD = '[{"gpu": 0, "power": {"current_socket_power": {"value": 90, "unit": "W"}}}]'
ROCM_POWER = (
    '{"card0": {"Average Graphics Package Power (W)": "35.0"}, "card1": {"Current Socket Graphics Package Power (W)":'
)
ROCM_POWER += ' "220.5", "Max Graphics Package Power (W)": "750"}, "system": {"Driver version": "6.2"}}'


MI355X = Gpu(0, "AMD Instinct MI355X", 297963520, 309220868096, "6.14.14")


def test_rocm_smi() -> None:
    first, second = amd.rocm_smi_gpus(ROCM)
    assert first == MI355X
    assert (second.index, second.used_bytes) == (1, 297959424)
    assert amd.rocm_smi_gpus("no json") == []


def test_amd_smi() -> None:
    (card,) = amd.amd_smi_gpus(json.dumps(AMD))
    assert card == Gpu(0, MI355X.name, 284 << 20, 294896 << 20, MI355X.driver)
    assert amd.amd_smi_gpus("") == []
    static, metric = [dict(AMD[0], mem_usage="N/A")], [{"gpu": 0, "mem_usage": AMD[0]["mem_usage"]}]
    wrapped = "[WARN] low power\n" + json.dumps({"gpu_data": static}) + "\n[WARN] again\n"
    assert amd.amd_smi_gpus(wrapped, json.dumps(metric)) == [card], "newer ones wrap the list, and warn around it"


@pytest.mark.parametrize("read", [amd.amd_smi_gpus, amd.rocm_smi_gpus])
@pytest.mark.parametrize(
    "text",
    [
        "null",
        '{"gpu_data": null}',
        "[1]",
        '[{"gpu": "N/A"}]',
        '{"gpu_data": "N/A"}',
        '{"card0": "N/A", "cardX": {}}',
        '[{"gpu": 0',
        "a, b",
    ],
)
def test_a_tool_that_knows_nothing_shows_no_gpu(read: Any, text: str) -> None:
    assert read(text) == []


def test_parts_that_a_tool_does_not_know_are_none() -> None:
    unknown = Gpu(3, None, None, None, None)
    assert amd.amd_smi_gpus('[{"gpu": 3, "asic": "N/A", "driver": "N/A"}]') == [unknown]
    assert amd.rocm_smi_gpus('{"card3": {"VRAM Total Memory (B)": "N/A"}}') == [unknown]


def test_a_tool_without_gpus_leaves_the_question_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML may be missing or have no driver where only AMD's GPUs are, and amd-smi may not look at them."""
    (tmp_path / "rocm.json").write_text(ROCM)
    for name, does in {"amd-smi": "echo 'no permission'", "rocm-smi": "cat rocm.json"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [gpu.index for gpu in gpus.gpus()] == [0, 1]
    monkeypatch.setattr(host, "ROCM_VERSION", tmp_path / "version")
    (tmp_path / "version").write_text("7.0.2\n")
    assert host.host_facts()["cuda_or_rocm"] == "ROCm 7.0.2"


def test_what_one_tool_does_not_say_of_a_gpu_comes_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rocm.json").write_text(ROCM)
    (tmp_path / "amd.json").write_text('[{"gpu": 0, "asic": {"market_name": "AMD Instinct MI355X VF"}}, {"gpu": 1}]')
    for name, does in {"amd-smi": "cat amd.json", "rocm-smi": "cat rocm.json"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    first, second = gpus.gpus()
    assert first == Gpu(0, "AMD Instinct MI355X VF", 297963520, 309220868096, "6.14.14")
    assert second == Gpu(1, "AMD Instinct MI355X", 297959424, 309220868096, "6.14.14")


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        (AMD_LIST, {0: 140.0, 1: 1000.5}),
        (AMD_DICT, {3: None}),
        (AMD_OLD, {0: 90.0}),
        ("", {}),
        ("not json", {}),
        ('[{"gpu": 0}]', {0: None}),
        ("[1, 2]", {}),
    ],
)
def test_power_of_amd_smi(text: str, watts: dict[int, float | None]) -> None:
    assert amd.amd_smi_power(text) == watts


def test_power_of_rocm_smi() -> None:
    assert amd.rocm_smi_power(ROCM_POWER) == {0: 35.0, 1: 220.5}
    assert amd.rocm_smi_power("[]") == {}
