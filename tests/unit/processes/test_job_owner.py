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
SLOW_TO_END = """
import time
from longctx.processes.job_owner import ending_with_owner
try:
    with ending_with_owner():
        try:
            print("waiting", flush=True)
            time.sleep(60)
        finally:
            print("ending", flush=True)
            input()
            print("ended", flush=True)
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


def start(program: str, *, start_new_session: bool = False, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | environment,
        start_new_session=start_new_session,
    )


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_owners_end_interrupts(signum: int) -> None:
    with start(OWNER) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signum)
        assert process.stdout.readline() == "interrupted\n"


@pytest.mark.process
@pytest.mark.parametrize("signum", job_owner.ENDING)
def test_a_signal_that_asks_to_end_interrupts(signum: int) -> None:
    with start(WAIT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signum)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait() == 0


@pytest.mark.process
def test_a_second_signal_does_not_disturb_the_end() -> None:
    with start(SLOW_TO_END) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.communicate("go on\n")[0] == "ended\ninterrupted\n"
        assert process.returncode == 0


# Snakemake's own handler only remembers that it was asked; its job has a shell around it and another session below it.
FOREMAN = f"""
import signal, subprocess, sys
from longctx.processes.job_owner import asked_to_end, own_jobs, pass_on_signals
own_jobs()
pass_on_signals()
signal.signal(signal.SIGTERM, lambda *_: None)
other = subprocess.Popen(["sleep", "600"], start_new_session=True)
job = subprocess.Popen(["bash", "-c", '"$1" -c "$2"; exit $?', "bash", sys.executable, {WAIT!r}])
while job.poll() is None:
    try:
        job.wait()
    except KeyboardInterrupt:
        print("foreman interrupted", flush=True)
print("job", job.returncode, asked_to_end(), "other", other.poll(), flush=True)
other.kill()
"""


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_owner_alone_ends_its_jobs_and_no_server(signum: int) -> None:
    with start(FOREMAN, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signum)
        lines = process.communicate()[0].splitlines()
    assert sorted(lines[:-1]) == ["foreman interrupted", "interrupted"]
    assert lines[-1] == "job 0 True other None"


def gone() -> str:
    """An owner that has ended already, as it names itself."""
    with start("from longctx.processes.job_owner import *; own_jobs(); print(os.environ[OWNER_VARIABLE])") as process:
        return process.communicate()[0].strip()


@pytest.mark.process
def test_an_owner_that_was_gone_before_the_start_interrupts() -> None:
    with start(WAIT, **{OWNER_VARIABLE: gone()}) as process:
        assert "interrupted" in process.communicate(timeout=300)[0]


@pytest.mark.process
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
