"""A connection without timeouts that can still be ended: about once a second it looks whether to go on."""

import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpcore

POLL_S = 1.0
CONNECT = {"timeout": 30.0}
DEATH_GRACE_S = 3.0  # a broken connection is often seen before the process is gone
# A server that says its engine is dead first tears down what it had on the GPU: 5 s were seen on one H200.
ENGINE_DEATH_GRACE_S = 30.0


def run_delay_s() -> float | None:
    """Return how long this thread has waited for a processor so far, in s; None where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="utf-8").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class Failure(Exception):
    """The request cannot give a measurement; `reason` is one of `longctx.measure.row.reasons`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class LifeProbe:
    """Asks `alive` about once in POLL_S while a request runs (a context manager), in a thread of its own.

    An answer may take seconds. The thread that reads the stream must not wait for it, or it would stamp tokens late:
    it looks at `dead`, the latest answer.
    """

    def __init__(self, alive: Callable[[], bool] | None) -> None:
        self.alive, self.dead = alive, False
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        if self.alive is not None:
            threading.Thread(target=self._run, args=(self.alive,), name="life probe", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()  # not joined: an answer that is still on its way is of no use

    def _run(self, alive: Callable[[], bool]) -> None:
        while not self._stop.wait(POLL_S):
            self.dead = not alive()

    def died(self, grace_s: float | None = None) -> bool:
        """Ask, after the request has ended, until the server is gone or `grace_s` (None: DEATH_GRACE_S) is over."""
        if self.alive is None:
            return False
        limit = time.monotonic() + (DEATH_GRACE_S if grace_s is None else grace_s)
        while self.alive():
            if time.monotonic() > limit:
                return False
            time.sleep(0.05)
        return True


@dataclass(slots=True)
class Watch:
    """The clock of one request, and the checks made while its connection waits.

    give_up_at: when to stop waiting for bytes that no longer matter; None where all do.
    """

    probe: LifeProbe
    stalled: Callable[[], bool] | None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    start: float | None = None
    last_read: float = 0.0
    next_check: float = 0.0
    sent_bytes: int = 0
    give_up_at: float | None = None

    def elapsed(self, moment: float) -> float:
        return moment - (moment if self.start is None else self.start)

    def check(self, silent: bool = True) -> None:
        """Raise Failure where the server died (not when bytes just came) or stalled; looks once in POLL_S only.

        ReadTimeout where nothing that matters is to come.
        """
        now = time.perf_counter()
        if now < self.next_check:
            return
        self.next_check = now + POLL_S
        if self.give_up_at is not None and now >= self.give_up_at:
            raise httpcore.ReadTimeout("the server does not end its answer")
        if silent and self.probe.dead:
            raise Failure("server_died", "the server process ended during the request")
        if self.stalled is not None and self.stalled():
            raise Failure("timeout", "the server showed no progress for the configured stall time")


class WatchedStream(httpcore.NetworkStream):
    """A connection that never times out, notes when bytes arrive, and lets `Watch` end it."""

    def __init__(self, inner: httpcore.NetworkStream, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while True:
            try:
                received = self._inner.read(max_bytes, POLL_S)
            except httpcore.ReadTimeout:
                self._watch.check()
                continue
            self._watch.last_read = time.perf_counter()
            self._watch.check(silent=False)
            return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._watch.start is None:
            self._watch.started_at, self._watch.start = datetime.now(UTC), time.perf_counter()
        sock: socket.socket = self._inner.get_extra_info("socket")
        sock.settimeout(POLL_S)
        view = memoryview(buffer)
        while view:
            try:
                sent = sock.send(view)
            except TimeoutError as error:
                self._watch.check()
                if select.select([sock], [], [], 0)[0]:
                    raise httpcore.WriteError("the server answered before it had read the request") from error
                continue
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error
            self._watch.sent_bytes += sent
            view = view[sent:]

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return WatchedStream(self._inner.start_tls(*args, **kwargs | CONNECT), self._watch)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class WatchedBackend(httpcore.SyncBackend):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return WatchedStream(super().connect_tcp(*args, **kwargs | CONNECT), self._watch)
