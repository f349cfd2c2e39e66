"""Samples how far a prefill is and when it will be done.

vLLM counts prompt tokens only when a prefill has ended, but its KV cache fills while it runs: usage times
capacity is the tokens done. Attention makes late tokens cost more than early ones, so time left follows the cost
model t(n) = a·n + b·n², never the share of tokens. All times come from the monotonic clock.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Self

from longctx.progress.eta import RATE_WINDOW_S, Cost, eta_s
from longctx.progress.watchdog import Watchdog
from longctx.serve.metrics import Snapshot

DECODE_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """One look at a prefill, as schemas.PROGRESS keeps it; None is what the server does not show."""

    elapsed_s: float
    tokens_done: int | None
    tokens_total: int
    rate_tok_s: float | None = None
    eta_s: float | None = None


@dataclass
class Sampler:
    """Looks at a server about once a second in a thread of its own while a request runs (a context manager).

    The first look comes after one interval, so that short requests are not disturbed; after a token looks are
    rare and only feed the watchdog. `before` is the reading taken before the request: what its cache holds is
    not counted, and the watchdog knows from it that the server has metrics. `observe` is one look, without thread.
    """

    scrape: Callable[[], Snapshot | None]
    _: KW_ONLY
    tokens_total: int
    capacity_tokens: int | None = None
    before: Snapshot | None = None
    prior: Cost | None = None
    watchdog: Watchdog = field(default_factory=Watchdog)
    on_sample: Callable[[PrefillProgress], None] | None = None
    interval_s: float = 1.0
    _points: list[tuple[float, int]] = field(default_factory=list, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _decoding: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.before is not None:
            self.watchdog.feed(self.before.activity())
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def token_came(self, elapsed_s: float | None = None) -> None:
        """Take note of a token, the first of which ends the prefill (give this to the client as on_token)."""
        self._decoding = True
        self.watchdog.touch()

    def _run(self) -> None:
        while not self._stop.wait(DECODE_INTERVAL_S if self._decoding else self.interval_s):
            self.observe()

    def observe(self) -> PrefillProgress:
        """Take one look now: feed the watchdog, hand what is known to on_sample, and return it."""
        snapshot = self.scrape()
        self.watchdog.feed(snapshot.activity() if snapshot else None)
        elapsed_s = time.monotonic() - self._start
        if self._decoding:
            return PrefillProgress(elapsed_s, self.tokens_total, self.tokens_total, eta_s=0.0)
        done = self._tokens_done(snapshot)
        if done and (not self._points or done > self._points[-1][1]):
            self._points.append((elapsed_s, done))
        known = self._points[-1][1] if self._points else done
        eta = eta_s(self._points, self.tokens_total, elapsed_s, self.prior)
        progress = PrefillProgress(elapsed_s, known, self.tokens_total, self._rate(elapsed_s), eta)
        if self.on_sample is not None:
            self.on_sample(progress)
        return progress

    def _tokens_done(self, snapshot: Snapshot | None) -> int | None:
        capacity = self.capacity_tokens or (snapshot.kv_capacity_tokens if snapshot else None)
        if snapshot is None or snapshot.kv_usage is None or capacity is None:
            return None
        held_before = (self.before.kv_usage if self.before else None) or 0.0
        return min(self.tokens_total, max(0, round((snapshot.kv_usage - held_before) * capacity)))

    def _rate(self, elapsed_s: float) -> float | None:
        window = [point for point in self._points[-2:-40:-1] if point[0] >= elapsed_s - RATE_WINDOW_S]
        if not (recent := window or self._points[-2:-1]):
            return None
        (first_s, first), (last_s, last) = recent[-1], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None
