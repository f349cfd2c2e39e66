"""A prefill killed twice goes on from its checkpoint, and its row says so."""

import os
import signal
from pathlib import Path

import pytest
from busy import told
from longctx.measure.row.verdict import JIT_EVENT_S
from pipeline import Pipeline, running, until

POINT, TARGET = "512/pass1", "results/measurements/512/pass1.parquet"
# A whole prefill of 512 tokens, linear in their number.
PREFILL_S = 6.0
MODEL_S = [0.0, PREFILL_S / 512, 0.0]


@pytest.fixture
def checkpointed(prepared: Pipeline) -> Pipeline:
    del prepared.config["serve"]["cpu_kv_cache_gib"]
    prepared.configure(lengths=[512], checkpoint={"dir": str(prepared.folder / "checkpoints")})
    prepared.hold(0, model_s=MODEL_S)
    return prepared


def samples(pipeline: Pipeline, attempt: int) -> list[int]:
    """Tokens done in each progress sample of an attempt (the first is 0)."""
    attempts: list[list[int]] = []
    for record in pipeline.journal(POINT):
        if record.data.get("role") == "cold" and record.kind == "begin":
            attempts.append([])
        elif record.data.get("role") == "cold" and record.kind == "progress":
            attempts[-1].append(record.data["tokens_done"])
    return attempts[attempt] if attempt < len(attempts) else []


def folders(pipeline: Pipeline) -> list[Path]:
    return list((pipeline.folder / "checkpoints" / "longctx" / "default").glob("*"))


def test_a_prefill_killed_twice_goes_on(checkpointed: Pipeline) -> None:
    for attempt, victim in enumerate(("fakeserver.py", "snakemake")):
        with running(checkpointed, TARGET) as snakemake:
            until(lambda attempt=attempt: len(samples(checkpointed, attempt)) >= 2)
            os.kill(snakemake.pid if victim == "snakemake" else checkpointed.one(victim), signal.SIGKILL)
            assert checkpointed.finish(snakemake).code != 0
        checkpointed.nothing_left()
        assert len(folders(checkpointed)) == 1
    checkpointed.faults(measured={"model_s": MODEL_S})
    assert checkpointed.run(TARGET).code == 0
    (row,) = [row for row in checkpointed.rows(POINT) if row["role"] == "cold"]
    assert (row["status"], told(row)) == ("ok", ["resumed"])
    assert row["ttft_s"] is None
    assert row["prefill_s"] is None
    assert 0 < row["resumed_from"] < 512
    assert row["resumed_prefill_s"] == pytest.approx(PREFILL_S * (1 - row["resumed_from"] / 512))
    assert row["external_hit_tokens"] == row["resumed_from"]
    assert abs(row["stitched_prefill_s"] - PREFILL_S) <= row["stitched_error_s"] + 0.5
    assert row["decode_tok_s"] is not None
    assert len(set(checkpointed.requests())) == 1
    assert len(checkpointed.requests()) == 3
    warmups = [row for row in checkpointed.rows(POINT) if row["role"] == "warmup"]
    assert {row["cached_tokens"] for row in warmups} == {0}
    assert folders(checkpointed) == []


@pytest.mark.slow
def test_a_kernel_compiled_in_the_rest_widens_the_error_and_repeats_nothing(checkpointed: Pipeline) -> None:
    with running(checkpointed, TARGET) as snakemake:
        until(lambda: sum(done > 0 for done in samples(checkpointed, 0)) >= 2)
        os.kill(snakemake.pid, signal.SIGKILL)
        snakemake.wait()
        checkpointed.nothing_left()
    checkpointed.faults(measured={"model_s": MODEL_S, "jit_line": True})
    assert checkpointed.run(TARGET).code == 0
    (row,) = [row for row in checkpointed.rows(POINT) if row["role"] == "cold"]
    assert (row["status"], told(row)) == ("ok", ["compiled", "resumed"])
    assert row["decode_tok_s"] is None
    assert row["stitched_error_s"] > row["jit_events"] * JIT_EVENT_S > 0
    assert len(checkpointed.requests()) == 2


@pytest.mark.slow
def test_a_lost_checkpoint_costs_time_and_is_said(checkpointed: Pipeline) -> None:
    with running(checkpointed, TARGET) as snakemake:
        until(lambda: max(samples(checkpointed, 0), default=0) > 0)
        os.kill(snakemake.pid, signal.SIGKILL)
        snakemake.wait()
        checkpointed.nothing_left()
    (folder,) = folders(checkpointed)
    (folder / "fake-blocks.json").write_text("{}")
    checkpointed.faults(measured={"model_s": [0.0, 0.1 / 512, 0.0]})
    assert checkpointed.run(TARGET).code == 0
    (row,) = [row for row in checkpointed.rows(POINT) if row["role"] == "cold"]
    assert (row["status"], told(row)) == ("ok", ["no_external_hits"])
    assert row["cached_tokens"] == 0
    assert row["prefill_s"] == pytest.approx(0.1)
    assert row["resumed_from"] is None
