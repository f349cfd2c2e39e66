"""A report that is there tells of the summary beside it, also where a run was asked for the summary alone."""

import os
import shutil
from pathlib import Path

import pytest
from pipeline import Pipeline

SUMMARY = "results/summary.parquet"
NOTHING = "Nothing to be done"
pytestmark = pytest.mark.slow


@pytest.fixture
def old(measured: Pipeline) -> Path:
    """A report that says nothing true, older than the summary; every other file of the campaign is up to date."""
    assert measured.run().code == 0
    report = measured.results / "report.md"
    report.write_text("old")
    os.utime(report, (1e9, 1e9))
    return report


def figure_times(pipeline: Pipeline) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (pipeline.results / "figures").glob("*.png")}


def test_the_report_of_a_failed_campaign_is_made_anew_when_its_summary_is_whole(prepared: Pipeline) -> None:
    prepared.faults(by_length={"256": {"by_max_tokens": {"6": {"http_status": 500, "http_message": "told to fail"}}}})
    assert prepared.run(SUMMARY).code != 0
    reports = [prepared.results / f"report.{kind}" for kind in ("md", "html")]
    for report in reports:
        assert "1 failed" in report.read_text()
        assert "told to fail" in report.read_text()
    drawn = figure_times(prepared)
    prepared.faults()
    assert prepared.summarise().jobs == {"measure": 1, "summary": 1}
    for report in reports:
        assert "1 failed" not in report.read_text()
        assert "told to fail" not in report.read_text()
    assert all(figure_times(prepared)[name] > drawn[name] for name in ("ttft.png", "decode.png"))
    assert NOTHING in prepared.run("-n").output
    assert prepared.run().jobs == {}


def test_a_report_grows_with_its_ladder(measured: Pipeline) -> None:
    assert measured.run().jobs == {"figures": 1, "report": 1}
    measured.configure(lengths=[256, 512, 1024])
    measured.summarise()
    assert "1Ki" in (measured.results / "report.md").read_text()
    assert NOTHING in measured.run("-n").output


def test_a_run_to_compare_with_is_drawn_whoever_drew_last(measured: Pipeline) -> None:
    shutil.copy2(measured.results / "summary.parquet", measured.folder / "earlier.parquet")
    assert measured.run("report_now").code == 0
    assert measured.run().jobs == {}
    measured.configure(compare=["earlier.parquet"])
    assert measured.run().jobs == {"figures": 1, "report": 1}
    assert "Against earlier" in (measured.results / "report.md").read_text()
    assert measured.run().jobs == {}


def test_no_report_is_made_where_there_is_none(measured: Pipeline) -> None:
    (measured.results / "measurements" / "512" / "pass1.parquet").unlink()
    assert measured.summarise().jobs == {"measure": 1, "summary": 1}
    assert list(measured.results.glob("report.*")) == []
    assert not (measured.results / "figures" / "ttft.png").exists()


@pytest.mark.parametrize(
    "arguments",
    [("plan",), (SUMMARY,), ("-n", "--forcerun", "summary"), ("--touch", "--forcerun", "summary", "--", SUMMARY)],
    ids=["plan", "nothing to do", "dry run", "touch"],
)
def test_who_makes_no_summary_leaves_an_old_report(measured: Pipeline, old: Path, arguments: tuple[str, ...]) -> None:
    drawn = figure_times(measured)
    assert measured.run(*arguments).code == 0
    assert old.read_text() == "old"
    assert figure_times(measured) == drawn


def test_a_comparison_leaves_an_old_report(measured: Pipeline, old: Path) -> None:
    shutil.copy2(measured.results / "summary.parquet", measured.folder / "same.parquet")
    measured.configure(compare=["same.parquet"])
    assert measured.run("compare").jobs == {"compare": 1}
    assert old.read_text() == "old"


def test_a_report_made_at_any_time_is_made_once(measured: Pipeline, old: Path) -> None:
    done = measured.run("report_now")
    assert done.code == 0
    assert done.output.splitlines().count("results/report.md") == 1
    assert old.read_text() != "old"


def test_a_report_that_cannot_be_made_is_said_and_takes_no_success_back(measured: Pipeline, old: Path) -> None:
    (measured.folder / "scripts" / "figures.py").write_text("raise SystemExit('told to fail')")
    done = measured.summarise("--forcerun", "summary")
    assert done.said == ["longctx: results/report.md stays older than the summary"]
    assert old.read_text() == "old"
