"""The reaper's parts: masking in the log, full disks, process identity."""

import errno
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from longctx.processes import reaper
from longctx.processes.reaper import LogPump
from longctx.redaction import MASK, SHAPES


def pumped(path: Path, pieces: list[bytes], secrets: list[str]) -> bytes:
    """Return what the log holds after the server wrote `pieces`."""
    source, sink = os.pipe()
    pump = LogPump(source, str(path), secrets, MASK, SHAPES)
    pump.start()
    for piece in pieces:
        os.write(sink, piece)
    os.close(sink)
    pump.join()
    return path.read_bytes()


def test_secrets_are_masked_across_writes_and_at_the_end(tmp_path: Path) -> None:
    assert pumped(tmp_path / "log", [b"a my-se", b"cret b\n", b"my-secret"], ["my-secret"]) == b"a [secret] b\n[secret]"


def test_what_looks_like_a_secret_is_masked_too(tmp_path: Path) -> None:
    log = pumped(tmp_path / "log", [b"GET http://me:word@h/?api_key=abc\n", b"ghp_0123456789abcdef \xff\n"], [])
    assert log == b"GET http://[secret]@h/?api_key=[secret]\n[secret] \xff\n"


def test_an_endless_line_is_written_before_it_ends_and_still_masked(tmp_path: Path) -> None:
    pieces = [b"x" * 30000 + b"my-sec", b"ret" + b"y" * 40000, b"z" * 9000]
    log = pumped(tmp_path / "log", pieces, ["my-secret"])
    assert log == b"x" * 30000 + b"[secret]" + b"y" * 40000 + b"z" * 9000


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="ab\n\r", max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_nothing_but_the_secret_changes_however_the_output_is_cut(
    tmp_path_factory: pytest.TempPathFactory, text: str, cuts: list[int]
) -> None:
    data = (text + "Secret-1" + text).encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    log = pumped(tmp_path_factory.mktemp("pump") / "log", pieces, ["Secret-1"])
    assert log == data.replace(b"Secret-1", b"[secret]")


def test_a_full_disk_is_told_once_and_the_server_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(reaper, "emit", lambda **event: told.append(event))
    source, sink = os.pipe()
    pump = LogPump(source, "/dev/full", [], MASK)
    pump.start()
    for _ in range(20):
        os.write(sink, b"line\n" * 10000)  # more than a pipe holds: it blocks unless somebody reads
    os.close(sink)
    pump.join()
    assert told == [{"log_error": os.strerror(errno.ENOSPC)}]


@pytest.mark.process
def test_a_process_is_known_by_pid_and_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        start = reaper.start_ticks(process.pid)
        assert start is not None
        reaper.send(process.pid, start + 1, 9)
        assert process.poll() is None
        assert process.pid in reaper.descendants(os.getpid())
        reaper.send(process.pid, start, 9)
        assert process.wait() == -9
    assert reaper.start_ticks(process.pid) is None
    assert process.pid not in reaper.descendants(os.getpid())
