"""What a secret is, and texts that are fit to be written down: no tokens, no keys, no endless messages."""

import os
import re
from collections.abc import Iterable, Mapping

SHAPES = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|Bearer\s+\S+)")
SECRET_NAME = re.compile(r"TOKEN(?!IZER)|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)
SHORTEST_SECRET = 6
MASK = "[secret]"
LONGEST = 600


def secret_variables(env: Mapping[str, str]) -> list[str]:
    """Return the names of variables whose values are secret, the longest value first.

    They are called like *_TOKEN, and their values are neither short words nor existing paths.
    """
    names = [name for name, value in env.items() if SECRET_NAME.search(name) and len(value.strip()) >= SHORTEST_SECRET]
    secret = (name for name in names if not (env[name].startswith("/") and os.path.exists(env[name])))
    return sorted(secret, key=lambda name: len(env[name].strip()), reverse=True)


def secret_values(env: Mapping[str, str]) -> list[str]:
    """Return the values to mask, the longest first, so that none is masked in part; without blanks around them."""
    return list(dict.fromkeys(env[name].strip() for name in secret_variables(env)))


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with these values masked."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def redact(text: str, *values: str | None, longest: int = LONGEST) -> str:
    """Return `text`, cut, with `values`, secrets of this process's environment and token-like words blanked."""
    for secret in sorted({*filter(None, values), *secret_values(os.environ)}, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    text = " ".join(SHAPES.sub("[redacted]", text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
