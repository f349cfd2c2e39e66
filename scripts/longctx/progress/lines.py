"""Lines that show what long work does: rewritten in place on a terminal, now and then elsewhere."""

import math
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Self, TextIO

from longctx.progress.console_log import BrokenPipeTolerantStream
from longctx.redaction import printable
from longctx.units import format_seconds, human_count

QUIET_S = 60.0
SHORTEST_INTERVAL_S = 0.2


class TerminalLine:
    """Shows one changing line. Not on a terminal: a full line at first and then at most every `quiet_s`."""

    def __init__(self, out: TextIO | None = None, quiet_s: float = QUIET_S) -> None:
        self._out, self._quiet_s = BrokenPipeTolerantStream(out or sys.stderr), quiet_s
        self._tty = self._out.isatty()
        self._shown, self._next = 0, -math.inf

    def show(self, text: str) -> None:
        """Replace the line's text."""
        text = printable(text)
        if self._tty:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._write("\r" + text.ljust(self._shown))
            self._shown = len(text)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + self._quiet_s
            self._write(text + "\n")

    def finish(self, last: str = "") -> None:
        """Clear the line before a permanent one, such as `last`, is printed."""
        clear = "\r" + " " * self._shown + "\r" if self._shown else ""
        self._shown = 0
        self._write(clear + (f"{last}\n" if last else ""))

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class ProgressLine:
    """`with ProgressLine("corpus", total) as progress: progress(done)`; `total` tokens, None when unknown.

    Not on a terminal: a line at the start and one at the end.
    """

    def __init__(self, label: str, total: int | None = None, out: TextIO | None = None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._line = TerminalLine(out, math.inf)
        self._start = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        goal = "" if self._total is None else f" ({human_count(self._total)} tokens)"
        self._line.show(f"{self._label}{goal} …")
        return self

    def __call__(self, done: int) -> None:
        """Show that `done` of the total are done; at most five times a second."""
        self._done = done
        now = time.monotonic()
        if now - self._shown >= SHORTEST_INTERVAL_S:
            self._shown = now
            self._line.show(self._text())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._line.finish(self._text() + ("" if kind is None else " (stopped)"))

    def _text(self) -> str:
        seconds = time.monotonic() - self._start
        of = f" of {human_count(self._total)}" if self._total else ""
        rate = f", {human_count(self._done / seconds)}/s" if seconds > 0.1 else ""
        return f"{self._label}: {human_count(self._done)}{of} tokens, {seconds:.1f} s{rate}"


def prefill_text(look: Mapping[str, Any]) -> str:
    """Return ' 50%, ETA 24 s, 32,768 of 65,536 tokens, 4,096 tok/s, elapsed 8.0 s' for fields of a PrefillProgress.

    A narrow terminal cuts the end, so what is waited for comes first.
    """
    done, total, rate_tok_s = look["tokens_done"], look["tokens_total"], look.get("rate_tok_s")
    rate = "?" if rate_tok_s is None else f"{rate_tok_s:,.0f}"
    eta, elapsed = format_seconds(look.get("eta_s")), format_seconds(look.get("elapsed_s"))
    return f"{min(1.0, done / total):4.0%}, ETA {eta}, {done:,} of {total:,} tokens, {rate} tok/s, elapsed {elapsed}"
