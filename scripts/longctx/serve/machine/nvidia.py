"""NVIDIA GPUs, read through NVML. A machine without NVML's library, or without its driver, has no NVIDIA GPUs."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

from longctx.serve.machine.gpu import Gpu


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
