"""What a secret is, and texts that are fit to be written down: no tokens, no keys, no endless messages, no controls."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Keys of Hugging Face, GitHub, GitLab, OpenAI (and others in its form), AWS, Slack, Google, NVIDIA, npm, PyPI, Docker,
# Groq, xAI, Perplexity, Replicate, DigitalOcean, Databricks, Stripe, SendGrid, Vault; JSON web tokens; headers.
_WORDS = (
    r"\b(?:hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|gh[a-z]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
    r"|gl(?:pat|rt|dt|ptt|cbt|ft|imt|oas|soat|agent)-[\w.-]{8,}|sk-[A-Za-z0-9_-]{8,}|[rsp]k_(?:live|test)_\w{8,}"
    r"|A[KS]IA[A-Z0-9]{12,}|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}|hooks\.slack\.com/\S+|AIza[\w-]{30,}|ya29\.[\w-]{8,}"
    r"|GOCSPX-[\w-]{8,}|nvapi-[\w-]{8,}|npm_[A-Za-z0-9]{16,}|pypi-AgE[\w-]{8,}|dckr_[a-z]+_[\w-]{8,}"
    r"|gsk_[A-Za-z0-9]{16,}|xai-[A-Za-z0-9]{16,}|pplx-[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{16,}|do[a-z]_v1_[a-f0-9]{16,}"
    r"|dapi[a-f0-9]{16,}|SG\.[\w-]{8,}\.[\w-]{8,}|hv[sbr]\.[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|Bearer\s+\S+"
    r"|(?i:authorization)[:=]\s*(?:(?i:basic|token|digest|api-?key)\s+)?\S+"
    r"|(?i:(?:[\w-]*-)?(?:api-?key|auth-token|subscription-key|(?<!-)cookie)):\s*\S+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
)
# An address' user part (that of SSH only with a password: git@ is none), and a query's or fragment's key.
_USER = (
    r"(?i)(\b(?:ssh://(?=[^/\s@]*:)|(?![\w+.-]{0,20}ssh:)[a-z][\w+.-]{0,20}://))"
    r"(?:[^/\s?#]+|[^/\s?#@:]*:(?!\d*[/?#])\S*)(?=@)"
)
_QUERY = (
    r"(?i)([?&;#](?:[^=&;#\s]*(?:token|key|secret|passw|pwd|credential|auth)[^=&;#\s]*|(?:[^=&;#\s]*[_.-])?sig(?:nature)?"
    r"|code|pass|pw|jwt)=)[^&;#\s\"']+"
)
# What is secret by its shape alone: patterns, and what stays of a match.
SHAPES = ((_WORDS, ""), (_USER, r"\g<1>"), (_QUERY, r"\g<1>"))
_SHAPES = [(re.compile(pattern), kept) for pattern, kept in SHAPES]
SECRET_NAME = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|KEY|COOKIE|WEBHOOK|(?:^|_)(?:PASS|PW|AUTH|PAT|CREDS)$|_PWD$",
    re.IGNORECASE,
)
SHORTEST_SECRET = 6
MASK = "[secret]"
LONGEST = 600
# Terminal sequences: colours and cursor moves (ECMA-48 CSI), titles and links (OSC and other strings), the rest.
_TERMINAL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-~]"
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
REPLACEMENT = "\ufffd"


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


def looks_secret(text: str) -> bool:
    """Return whether a key, or an address with a secret part, stands in `text`."""
    return any(shape.search(text) for shape, _ in _SHAPES)


def mask(text: str, secrets: Iterable[str], mark: str = MASK) -> str:
    """Return `text` with these values masked, and whatever looks like a secret."""
    for secret in secrets:
        text = text.replace(secret, mark)
    for shape, kept in _SHAPES:
        text = shape.sub(kept + mark, text)
    return text


def printable(text: str, keep: str = "") -> str:
    """Return `text` as one line that is safe in a terminal, a log, Markdown and UTF-8.

    Terminal sequences are dropped, other white space becomes a blank, and what cannot be printed (control characters,
    half surrogate pairs, marks that reverse the direction of text) U+FFFD. Characters in `keep` stay.
    """
    if text.isprintable():
        return text
    text = _TERMINAL.sub("", text)
    return "".join(one if one.isprintable() or one in keep else " " if one.isspace() else REPLACEMENT for one in text)


def encodable(value: Any) -> Any:
    """Return JSON-like data with each half surrogate pair, which UTF-8 cannot hold, replaced by U+FFFD."""
    if isinstance(value, str):
        return _SURROGATE.sub(REPLACEMENT, value)
    if isinstance(value, Mapping):
        return {encodable(key): encodable(item) for key, item in value.items()}
    return [encodable(item) for item in value] if isinstance(value, list | tuple) else value


def redact(text: str, *values: str | None, longest: int = LONGEST) -> str:
    """Return `text`, cut and printable, with `values`, secrets of the environment and token-like words blanked."""
    text = printable(text)
    secrets = sorted({*filter(None, values), *secret_values(os.environ)}, key=len, reverse=True)
    text = " ".join(mask(text, secrets, "[redacted]").split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
