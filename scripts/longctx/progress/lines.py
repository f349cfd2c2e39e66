"""One line that shows what long work does: rewritten in place on a terminal, now and then elsewhere."""

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from longctx.progress.log import BrokenPipeTolerantStream
from longctx.units import human_count

QUIET_S = 60.0


class TerminalLine:
    """Shows one changing line. Not on a terminal: a full line at first and then at most every QUIET_S."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = BrokenPipeTolerantStream(out or sys.stderr), clock
        self._tty = self._out.isatty()
        self._shown = 0
        self._next = -float("inf")

    def show(self, text: str) -> None:
        if self._tty:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._out.write("\r" + text.ljust(self._shown))
            self._shown = len(text)
            self._out.flush()
        elif self._clock() >= self._next:
            self._next = self._clock() + QUIET_S
            self._out.write(text + "\n")
            self._out.flush()

    def finish(self) -> None:
        """Clear the line, so that a lasting one can be written."""
        if self._tty and self._shown:
            self._out.write("\r" + " " * self._shown + "\r")
            self._shown = 0
            self._out.flush()


class ProgressLine:
    """`with Progress("tokens", total) as progress: progress(done)`; `total` None when unknown."""

    def __init__(self, label: str, total: int | None = None, unit: str = "tokens", out: TextIO | None = None) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._out = BrokenPipeTolerantStream(sys.stderr if out is None else out)
        self._live = self._out.isatty()
        self._start = self._shown = time.monotonic()
        self._done = 0

    def __enter__(self) -> "ProgressLine":
        goal = "" if self.total is None else f" ({human_count(self.total)} {self.unit})"
        self._out.write(f"{self.label}{goal} …" + ("" if self._live else "\n"))
        self._out.flush()
        return self

    def __call__(self, done: int) -> None:
        """Show that `done` of the total are done; at most five times a second."""
        self._done = done
        now = time.monotonic()
        if self._live and now - self._shown >= 0.2:
            self._shown = now
            self._out.write("\r\x1b[K" + self._line())
            self._out.flush()

    def _line(self) -> str:
        seconds = time.monotonic() - self._start
        of = f" of {human_count(self.total)}" if self.total else ""
        rate = f", {human_count(self._done / seconds)}/s" if seconds > 0.1 else ""
        return f"{self.label}: {human_count(self._done)}{of} {self.unit}, {seconds:.1f} s{rate}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        end = "" if kind is None else " (stopped)"
        self._out.write(("\r\x1b[K" if self._live else "") + self._line() + end + "\n")
        self._out.flush()
