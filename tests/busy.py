"""What a busy machine does to rows, so that tests of other things don't depend on it."""

from typing import Any

BUSY = {"client_starved", "first_token_late", "not_steady"}


def told(row: dict[str, Any]) -> list[str]:
    """A row's reasons, without those of a busy machine."""
    return [reason for reason in row["reasons"] if reason not in BUSY]
