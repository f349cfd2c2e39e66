"""Shows a running measurement: one line on the terminal, and the status file for `longctx watch`."""

import functools
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from longctx.campaign.campaign import Campaign
from longctx.campaign.files import output_path, status_path
from longctx.campaign.point import Point
from longctx.progress.lines import TerminalLine, prefill_text
from longctx.progress.sampler import PrefillProgress
from longctx.progress.status_file import State, StatusWriter, note_run
from longctx.units import format_seconds

# vLLM prints its whole configuration in one line.
LOG_CHARACTERS = 160


class Display:
    """The current point's state. `say` writes permanent lines (and the log); this object shows the moving line."""

    def __init__(self, campaign: Campaign, say: Callable[[str], None]) -> None:
        self._log, self._line = say, TerminalLine()
        expected = [_key(point) for point in campaign.points()]
        self._new_writer = functools.partial(StatusWriter, status_path(campaign), campaign.name, expected)
        self._writer: StatusWriter | None = None
        self._name, self._phase, self._since = "", "", time.monotonic()

    def say(self, text: str) -> None:
        self._line.finish()
        self._log(text)

    def begin(self, point: Point, phase: str) -> None:
        """Make `point` the current one."""
        self._writer, self._name = self._new_writer(_key(point)), point.name
        self.phase(phase)

    def phase(self, text: str) -> None:
        self._phase, self._since = f"{self._name}: {text}", time.monotonic()
        self._show(self._phase, phase=text)

    def log_line(self, line: str) -> None:
        """Show the server's last log line while it starts."""
        text = f"{self._phase}, {format_seconds(time.monotonic() - self._since)}: {line}"
        self._show(text, log_line=line[:LOG_CHARACTERS])

    def sample(self, now: PrefillProgress) -> None:
        """Show one look at a prefill."""
        fields = asdict(now)
        known = f", {format_seconds(now.elapsed_s)}" if now.tokens_done is None else f": {prefill_text(fields)}"
        self._show(f"{self._phase}{known}", **fields)

    def _show(self, text: str, **fields: Any) -> None:
        if self._writer:
            self._writer.update(**fields)
        self._line.show(text)

    def end(self, state: State, reason: str | None = None) -> None:
        """Close the current point as 'done', 'failed' or 'interrupted'."""
        self._line.finish()
        if self._writer:
            self._writer.write(state, reason)
        self._writer = None

    def close(self) -> None:
        """Mark a point that is still open as interrupted."""
        if self._writer:
            self.end("interrupted")

    def done(self, point: Point) -> None:
        """Mark a point as done, whenever it was measured."""
        self._new_writer(_key(point)).write("done")


def note_campaign(campaign: Campaign) -> None:
    """Write into the status file that this run is at work, and which points have their measurement."""
    points = campaign.points()
    done = {_key(point) for point in points if output_path(campaign, point, "measurements").exists()}
    note_run(status_path(campaign), campaign.name, [_key(point) for point in points], done)


def _key(point: Point) -> str:
    """A point as the status file names it."""
    return f"{point.mode}/{point.label}/pass{point.pass_index}"
