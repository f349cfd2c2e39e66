"""The Hugging Face hub on this host: its token and its folders, by the variables that huggingface_hub itself reads."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def hub_token() -> str | None:
    """Return the token of HF_TOKEN or HUGGING_FACE_HUB_TOKEN, else of ~/hf_token or HF_TOKEN_PATH; None without one.

    Blanks and line ends around it are removed. huggingface_hub itself reads and renews the token of `hf auth login`.
    """
    for name in TOKEN_VARIABLES:
        if token := _clean(os.environ.get(name, "")):
            return token
    named = os.environ.get("HF_TOKEN_PATH")
    for file in (Path("~/hf_token"), *([Path(named)] if named else [])):
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # no such file, not readable, no home
            if token := _clean(file.expanduser().read_text(encoding="utf-8")):
                return token
    return None


def hub_folders(env: Mapping[str, str]) -> tuple[Path, Path]:
    """Return HF_HOME and the folder of the cached models, as huggingface_hub finds them with the variables `env`."""
    home = _folder(env.get("HF_HOME", os.path.join(env.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")))
    cache = env.get("HF_HUB_CACHE", env.get("HUGGINGFACE_HUB_CACHE"))
    return home, home / "hub" if cache is None else _folder(cache)


def _clean(token: str) -> str:
    return token.replace("\r", "").replace("\n", "").strip()


def _folder(text: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(text))).resolve()
