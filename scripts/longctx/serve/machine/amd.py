"""AMD GPUs, read from the JSON of amd-smi, or else of rocm-smi."""

import contextlib
import json
import re
from collections.abc import Iterable
from typing import Any

from longctx.serve.machine.gpu import Gpu
from longctx.serve.machine.vendor_tools import Tool, Watts

UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}  # amd-smi's MB are MiB


def amd_smi_gpus(*texts: str) -> list[Gpu]:
    """Read `amd-smi static --asic --driver --json` and `amd-smi metric --mem-usage --json`."""
    gpus: dict[int, dict[str, dict[str, Any]]] = {}
    for index, entry in (pair for text in texts for pair in _amd_smi_entries(text)):
        gpus.setdefault(index, {"asic": {}, "mem_usage": {}, "driver": {}}).update(_mappings(entry))
    read = []
    for index, gpu in gpus.items():
        used, total = (_bytes(gpu["mem_usage"].get(name)) for name in ("used_vram", "total_vram"))
        read.append(Gpu(index, gpu["asic"].get("market_name"), used, total, gpu["driver"].get("version")))
    return read


def amd_smi_power(text: str) -> Watts:
    """Read `amd-smi metric --power --json`: {"gpu": 0, "power": {"socket_power": {"value": 140, "unit": "W"}}}."""
    names = ("socket_power", "current_socket_power", "average_socket_power")
    powers = {index: _mappings(entry).get("power", {}) for index, entry in _amd_smi_entries(text)}
    return {index: _first_number(power.get(name) for name in names) for index, power in powers.items()}


def rocm_smi_gpus(text: str) -> list[Gpu]:
    """Read `rocm-smi --showproductname --showmeminfo vram --showdriverversion --json`."""
    parts = _mappings(_json_in(text)).values()
    driver = next((part["Driver version"] for part in parts if "Driver version" in part), None)
    gpus = []
    for index, card in sorted(_rocm_smi_cards(text).items()):
        name = next(filter(None, map(card.get, ("Card Series", "Card series", "Card Model", "Card model"))), None)
        used, total = (_int(card.get(key)) for key in ("VRAM Total Used Memory (B)", "VRAM Total Memory (B)"))
        gpus.append(Gpu(index, name, used, total, driver))
    return gpus


def rocm_smi_power(text: str) -> Watts:
    """Read `rocm-smi --showpower --json`: {"card0": {"… Package Power (W)": "35.0"}}."""
    return {
        index: _first_number(value for key, value in card.items() if "Power (W)" in key and "Max" not in key)
        for index, card in _rocm_smi_cards(text).items()
    }


AMD_SMI_GPUS = ("static --asic --driver --json", "metric --mem-usage --json")
ROCM_SMI_GPUS = ("--showproductname --showmeminfo vram --showdriverversion --json",)
TOOLS = (
    Tool("amd-smi", AMD_SMI_GPUS, amd_smi_gpus, "metric --power --json", amd_smi_power),
    Tool("rocm-smi", ROCM_SMI_GPUS, rocm_smi_gpus, "--showpower --json", rocm_smi_power),
)


def _amd_smi_entries(text: str) -> list[tuple[int, dict[str, Any]]]:
    """Return (index, entry) of a list, or of {"gpu_data": list}, which newer versions print."""
    data = _json_in(text)
    entries = data.get("gpu_data") if isinstance(data, dict) else data
    if not isinstance(entries, list):
        return []
    return [(e["gpu"], e) for e in entries if isinstance(e, dict) and isinstance(e.get("gpu"), int)]


def _rocm_smi_cards(text: str) -> dict[int, dict[str, Any]]:
    parts = _mappings(_json_in(text))
    return {int(key[4:]): part for key, part in parts.items() if re.fullmatch(r"card\d+", key)}


def _mappings(data: Any) -> dict[str, dict[str, Any]]:
    """Return the values of `data` that are mappings: what a tool does not know is 'N/A' in place of one."""
    return {key: part for key, part in data.items() if isinstance(part, dict)} if isinstance(data, dict) else {}


def _json_in(text: str) -> Any:
    """Return the first JSON list or mapping in `text` (the tools print warnings around it), else an empty dict."""
    for start in re.finditer(r"^\s*(?=[\[{])", text, re.MULTILINE):
        with contextlib.suppress(ValueError):
            return json.JSONDecoder().raw_decode(text, start.end())[0]
    return {}


def _first_number(values: Iterable[Any]) -> float | None:
    """Return the first of `values` that is a power such as 140, '35.0', '99 W' or {'value': 140}."""
    texts = (str(value.get("value") if isinstance(value, dict) else value).strip() for value in values)
    return next((float(match[1]) for text in texts if (match := re.fullmatch(r"(\d+(?:\.\d+)?)(?:\s*W)?", text))), None)


def _int(text: Any) -> int | None:
    return int(text) if str(text).isdecimal() else None


def _bytes(value: Any) -> int | None:
    """Read amd-smi's {'value': 283, 'unit': 'MB'}."""
    number = value.get("value") if isinstance(value, dict) else None
    return int(number * UNITS.get(value.get("unit"), UNITS["MB"])) if isinstance(number, int | float) else None
