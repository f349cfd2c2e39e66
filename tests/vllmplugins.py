"""Gives a real vLLM plugins of the tests: modules whose `register` vLLM calls in each of its processes."""

from pathlib import Path
from types import ModuleType


def install(folder: Path, *plugins: ModuleType) -> Path:
    """Write what makes vLLM find the plugins and return the folder to put on PYTHONPATH."""
    for plugin in plugins:
        name, source = plugin.__name__, Path(str(plugin.__file__))
        about = folder / f"{name}-1.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:register\n")
        (folder / source.name).write_bytes(source.read_bytes())
    return folder
