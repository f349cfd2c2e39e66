"""The status file, its readers and the one-line display."""

import io
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from longctx import cli
from longctx.processes.process_identity import this_process, writer_gone
from longctx.progress import status_file, watch
from longctx.progress.status_file import StatusWriter, note_run, read_status
from longctx.progress.watch import render
from longctx.storage import locks
from longctx.units import format_seconds
from patching import replace_in

POINTS = [f"prefill/{length}/pass{p}" for length in ("1Ki", "64Ki") for p in (1, 2)]


@contextmanager
def writer(folder: Path, point: str = POINTS[0], **options: Any) -> Iterator[StatusWriter]:
    """A point's writer, used as a measurement uses it: what is open at the end is interrupted."""
    path = folder / "status.json"
    status = StatusWriter(path, options.get("campaign", "default"), options.get("expected", POINTS), point)
    status.update(phase="start")
    try:
        yield status
    finally:
        if point in (read_status(path) or {"current": ()})["current"]:
            status.write("interrupted")


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["watch", str(folder), "--once"]) == 0
    return capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_campaign_from_start_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with writer(tmp_path) as first:
        first.update(phase="prefill", tokens_done=256, tokens_total=1024, rate_tok_s=128.0, elapsed_s=2.0, eta_s=6.0)
        text = shown(tmp_path, capsys)
        assert "0 of 4 points done, 1 running" in text
        assert "1Ki >.  64Ki .." in text
        assert " 25%, ETA 6.0 s, 256 of 1,024 tokens, 128 tok/s, elapsed 2.0 s" in text
        first.write("done")
    with writer(tmp_path, POINTS[1]) as second:
        second.write("failed", "server_died")
    text = shown(tmp_path, capsys)
    assert "1 of 4 points done, 1 failed" in text
    assert f"{POINTS[1]}: failed, server_died" in text
    assert not list(tmp_path.glob(".status.json.[0-9]*"))


UNFIT = "\x1b[2J\x07 half \ud83d \x00"


def test_a_server_s_words_command_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with writer(tmp_path) as first:
        first.update(phase="starting", log_line=UNFIT)
        assert shown(tmp_path, capsys).replace("\n", "").isprintable()
        first.write("failed", UNFIT)
    text = shown(tmp_path, capsys)
    assert "half" in text
    assert text.replace("\n", "").isprintable()


def test_a_status_file_of_another_program_commands_no_terminal(tmp_path: Path) -> None:
    status = {"points": {POINTS[0]: {"state": "failed", "reason": UNFIT}}, "current": {}, "campaign": UNFIT}
    assert all(line.isprintable() for line in render(status, 0.0))


KILLED = """
import os, sys
from pathlib import Path
from longctx.progress.status_file import StatusWriter
point = "prefill/1Ki/pass1"
writer = StatusWriter(Path(sys.argv[1]), campaign="default", point=point, expected=[point])
writer.update(phase="prefill", tokens_done=1, tokens_total=2)
os.kill(os.getpid(), 9)
"""


@pytest.mark.process
def test_a_writer_that_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"PYTHONPATH": str(Path(status_file.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "status.json")], env=environment, check=False)
    text = shown(tmp_path, capsys)
    assert "1 interrupted" in text
    assert "has ended: run the same command again to continue" in text
    with writer(tmp_path, POINTS[1]):
        content = read_status(tmp_path / "status.json")
    assert list(content["current"]) == [POINTS[1]]
    assert content["points"][POINTS[0]]["state"] == "interrupted"


def test_a_process_number_that_was_given_away_again() -> None:
    entry = this_process()
    assert writer_gone(entry) is False
    assert writer_gone({**entry, "start": entry["start"] - 1000}) is True
    assert writer_gone({**entry, "boot": "an earlier one"}) is True
    assert writer_gone({**entry, "host": "another-node"}) is None
    assert writer_gone({"host": platform.node()}) is True


def test_a_wall_clock_that_was_set_makes_nobody_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(tmp_path) as one:
        one.update(phase="prefill")
        # The kernel gives the time of boot, and so a process's start, by the wall clock of the moment.
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: 4e9)
        monkeypatch.setattr(time, "time", lambda: 4e9)
        entry = read_status(tmp_path / "status.json")["current"][POINTS[0]]
        assert writer_gone(entry) is False


def test_a_disk_without_locks_still_shows_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with writer(tmp_path) as one:
        one.update(phase="prefill")
        assert read_status(tmp_path / "status.json")["current"][POINTS[0]]["phase"] == "prefill"


def run_of(folder: Path, done: list[str]) -> dict[str, Any]:
    note_run(folder / "status.json", "default", POINTS, done)
    content = read_status(folder / "status.json")
    assert content is not None
    return content


