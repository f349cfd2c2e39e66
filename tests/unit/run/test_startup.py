"""What a run sets right before it starts: who holds what, stale locks, repairs; and old reports at its end."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.campaign import Campaign, from_dict
from longctx.campaign.files import journal_path
from longctx.campaign.point import Point
from longctx.errors import LongctxError
from longctx.measure import kv_limit
from longctx.run import startup
from longctx.run.startup import before_run, drop_old_reports, enter_folder, repair_files, settle_locks
from longctx.storage import locks
from longctx.storage.journal import Journal
from patching import replace_in

SCRIPTS = Path(startup.__file__).parents[2]
STATE = Path(".snakemake")
Start = Callable[..., "subprocess.Popen[str]"]
RUN = """
import sys
from pathlib import Path
from longctx.campaign import campaign as campaigns
from longctx.run import startup
model = {"source": "synthetic", "weights": "dummy"}
campaign = campaigns.from_dict({"model": model, "lengths": [1024], "name": sys.argv[1]})
startup.enter_folder(Path(".snakemake"))
if "looks" not in sys.argv:
    startup.before_run(campaign)
print("ready", flush=True)
sys.stdin.read()
"""


def campaign(**changes: Any) -> Campaign:
    return from_dict(
        {"model": {"source": "synthetic", "weights": "dummy"}, "lengths": [1024, 2048], "passes": 1} | changes
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(kv_limit.RUN_VARIABLE, "this run")
    yield
    end_run()


def end_run() -> None:
    """Release the locks that this process would hold for its whole life."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if entry.readlink().name in ("run.lock", "longctx-run"):
                os.close(int(entry.name))


