"""Text that is fit to be written down: no tokens, no keys, no endless messages."""

import os
import re

SHAPES = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|Bearer\s+\S+)")
_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", re.IGNORECASE)
LONGEST = 600


def redact(text: str, *values: str | None, longest: int = LONGEST) -> str:
    """Return `text`, cut, with `values`, secrets of this process's environment and token-like words blanked."""
    secrets = [value for name, value in os.environ.items() if _NAMES.search(name) and len(value) >= 8]
    for secret in sorted({value for value in (*values, *secrets) if value}, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    text = " ".join(SHAPES.sub("[redacted]", text).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
