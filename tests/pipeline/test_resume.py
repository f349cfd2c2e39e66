"""Nothing measured is lost and nothing is measured twice, through the real Snakemake: re-runs of what ended well."""

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from longctx.storage import journal, parquet, schemas
from pipeline import LONGCTX, Pipeline, running, until

SUMMARY = "results/summary.parquet"


def lengths(pipeline: Pipeline) -> list[int]:
    return [length for length, _ in pipeline.requests()]


def test_nothing_to_do_runs_no_job(measured: Pipeline) -> None:
    assert measured.summarise().jobs == {}
    assert lengths(measured) == [256, 512]


def test_a_deleted_measurement_alone_is_measured_again(measured: Pipeline) -> None:
    (measured.results / "measurements" / "512" / "pass1.parquet").unlink()
    done = measured.summarise()
    assert done.jobs == {"measure": 1, "summary": 1}
    assert "512/pass1: its measurement was deleted, so it is measured again" in done.output
    assert lengths(measured) == [256, 512, 512]
    assert measured.summarise().jobs == {}


@pytest.mark.slow
def test_a_deleted_measurement_is_noticed_by_the_target_of_its_length(measured: Pipeline) -> None:
    target = "results/lengths/512.parquet"
    assert measured.run(target).jobs == {"length": 1}
    (measured.results / "measurements" / "512" / "pass1.parquet").unlink()
    assert measured.run(target).jobs == {"measure": 1, "length": 1}
    assert lengths(measured) == [256, 512, 512]


@pytest.mark.slow
def test_parquets_lost_with_everything_beside_them_come_back_from_the_journal(measured: Pipeline) -> None:
    for table in ("measurements", "servers", "traces", "progress"):
        shutil.rmtree(measured.results / table / "512")
    assert measured.summarise().jobs == {"measure": 1, "summary": 1}
    assert lengths(measured) == [256, 512]
    assert measured.measured("512/pass1") == [("cold", 0, "ok")]


def test_looks_and_comments_measure_nothing(measured: Pipeline) -> None:
    measured.run("results/report.md")
    assert measured.run("results/report.md").jobs == {}
    for name in ("report/style.py", "measure/protocol.py", "campaign/recipe.py", "storage/schemas.py"):
        path = measured.folder / "scripts" / "longctx" / name
        path.write_text(path.read_text() + "\n# a comment\n")
    with open(measured.folder / "workflow" / "rules" / "measure.smk", "a") as file:
        file.write("\n# a comment\n")
    assert measured.run("results/report.md", "-n").planned == {}
    assert measured.run("-n", "-R", "figures", "--", "results/report.md").planned == {"figures": 1, "report": 1}


@pytest.mark.slow
def test_a_checkout_with_newer_files_measures_nothing(measured: Pipeline) -> None:
    for path in [*measured.folder.glob("scripts/**/*.py"), *measured.folder.glob("workflow/**/*")]:
        path.touch()
    assert measured.summarise().jobs == {}


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({"lengths": [256, 512, 1024]}, [1024]),
        pytest.param({"passes": 2}, [256, 512], marks=pytest.mark.slow),
        pytest.param({"repeats": {"count": 3, "up_to": 256}}, [256, 256], marks=pytest.mark.slow),
    ],
    ids=["lengths", "passes", "repeats"],
)
def test_what_is_added_is_all_that_is_measured(measured: Pipeline, change: dict[str, object], new: list[int]) -> None:
    before = measured.requests()
    measured.configure(**change)
    measured.summarise()
    added = measured.requests()[len(before) :]
    assert [length for length, _ in added] == new
    assert len({*before, *added}) == len(before) + len(added)
    rows = sum(row["n"] for row in measured.summary())
    assert rows == len(before) + len(added)
    assert measured.summarise().jobs == {}


