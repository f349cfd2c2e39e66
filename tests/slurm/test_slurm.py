"""The pipeline through Snakemake's SLURM executor on a real SLURM, with a stand-in for vLLM; and once with vLLM."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import vllmhold
import vllmplugins
from longctx.storage import parquet, schemas
from onenode import ROOT, Slurm, Sweep

Make = Callable[..., Sweep]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
# A prefill that is long enough to be cancelled in its middle.
SLOW = {"by_length": {"512": {"ttft_s": 3.0}}}
# The least time limit is a minute: a warm-up and two or three requests.
SLOWER = {"by_length": {"512": {"ttft_s": 12.0}}}


def running(slurm: Slurm) -> str:
    (job,) = [job for job, state in slurm.jobs("rule_measure").items() if state == "RUNNING"]
    return job


# SLURM's clock counts in minutes.
ON_DEMAND = pytest.mark.skipif(not os.environ.get("LONGCTX_SLOW"), reason="takes three minutes; LONGCTX_SLOW=1 runs it")


def test_a_sweep_is_one_exclusive_job_per_length_and_pass(slurm: Slurm, sweep: Make) -> None:
    one = sweep()
    before = set(slurm.jobs(""))
    assert one.run(target="all") == 0, one.output
    jobs = {job: state for job, state in slurm.jobs("").items() if job not in before}
    assert Counter(jobs.values()) == {"COMPLETED": 4}, "everything else runs where Snakemake runs"
    for number in jobs:
        job = slurm.job(number)
        assert job["OverSubscribe"] == "NO"
        assert int(job["NumCPUs"]) == psutil.cpu_count()
        assert 6400 < int(job["MinMemoryNode"].removesuffix("M")) < 6410, "five GiB and a quarter more"
        assert job["TimeLimit"] == "12:05:00", "12 h of a CPU that was never measured, 300 s to start"
        assert job["Requeue"] == "1"
    for name in ("256/pass1", "256/pass2", "512/pass1", "512/pass2"):
        (row,) = [
            row
            for row in parquet.read_rows(one.results / "measurements" / f"{name}.parquet", schemas.MEASUREMENTS)
            if row["role"] == "cold"
        ]
        assert (row["status"], row["host"]) == ("ok", slurm.run("hostname").strip())
    assert [row["n"] for row in parquet.read_rows(one.results / "summary.parquet")] == [2, 2]
    assert (one.results / "report.html").exists()
    assert one.run("--config", "max_new_tokens=16", target="all") == 0
    assert {job for job in slurm.jobs("") if job not in before} == set(jobs), "nothing is measured twice"


@pytest.mark.parametrize("end", ["scancel", pytest.param("time limit", marks=ON_DEMAND)])
def test_a_job_that_ends_early_loses_nothing_that_was_measured(slurm: Slurm, sweep: Make, end: str) -> None:
    one = sweep(SLOW if end == "scancel" else SLOWER, lengths=[512], passes=1, repeats={"count": 8})
    one.start(*(("--set-resources", "measure:runtime=1") if end == "time limit" else ()))
    one.until(lambda: len(one.rows("512/pass1")) >= 1 and one.begun("512/pass1") >= 2)
    job = running(slurm)
    if end == "scancel":
        slurm.run("scancel", job)
    assert one.wait() != 0
    assert slurm.jobs("rule_measure")[job] == {"scancel": "CANCELLED", "time limit": "TIMEOUT"}[end]
    kept = one.rows("512/pass1")
    assert 1 <= len(kept) < 8
    assert not (one.results / "measurements/512/pass1.parquet").exists()
    one.until(lambda: not one.processes())
    one.fault()
    assert one.run() == 0, one.output
    rows = one.rows("512/pass1")
    assert rows[: len(kept)] == kept, "what was there is there"
    assert [row["request_index"] for row in rows] == list(range(8))
    measured = parquet.read_rows(one.results / "measurements/512/pass1.parquet", schemas.MEASUREMENTS)
    assert sum(row["role"] != "warmup" for row in measured) == 8


def test_a_job_that_slurm_puts_back_goes_on_from_its_journal(slurm: Slurm, sweep: Make) -> None:
    """What pre-emption and node failures do: the job ends, is queued again and starts anew."""
    one = sweep(SLOW, lengths=[512], passes=1, repeats={"count": 4})
    one.start()
    one.until(lambda: len(one.rows("512/pass1")) >= 1 and one.begun("512/pass1") >= 2)
    job = running(slurm)
    slurm.run("scontrol", "requeue", job)
    one.until(lambda: slurm.jobs("rule_measure")[job] == "PENDING")
    kept = one.rows("512/pass1")
    one.fault()
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert one.wait() == 0, one.output
    assert slurm.job(job)["Restarts"] == "1"
    rows = one.rows("512/pass1")
    assert rows[: len(kept)] == kept
    assert [row["request_index"] for row in rows] == [0, 1, 2, 3]


def test_jobs_outlive_a_killed_snakemake_and_the_next_one_takes_their_results(slurm: Slurm, sweep: Make) -> None:
    one = sweep(SLOW, lengths=[512], passes=1, repeats={"count": 2})
    one.start()
    one.until(lambda: one.begun("512/pass1") >= 1)
    job = running(slurm)
    assert one.process is not None
    one.process.kill()
    one.process.wait()
    assert one.run() == 0, one.output
    assert slurm.jobs("rule_measure")[job] == "COMPLETED", "the first job went on and was not measured against"
    assert [row["request_index"] for row in one.rows("512/pass1")] == [0, 1]
    assert max(Counter(one.sent()).values()) == 1, "no prompt was sent twice"


def test_gpus_are_asked_for_as_the_recipe_has_them(slurm: Slurm, sweep: Make) -> None:
    serve = {"tensor_parallel_size": 2, "cpu_kv_cache_gib": None}
    one = sweep(lengths=[256], passes=1, serve=serve, hardware={"gpu": "H200", "count": 2})
    before = set(slurm.jobs(""))
    assert one.run("--set-resources", "measure:mem_mb=1000") == 0, one.output
    (number,) = [job for job in slurm.jobs("") if job not in before]
    job = slurm.job(number)
    assert job["TresPerJob"].endswith("gpu:2")
    assert job["MinMemoryNode"] == "1000M", "what a user sets wins"


@pytest.mark.serving
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm")
def test_real_vllm_is_cancelled_in_the_middle_and_the_same_command_finishes(
    slurm: Slurm, sweep: Make, tmp_path: Path
) -> None:
    plugins = vllmplugins.install(tmp_path / "plugins", vllmhold)
    hold = vllmhold.hold(plugins, 8192)
    serve = {
        "python": str(PYTHON),
        "scope": "pass",
        "enforce_eager": True,
        "contract": "fail",
        "start_timeout_s": 600,
        "max_num_batched_tokens": 2048,
        "env": {"PYTHONPATH": str(plugins)},
    }
    one = sweep(lengths=["1Ki", "16Ki"], serve=serve)
    one.start()
    one.until(lambda: one.begun("16Ki/pass1") + one.begun("16Ki/pass2") == 1, 900)
    slurm.run("scancel", running(slurm))
    hold.unlink()
    one.until(lambda: len(one.rows("1Ki/pass1")) + len(one.rows("1Ki/pass2")) == 2, 900)
    assert one.wait() != 0
    kept = [row for name in ("1Ki/pass1", "1Ki/pass2") for row in one.rows(name)]
    assert [row["status"] for row in kept] == ["ok", "ok"]
    assert one.run() == 0, one.output
    assert [row for name in ("1Ki/pass1", "1Ki/pass2") for row in one.rows(name)] == kept
    summary = parquet.read_rows(one.results / "summary.parquet", schemas.SUMMARY)
    assert [(row["length"], row["n"], row["n_failed"], row["n_missing"]) for row in summary] == [
        (1024, 2, 0, 0),
        (16384, 2, 0, 0),
    ]
    one.until(lambda: not one.processes())
