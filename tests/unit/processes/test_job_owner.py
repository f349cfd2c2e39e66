"""A measurement ends with its Snakemake: a small program that waits, started by an owner that is then killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from longctx.processes import job_owner
from longctx.processes.job_owner import OWNER_VARIABLE, ending_with_owner

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(job_owner.__file__).parents[2])}
WAIT = """
import time
from longctx.processes.job_owner import ending_with_owner
try:
    with ending_with_owner():
        print("waiting", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
OWNER = f"""
import subprocess, sys, time
from longctx.processes.job_owner import own_jobs
own_jobs()
subprocess.Popen([sys.executable, "-c", {WAIT!r}])
time.sleep(60)
"""


def start(program: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT | environment
    )


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_owners_end_interrupts(signum: int) -> None:
    with start(OWNER) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signum)
        assert process.stdout.readline() == "interrupted\n"


def test_sigterm_interrupts() -> None:
    with start(WAIT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait() == 0


def gone() -> str:
    """An owner that has ended already, as it names itself."""
    with start("from longctx.processes.job_owner import *; own_jobs(); print(os.environ[OWNER_VARIABLE])") as process:
        return process.communicate()[0].strip()


def test_an_owner_that_was_gone_before_the_start_interrupts() -> None:
    with start(WAIT, **{OWNER_VARIABLE: gone()}) as process:
        assert "interrupted" in process.communicate(timeout=300)[0]


def test_a_process_that_has_the_owners_id_today_is_not_the_owner() -> None:
    pid, start_ticks, boot = f"{os.getpid()} 1 {job_owner.boot_id()}".split()
    with start(WAIT, **{OWNER_VARIABLE: f"{pid} {start_ticks} {boot}"}) as process:
        assert "interrupted" in process.communicate(timeout=300)[0]


@pytest.mark.parametrize("value", ["", "nonsense", "1 2 another-boot"])
def test_without_an_owner_here_nothing_happens(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, value)
    before = signal.getsignal(signal.SIGTERM)
    with ending_with_owner():
        time.sleep(0.05)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_live_owner_lets_the_block_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, "")
    job_owner.own_jobs()
    with ending_with_owner():
        pass
