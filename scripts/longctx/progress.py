"""How far a prefill is, when it will be done, and whether it still moves.

vLLM counts prompt tokens only when a prefill has ended, but its KV cache fills while it runs: usage times
capacity is the tokens done. Attention makes late tokens dearer than early ones, so time left follows the cost
model t(n) = a·n + b·n², never the share of tokens. All times come from the monotonic clock.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from longctx.metrics import Snapshot

RATE_WINDOW_S = 10.0
FIT_POINTS = 4
FIT_SHARE = 0.01  # of the prompt must be done before a fit means anything
JUMP = 10.0  # a step this much faster than the three after it came from a cache, not from the model
DECODE_INTERVAL_S = 5.0
LONGEST_GAP_S = 30.0  # a pause of our own (laptop lid, SIGSTOP) says nothing about the server
QUIET_ROW_S = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds to prefill n tokens: linear_s·n + quadratic_s·n²."""

    linear_s: float
    quadratic_s: float

    def at(self, tokens: float) -> float:
        """Return the seconds for `tokens`."""
        return self.linear_s * tokens + self.quadratic_s * tokens * tokens


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a prefill; tokens_done, rate and ETA are None where the server does not show them."""

    elapsed_s: float
    tokens_done: int | None
    tokens_total: int
    rate_tok_s: float | None = None
    eta_s: float | None = None


def fit_cost(points: Sequence[tuple[float, int]]) -> Cost | None:
    """Return the cost model through (seconds, tokens) points: least squares over differences from the first.

    Neither coefficient is negative. None with fewer than FIT_POINTS points or without growth.
    """
    if len(points) < FIT_POINTS:
        return None
    seconds, tokens = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    y, scale = seconds[1:] - seconds[0], float(tokens.max())
    x = np.stack([tokens[1:] - tokens[0], (tokens[1:] ** 2 - tokens[0] ** 2) / scale], axis=1)
    both = np.linalg.lstsq(x, y, rcond=None)[0]
    if (both < 0).any():
        single = [float(x[:, i] @ y / (x[:, i] @ x[:, i])) for i in (0, 1)]
        errors = [float(((y - single[i] * x[:, i]) ** 2).sum()) for i in (0, 1)]
        both = np.array([single[0], 0.0]) if errors[0] <= errors[1] else np.array([0.0, single[1]])
    cost = Cost(float(both[0]), float(both[1]) / scale)
    return cost if cost.at(scale) > 0 else None


def eta_s(points: Sequence[tuple[float, int]], total: int, now_s: float, prior: Cost | None = None) -> float | None:
    """Return the seconds left until `total` tokens are done.

    points: (seconds, tokens) at which each new token count was first seen, oldest first. `prior` is the cost
    model of shorter prompts: its shape is kept and its scale taken from the points. Without it the model is fitted
    to the points. None while too little has been seen.
    """
    if not points:
        return prior.at(total) if prior else None
    last_s, done = points[-1]
    recent = points[_after_jump(points) :]
    if prior is None:
        cost = fit_cost(recent) if done >= FIT_SHARE * total else None
    else:
        worked_s = last_s - recent[0][0]
        expected_s = prior.at(done) - prior.at(recent[0][1])
        scale = worked_s / expected_s if worked_s > 0 and expected_s > 0 else 1.0
        cost = Cost(prior.linear_s * scale, prior.quadratic_s * scale)
    if cost is None:
        return None
    return max(0.0, cost.at(total) - cost.at(done) - max(0.0, now_s - last_s))


def _after_jump(points: Sequence[tuple[float, int]]) -> int:
    """Return the index of the first computed point after the last jump; a slow hiccup among fast steps is none."""
    if len(points) < 5:
        return 0
    steps = np.diff(np.array(points, dtype=float), axis=0)
    rates = steps[:, 1] / np.maximum(steps[:, 0], 1e-9)
    following = np.median(np.lib.stride_tricks.sliding_window_view(rates[1:], 3), axis=1)
    jumps = np.flatnonzero(rates[: len(following)] > JUMP * following)
    return int(jumps[-1]) + 2 if len(jumps) else 0


class Watchdog:
    """Says whether a server has stopped working: no value moved, over many looks, for `stall_s` in all.

    Slow is not dead: one more token, iteration or KV block starts the count anew. A server that never showed a
    metric is judged after `blind_limit_s` only (None: never). Each look adds at most LONGEST_GAP_S. Asking is a look
    too, so that a sampler that has ended hides no stall.
    """

    def __init__(
        self, stall_s: float, *, blind_limit_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stall_s, self._blind_limit_s, self._clock = stall_s, blind_limit_s, clock
        self._last: tuple[float | None, ...] | None = None
        self._looked = clock()
        self._lock = threading.Lock()
        self.idle_s = 0.0

    def feed(self, activity: tuple[float | None, ...] | None) -> None:
        """Take one look; None where the server gave no metrics."""
        with self._lock:
            now = self._clock()
            self.idle_s += min(max(0.0, now - self._looked), LONGEST_GAP_S)
            self._looked = now
            if activity is not None and activity != self._last:
                self._last, self.idle_s = activity, 0.0

    def touch(self) -> None:
        """Start anew: something else, such as a token in the stream, showed that the server works."""
        with self._lock:
            self.idle_s = 0.0

    def stalled(self) -> bool:
        """Whether the limit is reached: of a server with metrics, or of one that never showed any."""
        self.feed(None)
        limit_s = self._blind_limit_s if self._last is None else self._stall_s
        return limit_s is not None and self.idle_s >= limit_s


class Sampler:
    """Looks at a server about once a second in a thread of its own while a request runs (a context manager).

    The first look comes after one interval, so that short requests are not disturbed; after a token looks are
    rare and only feed the watchdog. `before` is the reading taken before the request: what its cache holds is
    not counted, and the watchdog knows from it that the server has metrics. `observe` is one look, without thread.
    """

    def __init__(
        self,
        scrape: Callable[[], Snapshot | None],
        *,
        tokens_total: int,
        capacity_tokens: int | None = None,
        before: Snapshot | None = None,
        prior: Cost | None = None,
        watchdog: Watchdog | None = None,
        on_sample: Callable[[Progress], None] | None = None,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scrape, self._total, self._capacity = scrape, tokens_total, capacity_tokens
        self._baseline = (before.kv_usage if before else None) or 0.0
        self._prior, self._watchdog = prior, watchdog
        if watchdog is not None and before is not None:
            watchdog.feed(before.activity())
        self._on_sample, self._interval_s, self._clock = on_sample, interval_s, clock
        self._start = clock()
        self._points: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._decoding = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self.samples: list[Progress] = []

    def __enter__(self) -> Self:
        self._start = self._clock()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def token_came(self, elapsed_s: float | None = None) -> None:
        """Take note of a token, the first of which ends the prefill (give this to the client as on_token)."""
        self._decoding = True
        if self._watchdog is not None:
            self._watchdog.touch()

    def _run(self) -> None:
        while not self._stop.wait(DECODE_INTERVAL_S if self._decoding else self._interval_s):
            self.observe()

    def observe(self) -> Progress:
        """Take one look now: feed the watchdog, keep a sample where tokens moved, and return what is known."""
        snapshot = self._scrape()
        if self._watchdog is not None:
            self._watchdog.feed(snapshot.activity() if snapshot else None)
        elapsed_s = self._clock() - self._start
        if self._decoding:
            return Progress(elapsed_s, self._total, self._total, eta_s=0.0)
        done = self._tokens_done(snapshot)
        if done and (not self._points or done > self._points[-1][1]):
            self._points.append((elapsed_s, done))
        known = self._points[-1][1] if self._points else done
        eta = eta_s(self._points, self._total, elapsed_s, self._prior)
        progress = Progress(elapsed_s, known, self._total, self._rate(elapsed_s), eta)
        last = self.samples[-1] if self.samples else None
        if last is None or last.tokens_done != known or elapsed_s - last.elapsed_s >= QUIET_ROW_S:
            self.samples.append(progress)
        if self._on_sample is not None:
            self._on_sample(progress)
        return progress

    def _tokens_done(self, snapshot: Snapshot | None) -> int | None:
        if snapshot is None or snapshot.kv_usage is None:
            return None
        capacity = self._capacity or snapshot.kv_capacity_tokens
        if capacity is None:
            return None
        return min(self._total, max(0, round((snapshot.kv_usage - self._baseline) * capacity)))

    def _rate(self, elapsed_s: float) -> float | None:
        recent = [point for point in self._points[-2:-40:-1] if point[0] >= elapsed_s - RATE_WINDOW_S]
        if not recent and len(self._points) > 1:
            recent = [self._points[-2]]
        if not recent:
            return None
        (first_s, first), (last_s, last) = recent[-1], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None


def progress_rows(samples: Iterable[Progress], **labels: Any) -> list[dict[str, Any]]:
    """Return rows of tables.PROGRESS; `labels` are those columns that name the request."""
    return [
        {
            **labels,
            "elapsed_s": sample.elapsed_s,
            "tokens_done": sample.tokens_done,
            "tokens_total": sample.tokens_total,
            "rate_tok_s": sample.rate_tok_s,
            "eta_s": sample.eta_s,
        }
        for sample in samples
    ]
