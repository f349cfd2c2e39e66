"""This host's GPUs, and those that a server uses."""

import os
import re
from collections.abc import Mapping

from longctx.serve.machine import amd, nvidia, vendor_tools
from longctx.serve.machine.gpu import Gpu
from longctx.serve.machine.vendor_tools import Tool

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def gpus() -> list[Gpu]:
    """Return this host's GPUs as NVML shows them, else as a vendor's tools do; [] where there are none."""
    return nvidia.gpus() or vendor_tools.gpus([nvidia.NVIDIA_SMI]) or vendor_tools.gpus(amd.TOOLS)


def installed_tools() -> list[Tool]:
    """Return the installed tools of this host's vendor, the preferred one first."""
    has_nvidia = nvidia.gpus() or vendor_tools.gpus([nvidia.NVIDIA_SMI])
    return vendor_tools.installed([nvidia.NVIDIA_SMI] if has_nvidia else amd.TOOLS)


def visible_gpus(env: Mapping[str, str] | None = None) -> list[Gpu]:
    """Return the GPUs that a server with `env` sees, in its order (all, where it doesn't name them by number)."""
    listed, here = _listed(env), gpus()
    if not re.fullmatch(r"\d+(,\d+)*", listed):
        return here
    wanted = [int(part) for part in listed.split(",")]
    return sorted((gpu for gpu in here if gpu.index in wanted), key=lambda gpu: wanted.index(gpu.index))


def gpu_numbers(env: Mapping[str, str], ranks: int) -> tuple[int, ...]:
    """Return the numbers of the GPUs that a server of `ranks` ranks computes on: the first that it sees.

    () where that is not known: named by UUID, or not all on this host.
    """
    visible = visible_gpus(env)
    if len(visible) < ranks or (re.search(r"[^\d,]", _listed(env)) and len(visible) > ranks):
        return ()
    return tuple(gpu.index for gpu in visible[:ranks])


def _listed(env: Mapping[str, str] | None) -> str:
    environment = os.environ if env is None else env
    return next((environment[name] for name in VISIBLE if environment.get(name)), "")
