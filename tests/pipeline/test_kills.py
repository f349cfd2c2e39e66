"""Whatever is killed, whenever: the same command continues, keeps what was finished, and leaves no process behind."""

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from longctx.storage import journal
from pipeline import LONGCTX, PATIENCE_S, Pipeline, running, until

POINT, TARGET = "256/pass1", "results/measurements/256/pass1.parquet"
REQUESTS = [("cold", 0), ("repeat", 1), ("repeat", 2)]


@pytest.fixture
def three(prepared: Pipeline) -> Pipeline:
    """One point of three requests, the third of which waits to be killed."""
    prepared.configure(lengths=[256], repeats={"count": 3, "up_to": 256})
    prepared.hold(2)
    return prepared


def starting(pipeline: Pipeline) -> bool:
    return "starting the server" in pipeline.phase() and bool(pipeline.processes("fakeserver.py"))


def third_request(pipeline: Pipeline) -> bool:
    """Two requests are finished and the third one has reached the server."""
    return len(pipeline.requests()) == 3 and rows(pipeline) == REQUESTS[:2]


def rows(pipeline: Pipeline) -> list[tuple[str, int]]:
    """The requests that the journal has a good row of."""
    found = [record.data for record in pipeline.journal(POINT) if record.kind == "row"]
    return [(row["role"], row["request_index"]) for row in found if row["role"] != "warmup" and row["status"] == "ok"]


def finish(pipeline: Pipeline, already: int) -> None:
    """Run the same command again: it measures what is missing, and only that."""
    before = pipeline.requests()[:already]
    pipeline.faults()
    done = pipeline.run(TARGET)
    assert done.code == 0, done.output
    assert pipeline.measured(POINT) == [(role, index, "ok") for role, index in REQUESTS]
    assert rows(pipeline) == REQUESTS
    sent = Counter(pipeline.requests())
    assert len(sent) == 3
    assert [sent[request] for request in before] == [1] * already


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        ("snakemake", third_request),
        pytest.param("snakemake", starting, marks=pytest.mark.slow),
        pytest.param("measure.py", third_request, marks=pytest.mark.slow),
        pytest.param("fakeserver.py", third_request, marks=pytest.mark.slow),
    ],
)
def test_killed(three: Pipeline, victim: str, phase: Callable[[Pipeline], bool]) -> None:
    if phase is starting:
        three.faults(hold_start=str(three.folder / "hold"))
    with running(three, TARGET) as snakemake:
        until(lambda: phase(three), lambda: str(three.status()))
        os.kill(snakemake.pid if victim == "snakemake" else three.one(victim), signal.SIGKILL)
        code = three.finish(snakemake).code
        assert code == (-signal.SIGKILL if victim == "snakemake" else 1)
        # At once: what a killed Snakemake left may still be about to end.
        finish(three, 0 if phase is starting else 2)


