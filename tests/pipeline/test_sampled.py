"""Mode sampled through the real Snakemake: pairs behind claimed prefixes, and more of them where the cost bends."""

import json
import os
import signal
from collections import Counter
from typing import Any

import pytest
from pipeline import Pipeline, running, until

CHUNK, LENGTHS = 64, (256, 512, 1024, 2048)
LONGEST = "2Ki/sampled-pass1"
# Chunks at the end of 512 tokens cost more than a straight line says.
BEND = {"model_s": [0.002, 1e-4, 1e-8], "by_length": {"512": {"model_s": [0.002, 4e-4, 0.0]}}}
# The first pair lies in the middle of the wider interval beside the knot at 352: (352 + 864) / 2 = 9.5 chunks deep.
FIRST = 12 * CHUNK


@pytest.fixture
def sampled(prepared: Pipeline) -> Pipeline:
    serve = {"scope": "campaign", "max_num_batched_tokens": CHUNK}
    prepared.configure(lengths=list(LENGTHS), modes=["sampled"], sampled={"whole": [512]}, serve=serve)
    return prepared


def sent(pipeline: Pipeline) -> list[tuple[int, int]]:
    """(tokens, claimed tokens) of every sample that reached a server, in order."""
    path = pipeline.folder / "requests.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["count"], line["cached"]) for line in lines if line["max_tokens"] == 1]


def refinements(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [row for row in pipeline.rows(LONGEST) if row["role"].startswith("sample") and row["request_index"]]


def test_pairs_claim_all_but_their_last_chunks_and_a_bend_gets_more(sampled: Pipeline) -> None:
    sampled.faults(**BEND)
    sampled.summarise()
    ladder = [(n, n - CHUNK * chunks) for n in LENGTHS for chunks in (1, 3)]
    assert sent(sampled)[: len(ladder)] == ladder
    whole = [row for row in sampled.rows("512/sampled-pass1") if row["role"] == "whole"]
    assert [(row["status"], row["claimed_tokens"], row["ttft_s"] is not None) for row in whole] == [("ok", None, True)]
    more = refinements(sampled)
    assert [row["prompt_tokens"] for row in more] == [row["request_index"] for row in more], "an index is a length"
    assert more[0]["prompt_tokens"] == FIRST
    assert 2 <= len(more) <= 8
    assert set(Counter(row["prompt_tokens"] for row in more).values()) == {2}
    for row in more:
        assert row["status"] == "ok"
        assert row["prompt_tokens"] - row["claimed_tokens"] in (CHUNK, 3 * CHUNK)
        assert row["ttft_s"] is row["prefill_s"] is row["decode_tok_s"] is None
        assert row["sample_prefill_s"] > 0


def test_a_straight_line_gets_no_more(sampled: Pipeline) -> None:
    sampled.faults(model_s=BEND["model_s"])
    sampled.summarise()
    assert len(sent(sampled)) == 2 * len(LENGTHS)
    assert refinements(sampled) == []


def test_a_job_killed_inside_a_pair_goes_on_with_its_second_half(sampled: Pipeline) -> None:
    """Killed with kill -9 while the long sample of the first added pair waits for its token."""
    (sampled.folder / "hold").touch()
    held = 2 * len(LENGTHS) + 1
    sampled.faults(**BEND)
    plan = json.loads((sampled.folder / "plan.json").read_text())
    plan["by_max_tokens"]["1"] = {"by_turn": {str(held): {"hold": str(sampled.folder / "hold")}}}
    (sampled.folder / "plan.json").write_text(json.dumps(plan))
    with running(sampled, "results/summary.parquet") as snakemake:
        until(lambda: len(sent(sampled)) == held + 1)
        os.kill(sampled.one("measure.py"), signal.SIGKILL)
        assert sampled.finish(snakemake).code == 1
    before = sent(sampled)
    sampled.faults(**BEND)
    sampled.summarise()
    after = sent(sampled)[len(before) :]
    assert after[0] == before[-1] == (FIRST, FIRST - 3 * CHUNK), "only the half that is missing"
    assert not set(after[1:]) & set(before), "nothing that was finished is sent again"
    undisturbed = refinements(sampled)
    assert {row["status"] for row in undisturbed} == {"ok"}
    assert Counter(row["prompt_tokens"] for row in undisturbed)[FIRST] == 2
