"""GPUs as the vendors' tools show them: names, driver, and memory in use, which must fall back between servers."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from longctx.serve.machine.power import json_in

MIB = 1 << 20
NVIDIA_QUERY = "index,name,memory.used,memory.total,driver_version"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def nvidia(text: str) -> list[dict[str, Any]]:
    """Read `nvidia-smi --query-gpu=…` (csv,noheader,nounits) into {index, name, used, total, driver}; bytes."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 4]
    return [
        {
            "index": int(index),
            "name": name,
            "used": _mib(used),
            "total": _mib(total),
            "driver": driver,
        }
        for index, name, used, total, driver in rows
        if index.isdigit()
    ]


def rocm(text: str) -> list[dict[str, Any]]:
    """Read `rocm-smi --showproductname --showmeminfo vram --showdriverversion --json` like `nvidia`."""
    cards = {key: card for key, card in json_in(text, dict).items() if isinstance(card, dict)}
    driver = next((card["Driver version"] for card in cards.values() if "Driver version" in card), None)
    indices = sorted(int(key[4:]) for key in cards if re.fullmatch(r"card\d+", key))
    names = ("Card Series", "Card series", "Card Model", "Card model")
    return [
        {
            "index": index,
            "name": next(filter(None, map(card.get, names)), None),
            "used": _int(card.get("VRAM Total Used Memory (B)")),
            "total": _int(card.get("VRAM Total Memory (B)")),
            "driver": driver,
        }
        for index, card in ((index, cards[f"card{index}"]) for index in indices)
    ]


def amd(*texts: str) -> list[dict[str, Any]]:
    """Read `amd-smi metric --mem-usage --json` and `amd-smi static --asic --driver --json` like `nvidia`."""
    gpus: dict[int, dict[str, dict[str, Any]]] = {}
    for text in texts:
        data = json_in(text, (list, dict))
        for entry in data.get("gpu_data", []) if isinstance(data, dict) else data:
            if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):  # what it does not know is 'N/A'
                known = {key: part for key, part in entry.items() if isinstance(part, dict)}
                gpus.setdefault(entry["gpu"], {}).update(known)
    return [
        {
            "index": index,
            "name": gpu.get("asic", {}).get("market_name"),
            "used": _sized(gpu.get("mem_usage", {}).get("used_vram")),
            "total": _sized(gpu.get("mem_usage", {}).get("total_vram")),
            "driver": gpu.get("driver", {}).get("version"),
        }
        for index, gpu in gpus.items()
    ]


def gpus() -> list[dict[str, Any]]:
    """Return this host's GPUs by the first vendor's tool that shows some; [] where none does."""
    readers = {"nvidia-smi": _ask_nvidia, "amd-smi": _ask_amd, "rocm-smi": _ask_rocm}
    return next((found for tool, read in readers.items() if shutil.which(tool) and (found := read())), [])


def _ask_nvidia() -> list[dict[str, Any]]:
    return nvidia(_run("nvidia-smi", f"--query-gpu={NVIDIA_QUERY}", "--format=csv,noheader,nounits"))


def _ask_amd() -> list[dict[str, Any]]:
    static = _run("amd-smi", "static", "--asic", "--driver", "--json")
    return amd(static, _run("amd-smi", "metric", "--mem-usage", "--json"))


def _ask_rocm() -> list[dict[str, Any]]:
    return rocm(_run("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json"))


def visible_gpus(env: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the GPUs that a server with `env` sees, in its order (all, where it doesn't say by number)."""
    listed, here = _listed(env), gpus()
    if not re.fullmatch(r"\d+(,\d+)*", listed):
        return here
    wanted = [int(part) for part in listed.split(",")]
    return sorted((gpu for gpu in here if gpu["index"] in wanted), key=lambda gpu: wanted.index(gpu["index"]))


def gpu_numbers(env: Mapping[str, str], ranks: int) -> tuple[int, ...]:
    """Return the numbers of the GPUs that a server of `ranks` ranks computes on: the first that it sees.

    () where that is not known: named by UUID, or not all on this host.
    """
    seen = visible_gpus(env)
    if len(seen) < ranks or (re.search(r"[^\d,]", _listed(env)) and len(seen) > ranks):
        return ()
    return tuple(gpu["index"] for gpu in seen[:ranks])


def _listed(env: Mapping[str, str] | None) -> str:
    environment = os.environ if env is None else env
    return next((environment[name] for name in VISIBLE if environment.get(name)), "")


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _mib(text: str) -> int | None:
    return int(float(text) * MIB) if re.fullmatch(r"[\d.]+", text) else None


def _int(text: Any) -> int | None:
    return int(text) if str(text).isdecimal() else None


def _sized(value: Any) -> int | None:
    """Read amd-smi's {'value': 283, 'unit': 'MB'}, whose MB are MiB."""
    if not isinstance(value, dict) or not isinstance(value.get("value"), int | float):
        return None
    return int(value["value"] * {"B": 1, "KB": 1 << 10, "MB": MIB, "GB": 1 << 30}.get(value.get("unit", "MB"), MIB))
