"""Where the checkout's own files lie, and the prompt shapes among them."""

from pathlib import Path

from longctx.errors import PromptError

ROOT = Path(__file__).parents[2]
RESOURCES = ROOT / "resources"
MODELS_DIR = RESOURCES / "models"
GPUS_CSV = RESOURCES / "hardware" / "gpus.csv"
# What our servers import, local or in a container; no part of the library.
VLLM_PLUGINS = ROOT / "scripts" / "vllm_plugins"
SHAPES = RESOURCES / "prompts"


def shape_folder(shape: str) -> Path:
    """Return where a shape's texts lie; PromptError where there is no such shape."""
    built_in = SHAPES / shape
    folder = built_in if built_in.is_dir() else Path(shape).expanduser()
    if not folder.is_dir():
        names = ", ".join(sorted(entry.name for entry in SHAPES.iterdir()))
        raise PromptError(f"prompt shape {shape!r} is neither built in ({names}) nor a folder")
    return folder
