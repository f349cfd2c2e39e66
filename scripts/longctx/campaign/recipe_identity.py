"""Which settings make a recipe, and how two recipes differ."""

from collections.abc import Iterable, Mapping
from typing import Any

# What changes no number: left out of a recipe's identity.
OPERATIONAL = {
    "serve": ("python", "start_timeout_s", "contract"),
    "measure": ("stall_s", "blind_stall_s", "retry_doubtful"),
}


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterable[str]:
    """Yield 'key: old -> new' for every setting that differs between two identities."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from changed_settings(before, after, f"{path}{key}.")
        elif before != after:
            yield f"{path}{key}: {before!r} -> {after!r}"
