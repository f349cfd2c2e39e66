"""The guard inside a container: as the server ends so does it, and where its input ends it ends the server."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

GUARD = Path(__file__).parents[3] / "scripts" / "longctx" / "processes" / "container_init.py"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
PATIENT = "import time; print('up', flush=True); time.sleep(99)"


def guarded(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, GUARD, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("code", "exit_code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)]
)
def test_it_ends_as_its_server_does(code: str, exit_code: int) -> None:
    with guarded(code) as guard:
        assert guard.wait(30) == exit_code


def test_the_server_ends_where_the_input_ends() -> None:
    with guarded(PATIENT) as guard:
        assert guard.stdout is not None
        assert guard.stdout.readline() == "up\n"
        assert guard.stdin is not None
        guard.stdin.close()
        assert guard.wait(30) == 128 + signal.SIGTERM


def test_sigterm_reaches_the_server() -> None:
    with guarded(PATIENT) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        guard.terminate()
        assert guard.wait(30) == 128 + signal.SIGTERM


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    impatient = tmp_path / "guard.py"
    impatient.write_text(GUARD.read_text().replace("GRACE_S = 20", "GRACE_S = 0.2"))
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, impatient, sys.executable, "-c", STUBBORN], stdin=read, stdout=subprocess.PIPE, text=True
    ) as guard:
        os.close(read)
        assert guard.stdout is not None
        assert guard.stdout.readline() == "up\n"
        os.close(write)
        assert guard.wait(30) == 128 + signal.SIGKILL
