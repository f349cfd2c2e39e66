"""`longctx watch`: the status file as a few plain lines, refreshed. It needs no Snakemake."""

import os
import shutil
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, TextIO

from longctx.processes import cpu_affinity
from longctx.processes.process_identity import writer_gone
from longctx.progress.lines import prefill_text
from longctx.progress.status_file import read_status
from longctx.redaction import printable
from longctx.units import format_seconds

STALE_S = 120.0
BAR_WIDTH = 30
MARKS = {"done": "+", "running": ">", "failed": "!", "interrupted": "x", "waiting": "."}
LEGEND = "+ done  > running  ! failed  x interrupted  . waiting"


def render(status: dict[str, Any], now: float) -> list[str]:
    """Return the lines that show `status` at wall-clock time `now`."""
    current: dict[str, dict[str, Any]] = status["current"]
    dead = {point: {"state": "interrupted"} for point, entry in current.items() if writer_gone(entry)}
    points: dict[str, dict[str, Any]] = status["points"] | dead
    states = [entry["state"] for entry in points.values()]
    counts = [f"{states.count('done')} of {len(states)} points done"]
    counts += [f"{states.count(state)} {state}" for state in ("failed", "interrupted", "running") if state in states]
    age_s = max(0.0, now - status.get("updated_at", now))
    lines = [f"campaign {status.get('campaign')}: {', '.join(counts)}; last news {format_seconds(age_s)} ago"]
    lines += [*_ladder(points), LEGEND]
    for point, entry in current.items():
        lines += _current(point, entry, now, point in dead)
    if not current and not _all_over(status):
        lines += _between(status.get("run"))
    failed = {point: entry.get("reason") for point, entry in points.items() if entry["state"] == "failed"}
    lines += [f"{point}: failed, {reason}" for point, reason in failed.items() if reason]
    return list(map(printable, lines))


def _ladder(points: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line per mode: each length with one mark per pass."""
    modes: dict[str, dict[str, str]] = {}
    for point, entry in points.items():
        mode, length, _ = point.split("/")
        rungs = modes.setdefault(mode, {})
        rungs[length] = rungs.get(length, "") + MARKS.get(entry["state"], "?")
    return [f"{mode:12} " + "  ".join(map(" ".join, rungs.items())) for mode, rungs in modes.items()]


def _between(run: dict[str, Any] | None) -> list[str]:
    """Return a line about the run while no point is measured, as far as this host can see it."""
    if not run or (ended := writer_gone(run)) is None:
        return []
    if ended:
        return ["no run is at work: the same command again continues"]
    return [f"nothing is measured at the moment; the run (process {run['pid']} on {run['host']}) is at work"]


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
        width = min(BAR_WIDTH, max(4, shutil.get_terminal_size().columns - 8))
        lines.append(f"[{'#' * int(min(1.0, done / total) * width):-<{width}}] {prefill_text(entry)}")
    if entry.get("log_line"):
        lines.append(f"server log: {entry['log_line']}")
    return lines


def watch(results: Path, *, once: bool = False, interval_s: float = 1.0, out: TextIO | None = None) -> int:
    """Show `results`/status.json until all points are over and no run is at work (or once); return the exit status."""
    out = out or sys.stdout
    redraw = not once and out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    shown: list[str] = []
    while True:
        status = read_status(results / "status.json")
        _keep_awake(status)
        lines = _nothing(results) if status is None else render(status, time.time())
        news = [line.partition("; last news")[0] for line in lines]
        if redraw:
            out.write("\x1b[H\x1b[J" + "\n".join(_wrap(lines)) + "\n")
        elif once or news != shown:
            out.write("\n".join(lines) + "\n")
        shown = news
        out.flush()
        if once or (status is not None and _finished(status)):
            return int(status is None)
        time.sleep(interval_s)


def _keep_awake(status: dict[str, Any] | None) -> None:
    """Stay on the measurement's processors: on those of a CPU server this would sleep for seconds."""
    for entry in (status or {}).get("current", {}).values():
        if writer_gone(entry) is False:
            cpu_affinity.follow(int(entry.get("pid", 0)))


def _nothing(results: Path) -> list[str]:
    if not results.is_dir():
        return [f"nothing to watch: there is no folder {results}"]
    return [f"nothing to watch: {results}/status.json is not there yet; it appears when a run starts"]


def _wrap(lines: list[str]) -> list[str]:
    """Wrap lines at the terminal's width; of the server's log only the first part is shown."""
    width, wrapped = max(shutil.get_terminal_size().columns, 10), []
    for line in lines:
        parts = textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
        wrapped += parts[:1] if line.startswith("server log: ") else parts
    return wrapped


def _finished(status: dict[str, Any]) -> bool:
    """Return whether no news is to come; of a run on another host only its points are known."""
    run = status.get("run")
    return not status["current"] and _all_over(status) and (not run or writer_gone(run) is not False)


def _all_over(status: dict[str, Any]) -> bool:
    return all(entry["state"] in ("done", "failed") for entry in status["points"].values())
