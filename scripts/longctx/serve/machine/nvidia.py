"""NVIDIA GPUs, read through NVML, or by nvidia-smi where NVML's library is not found or counts no energy."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

from longctx.serve.machine.gpu import Gpu
from longctx.serve.machine.vendor_tools import Tool

THROTTLE_REASONS = {
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sw_thermal_slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal_slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake_slowdown": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
MIB = 1 << 20


def smi_gpus(text: str) -> list[Gpu]:
    """Read nvidia-smi's lines of index, name, MiB used, MiB in all, driver."""
    rows = (row for row in _csv_rows(text) if len(row) == 5 and row[0].isdecimal())
    return [
        Gpu(int(index), _text(name), _bytes(used), _bytes(total), _text(driver))
        for index, name, used, total, driver in rows
    ]


def smi_power(text: str) -> dict[int, float | None]:
    """Read nvidia-smi's lines of index and power in W, such as `0, 71.25`."""
    rows = (row for row in _csv_rows(text) if len(row) == 2 and row[0].isdecimal())
    return {int(index): float(w) if re.fullmatch(r"\d+(\.\d+)?", w) else None for index, w in rows}


_CSV = "--format=csv,noheader,nounits"
NVIDIA_SMI = Tool(
    "nvidia-smi",
    (f"--query-gpu=index,name,memory.used,memory.total,driver_version {_CSV}",),
    smi_gpus,
    f"--query-gpu=index,power.draw {_CSV}",
    smi_power,
)


def _csv_rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def _text(cell: str) -> str | None:
    return None if cell.startswith("[") or not cell else cell


def _bytes(mib: str) -> int | None:
    return int(mib) * MIB if mib.isdecimal() else None


@contextlib.contextmanager
def nvml() -> Iterator[bool]:
    """Keep NVML open for the block (blocks may be nested); yield whether this machine has it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        _value(pynvml.nvmlShutdown)


def gpus() -> list[Gpu]:
    """Return this host's NVIDIA GPUs, by index; [] where there are none."""
    with nvml():
        return [_gpu(index) for index in range(_value(pynvml.nvmlDeviceGetCount) or 0)]


def cuda_version() -> str | None:
    """Return the newest CUDA that the driver supports, such as 'CUDA 13.0'."""
    with nvml():
        number = _value(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return f"CUDA {number // 1000}.{number % 1000 // 10}" if number else None


def energy_j(indices: Sequence[int]) -> list[float] | None:
    """Return what each GPU has used since its driver was loaded, in J; None where one of them has no such counter.

    To be called with `nvml()` open. An H200 counts in steps of 0.1 s, and answers within 5 ms, seldom within 30.
    """
    counters = [_of_gpu(index, pynvml.nvmlDeviceGetTotalEnergyConsumption) for index in indices]
    return None if None in counters else [millijoules / 1000 for millijoules in counters]


def clock_state(index: int) -> dict[str, Any]:
    """Return a GPU's sm_mhz, memory_mhz and throttle_reasons (of THROTTLE_REASONS) now; None where it doesn't say."""
    with nvml():
        reasons = _of_gpu(index, pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        return {
            "sm_mhz": _of_gpu(index, pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            "memory_mhz": _of_gpu(index, pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            "throttle_reasons": None
            if reasons is None
            else [n for n, bit in THROTTLE_REASONS.items() if reasons & bit],
        }


def _gpu(index: int) -> Gpu:
    # Version 2 leaves out what the driver reserves for itself, as nvidia-smi does.
    memory = _of_gpu(index, pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
    name, driver = _of_gpu(index, pynvml.nvmlDeviceGetName), _value(pynvml.nvmlSystemGetDriverVersion)
    return Gpu(index, name, memory and memory.used, memory and memory.total, driver)


def _of_gpu(index: int, read: Callable[..., Any], *arguments: Any) -> Any:
    handle = _value(pynvml.nvmlDeviceGetHandleByIndex, index)
    return None if handle is None else _value(read, handle, *arguments)


def _value(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NVML says, or None where this GPU, driver or machine does not say it."""
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None