def test_a_deleted_measurement_is_seen_by_a_dry_run_which_changes_nothing(measured: Pipeline) -> None:
    (measured.results / "measurements" / "512" / "pass1.parquet").unlink()
    before = {path: path.stat().st_mtime_ns for path in measured.results.rglob("*") if path.is_file()}
    assert measured.run(SUMMARY, "-n").planned == {"measure": 1, "summary": 1}
    assert {path: path.stat().st_mtime_ns for path in measured.results.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_length_left_out_measures_nothing_and_leaves_the_summary(measured: Pipeline) -> None:
    measured.configure(lengths=[512])
    measured.summarise()
    assert lengths(measured) == [256, 512]
    assert [row["length"] for row in measured.summary()] == [512]


def test_a_changed_recipe_measures_again_and_says_what_changed(measured: Pipeline) -> None:
    measured.configure(serve={"max_num_batched_tokens": 4096})
    done = measured.summarise()
    assert lengths(measured) == [256, 512, 256, 512]
    for length in (256, 512):
        assert f"{length}/pass1: measured again, since serve.max_num_batched_tokens: None -> 4096" in done.output
        assert list((measured.results / "journal" / str(length) / "superseded").iterdir())
    assert len({row["recipe_hash"] for row in measured.summary()}) == 1


@pytest.mark.slow
def test_rungs_are_climbed_short_first_and_their_passes_in_order(measured: Pipeline) -> None:
    measured.configure(passes=4)
    assert measured.summarise().jobs["measure"] == 6
    begun = {
        path: parquet.read_rows(path, schemas.SERVERS)[0]["started_at"] for path in measured.results.glob("servers/*/*")
    }
    order = [f"{path.parent.name}/{path.stem}" for path in sorted(begun, key=lambda path: begun[path])]
    assert order[2:] == [f"{length}/pass{n}" for length in (256, 512) for n in (2, 3, 4)]


def test_operational_settings_measure_nothing(measured: Pipeline) -> None:
    measured.configure(serve={"start_timeout_s": 77, "contract": "warn"}, measure={"stall_s": 55})
    assert measured.summarise().jobs.keys() <= {"make_plan", "summary"}
    assert lengths(measured) == [256, 512]


@pytest.mark.slow
def test_results_of_another_recipe_never_mix(measured: Pipeline) -> None:
    shutil.rmtree(measured.folder / ".snakemake")
    measured.configure(serve={"max_num_batched_tokens": 4096}, passes=2)
    done = measured.run(SUMMARY)
    assert done.code != 0
    sentences = [line for line in done.output.splitlines() if line.startswith("error:")]
    assert len(sentences) == 1
    assert sentences[0].startswith(
        "error: results/measurements/256/pass1.parquet: measured with another recipe (serve.max_num_batched_tokens:"
        " None -> 4096); results of different recipes never mix"
    )
    assert measured.run("report_now").code == 0
    report = (measured.results / "report.md").read_text()
    assert "measured with another recipe (serve.max_num_batched_tokens: None -&gt; 4096)" in report


def test_a_corrupt_parquet_comes_back_from_the_journal(measured: Pipeline) -> None:
    path = measured.results / "measurements" / "512" / "pass1.parquet"
    before = measured.rows("512/pass1")
    content = bytearray(path.read_bytes())
    middle = len(content) // 3
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(content)
    done = measured.summarise()
    assert "512/pass1: damaged Parquets (measurements) were written anew from the journal" in done.output
    assert lengths(measured) == [256, 512]
    assert measured.rows("512/pass1") == before


def test_a_live_run_refuses_a_second_one_in_one_sentence(prepared: Pipeline) -> None:
    prepared.hold(0)
    with running(prepared, SUMMARY) as first:
        until(lambda: len(prepared.requests()) == 1)
        second = prepared.tool(str(Path(LONGCTX).with_name("snakemake")), "--cores", "1", SUMMARY)
        assert second.returncode != 0
        assert second.stderr.count(f"another run (process {first.pid} on ") == 1
        assert "report_now` and `longctx watch results` work meanwhile" in second.stderr
        assert "--unlock" not in second.stderr
        watched = prepared.tool(LONGCTX, "watch", "results", "--once")
        assert watched.returncode == 0, watched.stderr
        assert "0 of 2 points done, 1 running" in watched.stdout
        now = prepared.tool(str(Path(LONGCTX).with_name("snakemake")), "--cores", "1", "report_now")
        assert now.returncode == 0, now.stderr
        assert first.poll() is None
        prepared.release()
        assert prepared.finish(first).code == 0
    assert Counter(lengths(prepared)) == {256: 1, 512: 1}
    assert [row["n"] for row in prepared.summary()] == [1, 1]


@pytest.mark.slow
def test_a_report_made_meanwhile_hides_no_missing_point(prepared: Pipeline) -> None:
    assert prepared.run("results/measurements/256/pass1.parquet").code == 0
    assert prepared.run("report_now").code == 0
    assert {row["length"]: (row["n"], row["n_missing"]) for row in prepared.summary()} == {256: (1, 0), 512: (0, 1)}
    assert "not measured yet" in (prepared.results / "report.md").read_text()
    prepared.summarise()
    assert [row["n"] for row in prepared.summary()] == [1, 1]


def test_a_failing_point_fails_alone_and_is_all_that_is_tried_again(prepared: Pipeline) -> None:
    broken = {"by_max_tokens": {"6": {"http_status": 500, "http_message": "told to fail"}}}
    prepared.faults(by_length={"256": broken})
    failed = prepared.run()
    assert failed.code != 0
    assert prepared.measured("512/pass1") == [("cold", 0, "ok")]
    report = (prepared.results / "report.md").read_text()
    assert "error_event" in report
    assert "told to fail" in report
    assert [(row["length"], row["n"], row["n_failed"]) for row in prepared.summary()] == [(256, 0, 1), (512, 1, 0)]
    prepared.faults()
    again = prepared.run()
    assert again.code == 0, again.output
    assert again.jobs["measure"] == 1
    assert lengths(prepared) == [256, 512, 256]
    assert [row["n"] for row in prepared.summary()] == [1, 1]
    assert "told to fail" not in (prepared.results / "report.md").read_text()


@pytest.mark.slow
def test_longer_lengths_are_skipped_where_the_kv_cache_was_too_small(prepared: Pipeline) -> None:
    prepared.configure(lengths=[256, 512, 1024])
    prepared.faults(capacity=400)
    failed = prepared.run(SUMMARY)
    assert failed.code != 0
    assert lengths(prepared) == [256]
    assert "512/pass1: kv_too_small: the KV cache holds 400 tokens at most" in failed.output
    assert "1Ki/pass1: kv_too_small: skipped, since 512 did not fit earlier in this run" in failed.output
    assert not (prepared.results / "logs" / "1Ki" / "pass1.server.log").exists()
    prepared.faults()
    prepared.summarise()
    assert lengths(prepared) == [256, 512, 1024]


@pytest.mark.slow
def test_one_server_for_a_pass_drops_only_the_lengths_too_long(prepared: Pipeline) -> None:
    prepared.configure(serve={"scope": "pass"})
    prepared.faults(capacity=400)
    failed = prepared.run(SUMMARY)
    assert failed.code != 0
    assert lengths(prepared) == [256]
    assert "512/pass1: kv_too_small" in failed.output
    prepared.faults()
    prepared.summarise()
    assert lengths(prepared) == [256, 512]
    assert [row["n"] for row in prepared.summary()] == [1, 1]


def took(pipeline: Pipeline, point: str, hours: float) -> None:
    """Let the point's request have taken so long, as its journal says."""
    path = pipeline.results / "journal" / f"{point}.jsonl"
    records = journal.read(path)[0]
    path.unlink()
    for record in records:
        cold = record.kind == "row" and record.data["role"] == "cold"
        journal.Journal(path).append(record.kind, record.data | ({"e2e_s": hours * 3600} if cold else {}))


def test_nothing_that_took_long_is_measured_again_unasked(measured: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    took(measured, "512/pass1", 11.2)
    parquets = {path: path.read_bytes() for path in measured.results.glob("measurements/*/*")}
    measured.configure(serve={"max_num_batched_tokens": 4096})
    refused = measured.run(SUMMARY)
    assert refused.code != 0
    assert refused.jobs["measure"] == 0
    sentence = next(line for line in refused.said if "hours" in line)
    assert (
        "256/pass1, 512/pass1: finished requests that took 11.2 h (11.20 hours) with their servers' starts would be"
        in sentence
    )
    assert "measured again, since serve.max_num_batched_tokens: None -> 4096. Nothing is started." in sentence
    assert "LONGCTX_MEASURE_AGAIN=1" in sentence
    assert "Traceback" not in refused.output
    assert {path: path.read_bytes() for path in measured.results.glob("measurements/*/*")} == parquets
    assert lengths(measured) == [256, 512]
    # Without Snakemake too, before a server starts.
    plan = ["--plan", "", "--log", "log", "--points", "512/pass1", "--prompts", "results/prompts/512.parquet"]
    config = max((measured.results / ".config").glob("*[0-9a-f].json"), key=lambda path: path.stat().st_mtime)
    by_hand = [sys.executable, "scripts/measure.py", "--config-file", str(config), *plan]
    alone = measured.tool(*by_hand, "--validations", "results/validation/512.parquet")
    assert alone.returncode == 1
    assert "11.20 hours" in alone.stderr
    assert "Traceback" not in alone.stderr
    assert measured.run(SUMMARY, "-n").code == 0
    monkeypatch.setenv("LONGCTX_MEASURE_AGAIN", "1")
    measured.summarise()
    assert lengths(measured) == [256, 512, 256, 512]


@pytest.mark.slow
def test_another_prompt_sets_nothing_aside_that_took_long(measured: Pipeline) -> None:
    took(measured, "512/pass1", 1.0)
    for path in [*(measured.folder / "corpus").iterdir()][1:]:
        path.unlink()
    for path in measured.results.glob("*/512.parquet"):
        path.unlink()
    shutil.rmtree(measured.results / "corpus")
    (measured.results / "measurements" / "512" / "pass1.parquet").unlink()
    (measured.results / "servers" / "512" / "pass1.parquet").unlink()
    refused = measured.run("results/measurements/512/pass1.parquet")
    assert refused.code != 0
    assert "would be measured again, since prompt_sha256: " in refused.output
    assert lengths(measured) == [256, 512]
    assert not (measured.results / "journal" / "512" / "superseded").exists()
