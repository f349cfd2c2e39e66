"""NVIDIA's GPUs through a stand-in for NVML whose truth is known, and a machine without NVML."""

from collections.abc import Callable

import fakenvml
import pytest
from longctx.serve.machine import gpus, nvidia
from longctx.serve.machine.gpu import Gpu
from patching import replace_in

Show = Callable[..., None]


def test_gpus_and_versions(two_gpus: Show) -> None:
    first, second = gpus.gpus()
    assert first == Gpu(0, "NVIDIA H200", 1 << 30, 143771 << 20, "580.95.05")
    assert (second.index, second.used_bytes) == (1, 4 << 20)
    assert nvidia.cuda_version() == "CUDA 13.0"


@pytest.mark.parametrize(("number", "version"), [(12080, "CUDA 12.8"), (11040, "CUDA 11.4"), (None, None)])
def test_cuda_version(show_gpus: Show, number: int | None, version: str | None) -> None:
    show_gpus(cuda=number)
    assert nvidia.cuda_version() == version


def test_what_a_gpu_does_not_support_is_none(show_gpus: Show) -> None:
    show_gpus(fakenvml.h200(name=None, memory=None, power_w=None, clocks=None, reasons=None), driver=None)
    assert nvidia.gpus() == [Gpu(0, None, None, None, None)]
    with nvidia.nvml():
        assert nvidia.energy_j([0]) is None
    assert set(nvidia.clock_state(0).values()) == {None}


def test_a_machine_without_nvml_has_no_nvidia_gpu(show_gpus: Show) -> None:
    assert (nvidia.gpus(), nvidia.cuda_version()) == ([], None)
    with nvidia.nvml() as present:
        assert not present
    assert set(nvidia.clock_state(0).values()) == {None}


def test_a_driver_that_shows_no_gpu(show_gpus: Show) -> None:
    show_gpus()
    assert nvidia.gpus() == []


def test_energy_counters(show_gpus: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(fakenvml.h200(power_w=300.0), fakenvml.h200(power_w=500.0))
    replace_in(monkeypatch, fakenvml, "time", monotonic=lambda: 10.0)
    with nvidia.nvml():
        assert nvidia.energy_j([0, 1]) == [3000.0, 5000.0]
        assert nvidia.energy_j([1]) == [5000.0]
        assert nvidia.energy_j([0, 2]) is None, "there is no GPU 2"


def test_clocks_and_what_holds_them_down(show_gpus: Show) -> None:
    show_gpus(fakenvml.h200(reasons=0x04 | 0x40 | 0x01), fakenvml.h200(reasons=0))
    assert nvidia.clock_state(0) == {
        "sm_mhz": 1980,
        "memory_mhz": 3201,
        "throttle_reasons": ["sw_power_cap", "hw_thermal_slowdown"],
    }
    assert nvidia.clock_state(1)["throttle_reasons"] == []
