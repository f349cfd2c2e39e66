"""The Hugging Face token: for what the pipeline fetches itself, and for the servers that it starts."""

import os
from pathlib import Path


def hub_token() -> str | None:
    """Return HF_TOKEN of the environment, else what ~/hf_token holds, else None."""
    if given := os.environ.get("HF_TOKEN"):
        return given
    file = Path.home() / "hf_token"
    return (file.read_text().strip() or None) if file.is_file() else None
