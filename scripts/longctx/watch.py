"""`longctx watch`: the status file as a few plain lines, refreshed; needs neither Snakemake nor a clever terminal."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from longctx.status import read_status, writer_gone
from longctx.terminal import format_seconds

STALE_S = 120.0
BAR_WIDTH = 30
MARKS = {"done": "+", "running": ">", "failed": "!", "interrupted": "x", "waiting": "."}
LEGEND = "+ done  > running  ! failed  x interrupted  . waiting"


def render(
    status: dict[str, Any], now: float, gone: Callable[[dict[str, Any]], bool | None] = writer_gone
) -> list[str]:
    """Return the lines that show `status` at wall-clock time `now`."""
    points: dict[str, dict[str, Any]] = dict(status.get("points", {}))
    current: dict[str, dict[str, Any]] = status.get("current", {})
    dead = {point for point, entry in current.items() if gone(entry)}
    points |= {point: {"state": "interrupted"} for point in dead}
    states = [entry["state"] for entry in points.values()]
    counts = [f"{states.count('done')} of {len(states)} points done"]
    counts += [f"{states.count(state)} {state}" for state in ("failed", "interrupted", "running") if state in states]
    age_s = max(0.0, now - status.get("updated_at", now))
    lines = [f"campaign {status.get('campaign')}: {', '.join(counts)}; last news {format_seconds(age_s)} ago"]
    lines += [*_ladder(points), LEGEND]
    for point, entry in current.items():
        lines += _current(point, entry, now, point in dead)
    lines += [
        f"{point}: {entry['state']}, {entry['reason']}"
        for point, entry in points.items()
        if entry["state"] == "failed" and entry.get("reason")
    ]
    return lines


def _ladder(points: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line per mode: each length with one mark per pass."""
    modes: dict[str, dict[str, str]] = {}
    for point, entry in points.items():
        mode, _, rest = point.partition("/")
        length = rest.partition("/")[0]
        rungs = modes.setdefault(mode, {})
        rungs[length] = rungs.get(length, "") + MARKS.get(entry["state"], "?")
    return [
        f"{mode:12} " + "  ".join(f"{length} {marks}".strip() for length, marks in rungs.items())
        for mode, rungs in modes.items()
    ]


def _current(point: str, entry: dict[str, Any], now: float, dead: bool) -> list[str]:
    age_s = max(0.0, now - entry.get("updated_at", now))
    head = f"{point} on {entry.get('host')} (pid {entry.get('pid')}): {entry.get('phase')}"
    if dead:
        return [f"{head}; the process that wrote this has ended: run the same command again to continue"]
    if age_s > STALE_S:
        head += f"; no news for {format_seconds(age_s)}: it may be gone"
    lines = [f"{head}, {format_seconds(max(0.0, now - entry.get('phase_started_at', now)))}"]
    done, total = entry.get("tokens_done"), entry.get("tokens_total")
    if done is not None and total:
        lines.append(progress_line(done, total, entry.get("rate_tok_s"), entry.get("elapsed_s"), entry.get("eta_s")))
    if entry.get("log_line"):
        lines.append(f"server log: {entry['log_line']}")
    return lines


def progress_line(done: int, total: int, rate_tok_s: float | None, elapsed_s: float | None, eta_s: float | None) -> str:
    """Return '[####----] 50 %  32,768 of 65,536 tokens, 4,096 tok/s, elapsed 8.0 s, ETA 24 s'."""
    share = min(1.0, done / total)
    bar = "#" * int(share * BAR_WIDTH)
    rate = "? tok/s" if rate_tok_s is None else f"{rate_tok_s:,.0f} tok/s"
    return (
        f"[{bar:-<{BAR_WIDTH}}] {share:4.0%}  {done:,} of {total:,} tokens, {rate}, "
        f"elapsed {format_seconds(elapsed_s)}, ETA {format_seconds(eta_s)}"
    )


def watch(
    results: Path,
    *,
    once: bool = False,
    interval_s: float = 1.0,
    out: TextIO | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show `results`/status.json until every point is finished (or once); return the exit status."""
    out = out or sys.stdout
    redraw = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    shown: list[str] = []
    while True:
        status = read_status(results / "status.json")
        if status is None:
            lines = [f"nothing to watch: {results}/status.json is not there yet; it appears when a measurement starts"]
        else:
            lines = render(status, time.time())
        width = shutil.get_terminal_size().columns
        lines = [line if once else line[:width] for line in lines]
        if redraw and not once:
            out.write("\x1b[H\x1b[J" + "\n".join(lines) + "\n")
        elif once or [line.partition("; last news")[0] for line in lines] != shown:
            out.write("\n".join(lines) + "\n")
        shown = [line.partition("; last news")[0] for line in lines]
        out.flush()
        if status is None and once:
            return 1
        if once or (status is not None and _finished(status)):
            return 0
        sleep(interval_s)


def _finished(status: dict[str, Any]) -> bool:
    return not status["current"] and all(entry["state"] in ("done", "failed") for entry in status["points"].values())
