"""One line that shows what long work does: rewritten in place on a terminal, now and then elsewhere."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from longctx.say import Lasting

QUIET_S = 60.0


def format_seconds(seconds: float | None) -> str:
    """Return '0.4 s', '42 s', '3 min 20 s', '2 h 05 min', '1 d 3 h', or '?' for None."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


class TerminalLine:
    """Shows one changing line. Not on a terminal: a full line at first and then at most every QUIET_S."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = Lasting(out or sys.stderr), clock
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
