"""Progress lines on stderr: a moving line on a terminal, only a start and an end line elsewhere."""

import sys
import time
from types import TracebackType
from typing import TextIO

from longctx.say import Lasting


def human_count(value: float) -> str:
    """Return 1.5M for 1500000: three digits or so, for people."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


class Progress:
    """`with Progress("tokens", total) as progress: progress(done)`; `total` None when unknown."""

    def __init__(self, label: str, total: int | None = None, unit: str = "tokens", out: TextIO | None = None) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._out = Lasting(sys.stderr if out is None else out)
        self._live = self._out.isatty()
        self._start = self._shown = time.monotonic()
        self._done = 0

    def __enter__(self) -> "Progress":
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