def test_a_run_tells_what_is_done_whatever_became_of_the_file(tmp_path: Path) -> None:
    with writer(tmp_path, POINTS[1]) as second:
        second.write("failed", "server_died")
    with writer(tmp_path, POINTS[2]) as third:
        third.write("done")  # its measurement was deleted since
    states = [entry["state"] for entry in run_of(tmp_path, [POINTS[0]])["points"].values()]
    assert states == ["done", "failed", "waiting", "waiting"]
    (tmp_path / "status.json").unlink()
    states = [entry["state"] for entry in run_of(tmp_path, [POINTS[0]])["points"].values()]
    assert states == ["done", "waiting", "waiting", "waiting"]


def test_between_two_points_the_run_is_named_and_a_dead_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(content: dict[str, Any], gone: bool | None) -> list[str]:
        monkeypatch.setattr(watch, "writer_gone", lambda _: gone)
        return render(content, 0.0)

    content = run_of(tmp_path, [])
    named = f"nothing is measured at the moment; the run (process {os.getpid()} on {platform.node()}) is at work"
    assert named in render(content, 0.0)
    assert "no run is at work: the same command again continues" in lines(content, True)
    assert not [line for line in lines(content, None) if "at work" in line]
    over = run_of(tmp_path, POINTS)
    assert not [line for line in lines(over, True) if "at work" in line]


def test_watching_does_not_end_while_a_run_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(tmp_path, POINTS)
    looks = iter([False, False, True])
    monkeypatch.setattr(watch, "writer_gone", lambda _: next(looks))
    slept: list[float] = []
    replace_in(monkeypatch, watch, "time", sleep=slept.append)
    assert watch.watch(tmp_path, out=io.StringIO()) == 0
    assert len(slept) == 2


def test_a_silent_writer_on_another_node() -> None:
    entry = {"host": "node7", "pid": 1, "phase": "prefill", "phase_started_at": 0.0, "updated_at": 1000.0}
    content = {"campaign": "c", "points": {"a/1Ki/pass1": {"state": "running"}}, "current": {"a/1Ki/pass1": entry}}
    assert not [line for line in render(content, 1010.0) if "may be gone" in line]
    assert [line for line in render(content, 1400.0) if "no news for 6 min 40 s: it may be gone" in line]


@pytest.mark.parametrize(("done", "hashes"), [(0, 0), (50, 15), (99, 29), (100, 30), (120, 30)])
def test_the_bar(done: int, hashes: int) -> None:
    entry = {"host": "node7", "pid": 1, "phase": "prefill", "tokens_done": done, "tokens_total": 100}
    content = {"campaign": "c", "points": {"a/1Ki/pass1": {"state": "running"}}, "current": {"a/1Ki/pass1": entry}}
    assert render(content, 0.0)[-1].startswith("[" + "#" * hashes + "-" * (30 - hashes) + "] ")


def test_two_writers_share_the_file(tmp_path: Path) -> None:
    with writer(tmp_path, POINTS[0]) as first, writer(tmp_path, POINTS[1]) as second:
        first.update(phase="prefill")
        second.update(phase="server start", log_line="loading weights")
        content = read_status(tmp_path / "status.json")
    assert {point: entry["phase"] for point, entry in content["current"].items()} == {
        POINTS[0]: "prefill",
        POINTS[1]: "server start",
    }


def test_a_new_phase_forgets_the_numbers_of_the_last(tmp_path: Path) -> None:
    with writer(tmp_path) as one:
        one.update(phase="prefill", tokens_done=7, log_line="x")
        one.update(phase="decode")
        entry = read_status(tmp_path / "status.json")["current"][POINTS[0]]
    assert "tokens_done" not in entry
    assert entry["log_line"] == "x"


def test_frequent_news_are_not_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    replace_in(monkeypatch, status_file, "time", monotonic=lambda: now[0])
    with writer(tmp_path) as one:
        for count in range(10):
            now[0] += 0.2
            one.update(tokens_done=count)
        written = read_status(tmp_path / "status.json")["current"][POINTS[0]]["tokens_done"]
    assert written == 8


def test_a_disk_that_is_full_or_a_folder_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with writer(tmp_path / "file") as one:
        one.update(phase="prefill")
    assert read_status(tmp_path / "file" / "status.json") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1}'])
def test_a_file_that_is_not_a_status(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "status.json").write_text(content)
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    assert "nothing to watch" in capsys.readouterr().out
    with writer(tmp_path) as one:
        one.write("done")
    assert read_status(tmp_path / "status.json") is not None


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    assert "appears when a run starts" in capsys.readouterr().out
    assert cli.main(["watch", str(tmp_path / "absent"), "--once"]) == 1
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().out


