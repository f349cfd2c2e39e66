"""Labels of files: format version, git revision, hashes."""

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import orjson

FORMAT_VERSION = 1
# In the metadata of a summary that report_now or a failed run made: the next run makes it again.
PARTIAL = "partial"


def git_revision() -> str:
    """Return this checkout's commit, '+dirty' where files differ; for a copy LONGCTX_GIT_REVISION or 'unknown'."""
    if copied_from := os.environ.get("LONGCTX_GIT_REVISION"):
        return copied_from
    command, here = ["git", "describe", "--always", "--abbrev=40", "--dirty=+dirty"], Path(__file__).parent
    try:
        return subprocess.check_output(
            command, cwd=here, stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace", timeout=20
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def stable_hash(value: Any) -> str:
    """Return 16 hex digits that depend only on the JSON content of `value`."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def file_labels() -> dict[str, str]:
    """Return the labels in every file's metadata: the format version and the git revision."""
    return {"longctx_format": str(FORMAT_VERSION), "git_revision": git_revision()}


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
