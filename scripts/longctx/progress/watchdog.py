"""Distinguishes a slow server from one that hangs."""

import math
import threading
import time

LONGEST_GAP_S = 30.0  # a pause of our own (laptop lid, SIGSTOP) says nothing about the server


class Watchdog:
    """Says whether a server has stopped working: no value moved, over many looks, for `stall_s` in all.

    Slow is not dead: one more token, iteration or KV block starts the count again. A server that never showed a
    metric is judged after `blind_limit_s` only (None: never). Each look adds at most LONGEST_GAP_S. Asking is a look
    too, so that a sampler that has ended hides no stall.
    """

    def __init__(self, stall_s: float = math.inf, *, blind_limit_s: float | None = None) -> None:
        self._stall_s, self._blind_limit_s = stall_s, blind_limit_s
        self._last: tuple[float | None, ...] | None = None
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self.idle_s = 0.0

    def feed(self, activity: tuple[float | None, ...] | None) -> None:
        """Take one look; None where the server gave no metrics."""
        with self._lock:
            now = time.monotonic()
            self.idle_s += min(max(0.0, now - self._looked), LONGEST_GAP_S)
            self._looked = now
            if activity is not None and activity != self._last:
                self._last, self.idle_s = activity, 0.0

    def touch(self) -> None:
        """Start the count again: something else, such as a token in the stream, showed that the server works."""
        with self._lock:
            self.idle_s = 0.0

    def stalled(self) -> bool:
        """Return whether the limit is reached."""
        self.feed(None)
        limit_s = self._blind_limit_s if self._last is None else self._stall_s
        return limit_s is not None and self.idle_s >= limit_s
