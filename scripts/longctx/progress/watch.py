"""`longctx watch`: the status file as a few plain lines, refreshed. It needs no Snakemake."""

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from longctx.processes import cpu_affinity
from longctx.processes.identity import writer_gone
from longctx.progress.lines import prefill_text, progress_bar
from longctx.progress.status_file import read_status
from longctx.units import format_seconds

STALE_S = 120.0
BAR_WIDTH = 30
MARKS = {"done": "+", "running": ">", "failed": "!", "interrupted": "x", "waiting": "."}
LEGEND = "+ done  > running  ! failed  x interrupted  . waiting"
GLUE = "\N{NO-BREAK SPACE}"  # for the wrapping only, never written
Gone = Callable[[dict[str, Any]], bool | None]


def render(status: dict[str, Any], now: float, gone: Gone = writer_gone, bar_width: int = BAR_WIDTH) -> list[str]:
    """Return the lines that show `status` at wall-clock time `now`."""
    points: dict[str, dict[str, Any]] = dict(status["points"])
    current: dict[str, dict[str, Any]] = status["current"]
    dead = {point for point, entry in current.items() if gone(entry)}
    points |= {point: {"state": "interrupted"} for point in dead}
    states = [entry["state"] for entry in points.values()]
    counts = [f"{states.count('done')} of {len(states)} points done"]
    counts += [f"{states.count(state)} {state}" for state in ("failed", "interrupted", "running") if state in states]
    age_s = max(0.0, now - status.get("updated_at", now))
    lines = [f"campaign {status.get('campaign')}: {', '.join(counts)}; last news {format_seconds(age_s)} ago"]
    lines += [*_ladder(points), LEGEND]
    for point, entry in current.items():
        lines += _current(point, entry, now, point in dead, bar_width)
    if not current:
        lines += _between(status, gone)
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
        f"{mode:12} " + "  ".join(f"{length}{GLUE}{marks}" for length, marks in rungs.items())
        for mode, rungs in modes.items()
    ]


def _between(status: dict[str, Any], gone: Gone) -> list[str]:
    """Return a line about the run while no point is measured, as far as this host can see it."""
    run = status.get("run")
    if _all_over(status) or not run or (ended := gone(run)) is None:
        return []
    if ended:
        return ["no run is at work: the same command again continues"]
    return [f"nothing is measured at the moment; the run (process {run['pid']} on {run['host']}) is at work"]


def _current(point: str, entry: dict[str, Any], now: float, dead: bool, bar_width: int) -> list[str]:
    age_s = max(0.0, now - entry.get("updated_at", now))
    head = f"{point} on {entry.get('host')} (pid {entry.get('pid')}): {entry.get('phase')}"
    if dead:
        return [f"{head}; the process that wrote this has ended: run the same command again to continue"]
    if age_s > STALE_S:
        head += f"; no news for {format_seconds(age_s)}: it may be gone"
    lines = [f"{head}, {format_seconds(max(0.0, now - entry.get('phase_started_at', now)))}"]
    done, total = entry.get("tokens_done"), entry.get("tokens_total")
    if done is not None and total:
        seconds = entry.get("elapsed_s"), entry.get("eta_s")
        bar = progress_bar(done / total, bar_width)
        lines.append(f"{bar} {prefill_text(done, total, entry.get('rate_tok_s'), *seconds)}")
    if entry.get("log_line"):
        lines.append(f"server log: {entry['log_line']}")
    return lines


def watch(
    results: Path,
    *,
    once: bool = False,
    interval_s: float = 1.0,
    out: TextIO | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show `results`/status.json until every point is finished and no run is at work (or once); return the exit
    status."""
    out = out or sys.stdout
    redraw = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    shown: list[str] = []
    while True:
        status = read_status(results / "status.json")
        _keep_awake(status)
        size = shutil.get_terminal_size()
        lines = _lines(results, status, min(BAR_WIDTH, max(4, size.columns - 8)))
        news = [line.partition("; last news")[0] for line in lines]
        if redraw and not once:
            out.write("\x1b[H\x1b[J" + "\n".join(_fit(lines, size.columns, size.lines)) + "\n")
        elif once or news != shown:
            out.write("\n".join(line.replace(GLUE, " ") for line in lines) + "\n")
        shown = news
        out.flush()
        if status is None and once:
            return 1
        if once or (status is not None and _finished(status)):
            return 0
        sleep(interval_s)


def _keep_awake(status: dict[str, Any] | None) -> None:
    """Stay on the measurement's processors: on those of a CPU server this would sleep for seconds."""
    for entry in (status or {}).get("current", {}).values():
        if writer_gone(entry) is False:
            cpu_affinity.follow(int(entry.get("pid", 0)))


def _lines(results: Path, status: dict[str, Any] | None, bar_width: int) -> list[str]:
    if status is not None:
        return render(status, time.time(), bar_width=bar_width)
    if not results.is_dir():
        return [f"nothing to watch: there is no folder {results}"]
    return [f"nothing to watch: {results}/status.json is not there yet; it appears when a run starts"]


def _fit(lines: list[str], columns: int, rows: int) -> list[str]:
    """Wrap lines at the terminal's width, and drop the last ones where it is too low for them."""
    fitted = []
    for line in lines:
        parts = textwrap.wrap(line, max(columns, 10), subsequent_indent="  ", break_on_hyphens=False) or [""]
        fitted += parts[: 1 if line.startswith("server log: ") else None]
    if len(fitted) >= rows > 2:
        left = len(fitted) - (rows - 2)
        fitted = [*fitted[: rows - 2], f"... {left} lines more: longctx watch --once"]
    return [line.replace(GLUE, " ") for line in fitted]


def _finished(status: dict[str, Any]) -> bool:
    """Return whether no news is to come; of a run on another host only its points are known."""
    run = status.get("run")
    return not status["current"] and _all_over(status) and (not run or writer_gone(run) is not False)


def _all_over(status: dict[str, Any]) -> bool:
    return all(entry["state"] in ("done", "failed") for entry in status["points"].values())