@pytest.mark.parametrize(("term", "clears"), [("xterm", True), ("dumb", False), (None, False)])
def test_watching_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: str | None, clears: bool
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    if term:
        monkeypatch.setenv("TERM", term)
    out = Terminal()
    states = iter([None, ("running", 1), ("running", 1), ("running", 2), ("done", None)])

    def sleep(_: float) -> None:
        state = next(states)
        if state is None:
            return
        name, done = state
        now = 0.0
        entry = {
            "phase": "prefill",
            "phase_started_at": now,
            "updated_at": now,
            "host": "elsewhere",
            "tokens_done": done,
            "tokens_total": 2,
        }
        current = {"p/1Ki/pass1": entry} if done else {}
        content = {
            "format": 1,
            "campaign": "c",
            "updated_at": now,
            "points": {"p/1Ki/pass1": {"state": name}},
            "current": current,
        }
        (tmp_path / "status.json").write_text(json.dumps(content))

    replace_in(monkeypatch, watch, "time", sleep=sleep)
    assert watch.watch(tmp_path, out=out) == 0
    text = out.getvalue()
    assert ("\x1b[" in text) is clears
    assert text.isascii()
    assert "1 of 1 points done" in text


LADDER = [f"prefill/{2**n}{unit}/pass{p}" for unit in ("Ki", "Mi") for n in range(10) for p in (1, 2, 3)][:51]


@pytest.mark.parametrize("columns", [30, 45, 80, 132])
def test_a_narrow_terminal_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    replace_in(monkeypatch, watch, "shutil", get_terminal_size=lambda: os.terminal_size((columns, 24)))
    out = Terminal()
    at = {
        "phase": "measuring, cold 0",
        "tokens_done": 22_020_096,
        "tokens_total": 1 << 26,
        "rate_tok_s": 1664.0,
        "elapsed_s": 4320.0,
        "eta_s": 35940.0,
    }
    with writer(tmp_path, LADDER[-1], campaign="mi355x", expected=LADDER) as one:
        one.update(**at)
        replace_in(monkeypatch, watch, "time", sleep=interrupt)
        with pytest.raises(KeyboardInterrupt):
            watch.watch(tmp_path, out=out)
    lines = out.getvalue().removeprefix("\x1b[H\x1b[J").splitlines()
    assert max(map(len, lines)) <= columns
    assert out.getvalue().isascii()
    whole = " ".join(line.strip() for line in lines)
    for part in ("64Mi ..>", "ETA 9 h 59 min", "22,020,096 of 67,108,864 tokens", "1,664 tok/s", "elapsed 1 h 12 min"):
        assert part in whole


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def test_what_is_no_terminal_gets_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in(monkeypatch, watch, "shutil", get_terminal_size=lambda: os.terminal_size((40, 24)))
    out = io.StringIO()
    with writer(tmp_path) as one:
        one.update(phase="x", log_line="y" * 100)
        replace_in(monkeypatch, watch, "time", sleep=interrupt)
        with pytest.raises(KeyboardInterrupt):
            watch.watch(tmp_path, out=out)
    assert "y" * 100 in out.getvalue()


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "x"])
def test_a_bad_interval_is_one_sentence(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as wrong:
        cli.main(["watch", "results", "--interval", interval])
    assert wrong.value.code == 2
    assert "--interval" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(["--help"])
    assert done.value.code == 0
    assert "watch" in capsys.readouterr().out
    with pytest.raises(SystemExit) as wrong:
        cli.main([])
    assert wrong.value.code == 2


@pytest.mark.process
def test_as_a_program_and_into_a_closed_pipe(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(Path(status_file.__file__).parents[2]), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-W", "error", "-m", "longctx.cli", "watch", str(tmp_path), "--once"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.process
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str) -> None:
    with writer(tmp_path) as status:
        status.update(phase="pr\u4e2dfill")
        command = [sys.executable, "-m", "longctx.cli", "watch", str(tmp_path), "--once"]
        environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        environment["PYTHONPATH"] = str(Path(status_file.__file__).parents[2])
        done = subprocess.run(command, env=environment, capture_output=True, encoding=encoding, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pr\\u4e2dfill" in done.stdout


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.04, "0.0 s"), (9.94, "9.9 s"), (9.99, "10.0 s"), (59.6, "1 min 00 s"), (3599.7, "1 h 00 min"),
     (200, "3 min 20 s"), (40320, "11 h 12 min"), (97200, "1 d 3 h")],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


def test_points_that_the_campaign_no_longer_has_are_forgotten(tmp_path: Path) -> None:
    with writer(tmp_path) as first:
        first.write("done")
    with writer(tmp_path, POINTS[1], expected=POINTS[1:2]) as second:
        second.write("done")
    content = read_status(tmp_path / "status.json")
    assert content is not None
    assert content["points"] == {POINTS[1]: {"state": "done"}}
