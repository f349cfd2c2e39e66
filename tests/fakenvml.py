"""A stand-in for `pynvml`: the GPUs that the JSON file FAKE_NVML lists, each at a power that does not change.

Also used as a file `pynvml.py` of its own on a program's PYTHONPATH. A null in the file is what a GPU does not support.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
nvmlMemory_v2 = 0x02000028
nvmlClocksEventReasonSwPowerCap = 0x04
nvmlClocksEventReasonHwSlowdown = 0x08
nvmlClocksEventReasonSwThermalSlowdown = 0x20
nvmlClocksEventReasonHwThermalSlowdown = 0x40
nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80
opened = 0


class NVMLError(Exception):
    """As NVML's: not initialized, no such GPU, not supported."""


@dataclass
class Memory:
    used: int
    total: int


def install(folder: Path, content: dict[str, Any], setenv: Callable[[str, str], None]) -> None:
    """Let programs that are started from here import this file as pynvml and see the GPUs of `content`."""
    folder.mkdir()
    (folder / "pynvml.py").symlink_to(__file__)
    (folder / "nvml.json").write_text(json.dumps(content))
    setenv("PYTHONPATH", str(folder))
    setenv("FAKE_NVML", str(folder / "nvml.json"))


def h200(**changes: Any) -> dict[str, Any]:
    memory = [4 << 20, 143771 << 20]
    return {"name": "NVIDIA H200", "memory": memory, "power_w": 100.0, "clocks": [1980, 3201], "reasons": 4, **changes}


def nvmlInit() -> None:
    global opened
    _content()
    opened += 1


def nvmlShutdown() -> None:
    global opened
    _known(opened or None)
    opened -= 1


def nvmlDeviceGetCount() -> int:
    return len(_open()["gpus"])


def nvmlSystemGetDriverVersion() -> str:
    return str(_known(_open()["driver"]))


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return int(_known(_open()["cuda"]))


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return int(_known(index if index < len(_open()["gpus"]) else None))


def nvmlDeviceGetName(gpu: int) -> str:
    return str(_of(gpu, "name"))


def nvmlDeviceGetMemoryInfo(gpu: int, version: int) -> Memory:
    return Memory(*_of(gpu, "memory"))


def nvmlDeviceGetTotalEnergyConsumption(gpu: int) -> int:
    """In mJ since the clock's start."""
    return round(_of(gpu, "power_w") * time.monotonic() * 1000)


def nvmlDeviceGetClockInfo(gpu: int, clock: int) -> int:
    return int(_of(gpu, "clocks")[clock - 1])


def nvmlDeviceGetCurrentClocksEventReasons(gpu: int) -> int:
    return int(_of(gpu, "reasons"))


def _of(gpu: int, name: str) -> Any:
    return _known(_open()["gpus"][gpu][name])


def _open() -> dict[str, Any]:
    _known(opened or None)
    return _content()


def _content() -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(Path(os.environ["FAKE_NVML"]).read_text())
    except (KeyError, OSError) as error:
        raise NVMLError("Library Not Found") from error
    return content


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError("Not Supported")
    return value
