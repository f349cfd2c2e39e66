"""How long the first token of a summary row took, on which clock, and of how many requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The mean time to the first token in s, of n requests; n_late of all were late and are not in it.

    by_server: it is the server's prefill time, since every TTFT of the client was late.
    """

    seconds: float
    n: int
    n_late: int
    by_server: bool

    def note(self) -> str:
        """Return what a sentence with this number must add, '' where no request was late."""
        if self.by_server:
            return f" (prefill by the server's clock, n = {self.n}: the client read every first token late)"
        late = f"{self.n_late} late one{'s' if self.n_late > 1 else ''}"
        return f" (n = {self.n}: {late} left out)" if self.n_late else ""


def by_client(row: Mapping[str, Any]) -> FirstToken | None:
    """Return the client's time of a schemas.SUMMARY row, late ones left out; None where nothing is left."""
    mean_s = row.get("ttft_s_mean")
    return FirstToken(mean_s, row.get("ttft_s_n") or 0, row.get("n_late") or 0, False) if mean_s else None


def by_server(row: Mapping[str, Any]) -> FirstToken | None:
    """Return the server's prefill time of a schemas.SUMMARY row."""
    mean_s = row.get("prefill_s_mean")
    return FirstToken(mean_s, row.get("prefill_s_n") or 0, row.get("n_late") or 0, True) if mean_s else None


def first_token(row: Mapping[str, Any]) -> FirstToken | None:
    """Return the client's time, or where every one was late the server's; None where neither is known."""
    return by_client(row) or (by_server(row) if row.get("n_late") else None)


def on_one_clock(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[FirstToken, FirstToken] | None:
    """Return the times of two rows by the client, or where one of them was always late both by the server."""
    for clock in (by_client, by_server) if a.get("n_late") or b.get("n_late") else (by_client,):
        if (one := clock(a)) and (other := clock(b)):
            return one, other
    return None
