"""The host and the environment that a server ran in: facts for the rows, JSON for the record, never a secret value."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import psutil

from longctx.redaction import MASK, SECRET_NAME, encodable, mask, secret_values
from longctx.serve.machine import gpus, nvidia

KEPT = re.compile(
    r"^(VLLM(?!_RPC_BASE_PATH)|CUDA|NVIDIA|NCCL|RCCL|HIP|ROCR|ROCM|HSA|AITER|GPU|TORCH|PYTORCH|TRITON|OMP|KMP|MKL|GOMP"
    r"|MALLOC|SLURM_JOB|SLURM_NODE|HF|TRANSFORMERS|TOKENIZERS|PYTHON|LD_|UCX|GLOO|LONGCTX)"
    r"|^(PATH|LANG|LC_ALL|TZ|VIRTUAL_ENV)$"
)
ROCM_VERSION = Path("/opt/rocm/.info/version")


def host_facts(env: Mapping[str, str] | None = None, ranks: int | None = None) -> dict[str, Any]:
    """Return a value for each name of schemas.HOST_FACTS, None where this host does not report it.

    gpu_count: GPUs that a server of `ranks` ranks computes on, however many more it sees; where its ranks are not
    known, those that a server with `env` sees. 0 where there are none.
    """
    visible = gpus.visible_gpus(env)
    names = sorted({gpu.name for gpu in visible if gpu.name})
    return {
        "host": platform.node(),
        "gpu": " + ".join(names) or None,
        "gpu_count": ranks if ranks and visible else len(visible),
        "gpu_driver": next((gpu.driver for gpu in visible if gpu.driver), None),
        "cuda_or_rocm": cuda_or_rocm() if visible else None,
        "cpu": cpu_name(),
        "cpu_count": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "os": os_name(),
    }


def environment_json(env: Mapping[str, str]) -> str:
    """Return the variables that can change a server's numbers as JSON, secret values masked wherever they stand."""
    secrets = secret_values(env)
    shown = {name: MASK if SECRET_NAME.search(name) else mask(env[name], secrets) for name in sorted(env)}
    return orjson.dumps(encodable({name: value for name, value in shown.items() if KEPT.match(name)})).decode()


def cpu_name(cpuinfo: str | None = None) -> str | None:
    """Return the CPU's model name out of /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if cpuinfo is None else cpuinfo
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def os_name() -> str | None:
    """Return the system's name out of /etc/os-release."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def cuda_or_rocm() -> str | None:
    """Return 'CUDA 13.0' (what the driver supports) or 'ROCm 7.0.2' (what is installed)."""
    if cuda := nvidia.cuda_version():
        return cuda
    try:
        return f"ROCm {ROCM_VERSION.read_text(encoding='utf-8').strip()}"
    except OSError:
        return None