@pytest.mark.parametrize(
    ("victim", "signum"),
    [
        ("group", signal.SIGINT),
        pytest.param("group", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("group", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("snakemake", signal.SIGINT, marks=pytest.mark.slow),
        ("snakemake", signal.SIGTERM),
        pytest.param("snakemake", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_stopped(three: Pipeline, victim: str, signum: int) -> None:
    """The request in progress is held until after the end: whoever waited for it would wait for ever."""
    with running(three, TARGET) as snakemake:
        until(lambda: third_request(three), lambda: str(three.status()))
        (os.killpg if victim == "group" else os.kill)(snakemake.pid, signum)
        stopped = three.finish(snakemake)
        assert "Traceback" not in stopped.output
        three.nothing_left()
        stopped = three.finish(snakemake)
        assert stopped.code != 0
        assert "finished requests are kept, the same command goes on from here" in stopped.output
        assert three.status()["points"] == {f"prefill/{POINT}": {"state": "interrupted"}}
        finish(three, 2)


@pytest.mark.slow
@pytest.mark.parametrize("make", [os.pipe, os.openpty], ids=["pipe", "terminal"])
def test_a_reader_that_goes_stops_nothing(three: Pipeline, make: Callable[[], tuple[int, int]]) -> None:
    ours, theirs = make()
    command = [str(Path(LONGCTX).with_name("snakemake")), "--cores", "1", TARGET]
    snakemake = subprocess.Popen(
        command,
        cwd=three.folder,
        env=three.environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        until(lambda: third_request(three), lambda: str(three.status()))
        os.close(ours)
        three.release()
        assert snakemake.wait(PATIENCE_S) == 0
    finally:
        three.end()
        snakemake.wait()
    assert three.measured(POINT) == [(role, index, "ok") for role, index in REQUESTS]


@pytest.mark.slow
def test_a_server_that_dies_again_and_again_costs_its_point_only(prepared: Pipeline) -> None:
    dying = {"by_max_tokens": {"8": {"die_after_s": 0.0, "ttft_s": 0.1}}}
    prepared.faults(by_length={"512": dying})
    failed = prepared.run("results/summary.parquet")
    assert failed.code != 0
    assert "512/pass1: server_died: while warming up the server was killed by SIGKILL" in failed.output
    assert prepared.measured("256/pass1") == [("cold", 0, "ok")]
    prepared.faults()
    prepared.summarise()


@pytest.mark.slow
def test_a_server_that_hangs_costs_its_point_and_the_next_one_gets_a_fresh_server(prepared: Pipeline) -> None:
    prepared.configure(serve={"scope": "campaign"}, measure={"stall_s": 3})
    prepared.faults(by_length={"256": {"by_max_tokens": {"6": {"hang": True}}}})
    failed = prepared.run("results/summary.parquet")
    assert failed.code != 0
    cold = [
        record.data
        for point in ("256/pass1", "512/pass1")
        for record in prepared.journal(point)
        if record.kind == "row" and record.data["role"] == "cold"
    ]
    stalled, sound = cold
    assert sound["status"] == "ok"
    assert (stalled["status"], stalled["reason"], stalled.get("ttft_s")) == ("failed", "timeout", None)
    assert "no progress for the configured stall time; its log ends with: " in stalled["detail"]
    records = [json.loads(line) for line in (prepared.folder / "requests.jsonl").read_text().splitlines()]
    hung, fresh = ({r["pid"] for r in records if (r["count"], r["max_tokens"]) == (n, 6)} for n in (256, 512))
    assert len(hung) == len(fresh) == 1
    assert hung != fresh


@pytest.mark.slow
def test_a_damaged_journal_costs_only_what_was_damaged(three: Pipeline) -> None:
    with running(three, TARGET) as snakemake:
        until(lambda: third_request(three))
        os.kill(snakemake.pid, signal.SIGKILL)
        snakemake.wait()
    three.nothing_left()
    path = three.results / "journal" / f"{POINT}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [record.kind for record in journal.read(path)[0]]
    second = [n for n, kind in enumerate(kinds) if kind == "row"][-1]
    lines[second] = lines[second].replace(b"repeat", b"repaet")
    path.write_bytes(b"".join(lines) + b'1234abcd ["row",{"role":"repeat","request_index":2,"sta')
    three.faults()
    done = three.run(TARGET)
    assert done.code == 0, done.output
    assert f"{POINT}: damaged lines of its journal are left out (1)" in done.output
    assert three.measured(POINT) == [(role, index, "ok") for role, index in REQUESTS]
    assert sorted(Counter(three.requests()).values()) == [1, 2, 2]


@pytest.fixture
def small_disk(three: Pipeline) -> Iterator[Path]:
    """The results as a small disk of their own."""
    aside = three.results.rename(three.folder / "aside")
    three.results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(three.results)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    shutil.copytree(aside, three.results, dirs_exist_ok=True)
    yield three.results
    three.nothing_left()
    subprocess.run(["umount", str(three.results)], check=True)


def fill(path: Path) -> None:
    """Fill the disk under `path` to the last byte."""
    with open(path, "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_a_disk_that_fills_up_loses_no_finished_request(three: Pipeline, small_disk: Path) -> None:
    three.hold(0)
    with running(three, TARGET) as snakemake:
        until(lambda: len(three.requests()) == 1)
        fill(small_disk / "filler")
        three.release()
        stopped = three.finish(snakemake)
    assert stopped.code != 0
    sentences = [line for line in stopped.output.splitlines() if line.startswith("error:")]
    assert sentences == [
        f"error: cannot write the journal results/journal/{POINT}.jsonl: No space left on device; free space or fix the"
        " folder, then run the same command again: finished rows are kept"
    ]
    # A request's lines take about a page of the disk: the first one's may fit into the rest of the journal's last page.
    kept = rows(three)
    assert kept == REQUESTS[: len(kept)]
    assert kept
    still = three.run(TARGET)
    assert still.code != 0
    assert "Traceback" not in still.output
    (small_disk / "filler").unlink()
    finish(three, len(kept))


@pytest.mark.slow
def test_watch_says_that_a_killed_run_is_interrupted(three: Pipeline) -> None:
    with running(three, TARGET) as snakemake:
        until(lambda: third_request(three))
        os.kill(snakemake.pid, signal.SIGKILL)
        snakemake.wait()
        three.nothing_left()
    shown = three.tool(LONGCTX, "watch", "results", "--once")
    assert "1 interrupted" in shown.stdout
    assert "no run is at work: the same command again continues" in shown.stdout


@pytest.mark.slow
def test_a_killed_point_of_mode_reuse_makes_its_prefix_resident_again(prepared: Pipeline) -> None:
    point = "256/reuse-pass1"
    prepared.configure(
        lengths=[256], modes=["reuse"], reuse={"queries": 3, "suffix_tokens": 32}, serve={"headroom_tokens": 128}
    )
    prepared.hold(2)
    target = f"results/measurements/{point}.parquet"
    with running(prepared, target) as snakemake:
        until(lambda: len(prepared.requests()) == 3)
        os.kill(snakemake.pid, signal.SIGKILL)
        snakemake.wait()
        prepared.faults()
        done = prepared.run(target)
    assert done.code == 0, done.output
    assert prepared.measured(point) == [("cold", 0, "ok"), *(("reuse", index, "ok") for index in (1, 2, 3))]
    assert [length for length, _ in prepared.requests()] == [256, 288, 288, 256, 288, 288]
    cached = [row["cached_tokens"] for row in prepared.rows(point) if row["role"] == "reuse"]
    assert cached == [256, 256, 256]
