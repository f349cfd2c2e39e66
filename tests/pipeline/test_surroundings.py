"""The machine around a campaign: odd names of folders, the shell's variables, a full disk, a dry run."""

import hashlib
import shutil
from pathlib import Path

import pytest
from pipeline import Pipeline, copy, make

pytestmark = pytest.mark.process


def content(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the time and hash of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p): (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files}


def test_a_checkout_may_lie_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b'c\"d (e) [f] 100% \u00e9 $HOME & ;g"
    folder.mkdir()
    pipeline = make(folder)
    done = pipeline.run()
    assert done.code == 0, done.output
    assert pipeline.measured("512/pass1") == [("cold", 0, "ok")]
    pipeline.nothing_left()


@pytest.mark.parametrize("name", ["a{b}", "10:30"])
def test_what_no_path_may_have_is_refused_in_one_sentence(name: str, measured_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(measured_folder, tmp_path / name, symlinks=True)
    refused = Pipeline(tmp_path / name).run("-n")
    assert refused.code == 1
    assert "in a path cannot be used" in refused.output
    assert "move or rename the folder" in refused.output
    assert "Traceback" not in refused.output


def test_the_shell_s_backend_and_a_full_tmp_stop_nothing(prepared: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("TMPDIR", "/proc")  # where nobody can write, as on a full disk
    monkeypatch.setenv("LC_ALL", "C")
    (prepared.results / "plan.parquet").unlink()
    done = prepared.run()
    assert done.code == 0, done.output
    assert done.jobs["figures"] == done.jobs["make_plan"] == done.jobs["report"] == 1


def test_a_plan_that_dies_stops_the_run_before_the_measurement(prepared: Pipeline) -> None:
    (prepared.results / "plan.parquet").unlink()
    script = prepared.folder / "scripts" / "plan.py"
    sound = script.read_text(encoding="utf-8")
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", encoding="utf-8")
    stopped = prepared.run()
    assert stopped.code != 0
    assert prepared.requests() == []
    assert "the plan failed, so nothing is measured; results/logs/plan.log says why" in stopped.output
    assert not list(prepared.results.glob("journal/*/*.jsonl"))
    script.write_text(sound, encoding="utf-8")
    done = prepared.run("results/summary.parquet")
    assert done.code == 0, done.output
    assert [length for length, _ in prepared.requests()] == [256, 512]


def test_every_unit_of_a_length_names_a_file(prepared: Pipeline) -> None:
    prepared.configure(lengths=["1Gi", "3Mi", "5Ki", 777])
    dry = prepared.run("-n")
    assert dry.code == 0, dry.output
    assert dry.planned["measure"] == 4
    single = prepared.run("-n", "results/lengths/1Gi.parquet")
    assert single.code == 0, single.output


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": 2},
        pytest.param({"max_new_tokens": 7}, marks=pytest.mark.slow),
        pytest.param({"lengths": [256]}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_dry_run_changes_nothing(measured_folder: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    pipeline = copy(measured_folder, tmp_path / "work")
    before = content(pipeline.results)
    config = dict(pipeline.config)
    pipeline.configure(**changes)
    assert pipeline.run("-n").code == 0
    assert content(pipeline.results) == before
    pipeline.configure(**config)
    again = pipeline.run("-n", "results/summary.parquet")
    assert "Nothing to be done" in again.output