@pytest.fixture
def start() -> Iterator[Start]:
    """Start runs of their own, which hold what they hold until they are killed."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, "-c", RUN, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        yield start


def run(campaign: Campaign) -> None:
    """Do what a run does that makes something."""
    enter_folder(STATE)
    repair_files(campaign)
    before_run(campaign)


def lock() -> Path:
    path = STATE / "locks" / "0.output.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()


@pytest.mark.process
def test_a_live_run_is_named_and_nothing_of_it_is_touched(start: Start) -> None:
    other, left = start("default"), lock()
    with pytest.raises(LongctxError) as caught:
        run(campaign())
    assert str(caught.value).startswith(
        f"another run (process {other.pid} on {os.uname().nodename}) is at work on results"
    )
    assert "report_now" in str(caught.value)
    assert left.exists()


@pytest.mark.process
def test_who_only_looks_is_let_in_and_keeps_nobody_out(start: Start) -> None:
    start("default")
    left = lock()
    enter_folder(STATE)
    assert left.exists()


@pytest.mark.process
def test_a_look_that_goes_on_keeps_no_run_out(start: Start) -> None:
    start("default", "looks")
    run(campaign())


@pytest.mark.process
def test_what_a_killed_run_held_is_free(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    kill(start("default"))
    left = lock()
    run(campaign())
    assert not left.exists()
    assert capsys.readouterr().err == "longctx: removed the lock that a killed run left; going on where it stopped\n"


@pytest.mark.process
def test_two_campaigns_may_run_in_one_folder_and_keep_each_others_locks(start: Start) -> None:
    start("other")
    left = lock()
    run(campaign())
    assert left.exists()


def test_locks_of_another_host_stay() -> None:
    left = lock()
    (STATE / "longctx-run").write_text("login2 99")
    said = settle_locks(STATE)
    assert said == "a Snakemake on login2 (process 99) holds this folder's lock; if it is gone: snakemake --unlock"
    assert left.exists()


def test_without_locks_another_host_does_not_matter() -> None:
    STATE.mkdir()
    (STATE / "longctx-run").write_text("login2 99")
    assert settle_locks(STATE) is None


def test_a_disk_without_locks_stops_nobody_and_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    left = lock()
    run(campaign())
    assert left.exists()


def test_a_full_disk_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    replace_in(monkeypatch, locks, "os", ftruncate=full, pwrite=full)
    assert settle_locks(STATE) is None


def make(*names: str, at_s: float = 1000.0) -> list[Path]:
    paths = [Path("results") / f"{name}.parquet" for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1PAR1")
        os.utime(path, (at_s, at_s))
    return paths


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 cut sho", bytes(64)], ids=["empty", "head", "cut", "zeros"])
def test_a_derived_file_that_is_cut_short_is_made_anew(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    torn, whole, measured = make("prompts/1Ki", "validation/1Ki", "measurements/1Ki/pass1")
    torn.write_bytes(content)
    measured.write_bytes(content)
    run(campaign())
    assert capsys.readouterr().err == f"longctx: {torn}: damaged, so it is made anew where it is needed\n"
    assert not torn.exists()
    assert whole.exists()
    assert measured.exists(), "a measured one is no derived one"


@pytest.mark.process
def test_nothing_is_repaired_beside_a_live_run(start: Start) -> None:
    start("default")
    (torn,) = make("prompts/1Ki")
    torn.write_bytes(b"")
    repair_files(campaign())
    assert torn.exists()


@pytest.mark.process
def test_a_repair_keeps_no_run_out(start: Start) -> None:
    repair_files(campaign())
    start("default")


def test_who_only_looks_deletes_nothing_sets_nothing_aside_and_is_no_run() -> None:
    torn, _ = make("summary", "servers/1Ki/pass1")
    torn.write_bytes(b"")
    journal = Journal(journal_path(campaign(), Point(1024, 1)))
    journal.append("done", {"sha256": {}})
    enter_folder(STATE)
    assert torn.exists()
    assert journal.path.exists()
    assert not Path("results/status.json").exists()
    run(campaign())
    assert not torn.exists()
    assert not journal.path.exists()
    assert Path("results/status.json").exists()


@pytest.mark.parametrize(
    ("rules", "deleted"),
    [(["measure", "summary"], True), (["summary", "report"], False), (["compare"], False), ([], False)],
)
def test_the_reports_of_an_earlier_summary_are_deleted_at_the_end(
    rules: list[str], deleted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = [Path("results") / f"report.{kind}" for kind in ("md", "html")]
    for report in reports:
        report.parent.mkdir(exist_ok=True)
        report.touch()
    drop_old_reports(campaign(), rules)
    assert [report.exists() for report in reports] == [not deleted] * 2
    assert ("results/report.md and results/report.html" in capsys.readouterr().err) == deleted


def test_without_a_report_a_new_summary_deletes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    drop_old_reports(campaign(), ["summary"])
    assert capsys.readouterr().err == ""


@pytest.fixture
def small() -> Campaign:
    found = campaign(lengths=["1Ki", "2Ki", "4Ki"], passes=2)
    kv_limit.save_limit(found, Point(2048, 1), "the KV cache holds 1500 tokens at most")
    return found


def test_what_did_not_fit_is_not_tried_again_nor_anything_longer(small: Campaign) -> None:
    assert kv_limit.skip_reason(small, Point(1024, 2)) is None
    for point in (Point(2048, 2), Point(4096, 1)):
        assert kv_limit.skip_reason(small, point) == (
            "skipped, since 2Ki did not fit earlier in this run: the KV cache holds 1500 tokens at most"
        )


def test_the_shortest_that_did_not_fit_counts(small: Campaign) -> None:
    kv_limit.save_limit(small, Point(4096, 1), "too long")
    assert kv_limit.skip_reason(small, Point(2048, 2)) is not None
    kv_limit.save_limit(small, Point(1024, 1), "even this")
    assert "1Ki did not fit earlier in this run: even this" in str(kv_limit.skip_reason(small, Point(2048, 2)))


def test_another_run_tries_again(small: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kv_limit.RUN_VARIABLE, "next run")
    assert kv_limit.skip_reason(small, Point(4096, 1)) is None


def test_another_mode_and_another_recipe_are_tried(small: Campaign) -> None:
    assert kv_limit.skip_reason(small, Point(4096, 1, "decode_only")) is None
    other = campaign(lengths=["4Ki"], serve={"kv_cache_dtype": "fp8"})
    assert kv_limit.skip_reason(other, Point(4096, 1)) is None


def test_outside_a_run_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kv_limit.RUN_VARIABLE)
    kv_limit.save_limit(campaign(), Point(1024, 1), "no")
    assert kv_limit.skip_reason(campaign(), Point(2048, 1)) is None
    assert not Path("results").exists()


def test_a_damaged_note_is_no_note(small: Campaign) -> None:
    (path,) = Path("results/journal").glob(".limit-*")
    path.write_text('{"run": ')
    assert kv_limit.skip_reason(small, Point(4096, 1)) is None
