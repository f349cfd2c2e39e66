"""Chunks of real prefills, from the server's log and from progress samples."""

import json
from typing import Any

import makesamples
import pytest
from longctx.modes.sampled.estimates import chunk_curve
from longctx.results.ttft.chunks import chunk_rows
from longctx.storage import parquet, schemas

CHUNK, MI = makesamples.CHUNK, 2**20


def logged(seconds: list[float], compiled: int | None = None, **changes: Any) -> dict[str, Any]:
    """Return a real prefill whose server logged a chunk of each of these durations."""
    entries = [[CHUNK, one, index == compiled] for index, one in enumerate(seconds)]
    made = {"prefill_chunks": json.dumps(entries), "prefill_s": sum(seconds)}
    return makesamples.real(CHUNK * len(seconds), role="cold") | made | changes


def test_logged_iterations_give_the_time_of_every_shorter_prompt(tmp_path: Any) -> None:
    curve = chunk_curve(makesamples.campaign(passes=1))
    rows = chunk_rows([makesamples.real(MI + 1000)], [], curve)
    assert [row["depth"] for row in rows] == list(range(0, MI + 1000, CHUNK))
    assert rows[-1]["tokens"] == 1000
    assert rows[31]["elapsed_s"] == pytest.approx(makesamples.prefill_s(MI // 2) - makesamples.FIXED)
    assert all(row["sampled_s"] == pytest.approx(row["seconds"], rel=1e-3) for row in rows)
    assert {(row["source"], row["mark"], row["error_s"]) for row in rows} == {("iterations", None, 0.0)}
    parquet.write_rows(tmp_path / "chunks.parquet", schemas.CHUNKS, rows)


def test_a_slow_and_a_compiling_chunk_are_marked() -> None:
    seconds = [1 + 0.1 * index for index in range(20)]
    seconds[7] *= 1.4
    seconds[19] *= 1.3
    marks = {row["depth"] // CHUNK: row["mark"] for row in chunk_rows([logged(seconds, compiled=2)], [], None)}
    assert {index: mark for index, mark in marks.items() if mark} == {2: "compiled", 7: "slow", 19: "slow"}


def test_a_throttled_stretch_is_slow_at_its_edge_and_three_chunks_say_nothing() -> None:
    stretch = [row["mark"] for row in chunk_rows([logged([1.0] * 12 + [1.5] * 3 + [1.0] * 12)], [], None)]
    assert stretch.count("slow") == 3
    assert [row["mark"] for row in chunk_rows([logged([1.0, 9.0, 1.0])], [], None)] == [None] * 3


def test_a_first_chunk_is_not_slow_for_a_line_that_meets_zero() -> None:
    assert [row["mark"] for row in chunk_rows([logged([0.08, 0.12, 0.24, 0.36, 0.48, 0.6])], [], None)] == [None] * 6


@pytest.mark.parametrize(
    "changes",
    [{"status": "doubtful"}, {"role": "warmup"}, {"role": "sample_long"}, {"cached_tokens": 64}, {"prefill_s": None}],
)
def test_only_sound_whole_prefills_have_chunks(changes: dict[str, Any]) -> None:
    assert chunk_rows([logged([1.0, 1.0, 1.0], **changes)], [], None) == []


def progress(row: dict[str, Any], interval_s: float) -> list[dict[str, Any]]:
    """Return what looks at the KV cache would have seen: a chunk's tokens are held from its start on."""
    before_s, samples, start_s, depth = row["overhead_s"] + row["queue_s"], [], makesamples.FIXED, 0
    starts = []
    for seconds in makesamples.chunks_s(0, row["prompt_tokens"]):
        depth += CHUNK
        starts.append((start_s, min(depth, row["prompt_tokens"])))
        start_s += seconds
    at = interval_s
    while at < before_s + row["prefill_s"]:
        held = [tokens for begin, tokens in starts if begin <= at - before_s]
        samples.append({"elapsed_s": at, "tokens_done": held[-1] if held else 0, "tokens_total": row["prompt_tokens"]})
        at += interval_s
    labels = {name: row[name] for name in ("mode", "length", "pass_index", "role", "request_index")}
    return [labels | sample for sample in samples]


def test_progress_samples_give_spans_where_nothing_is_logged() -> None:
    row = makesamples.real(MI, role="cold") | {"prefill_chunks": None}
    curve = chunk_curve(makesamples.campaign(passes=1))
    spans = chunk_rows([row], progress(row, 0.1), curve)
    assert sum(span["tokens"] for span in spans) == MI
    assert spans[-1]["elapsed_s"] == pytest.approx(row["prefill_s"])
    assert len(spans) > 10
    assert {span["source"] for span in spans} == {"progress"}
    for span in spans:
        # A chunk may have begun up to a chunk's time before a look shows it.
        last_chunk_s = makesamples.chunk_s(span["depth"] + span["tokens"])
        assert abs(span["seconds"] - span["sampled_s"]) < 0.1 + last_chunk_s
    assert chunk_rows([row], [], curve) == []


@pytest.mark.parametrize(
    "seconds",
    [[1e-5] * 7 + [4.0], [1.0, 1e-5, 1.0, 1e-5, 1.0, 1.0]],
    ids=["all waited for at the end", "every other one"],
)
def test_times_of_an_engine_that_runs_ahead_are_not_those_of_chunks(seconds: list[float]) -> None:
    """As reported of vLLM on GPUs: 8 chunks of 2,048 tokens with a median of 0.03 ms."""
    assert chunk_rows([logged(seconds)], [], None) == []
    assert chunk_rows([logged([1.0] * 5, prefill_s=9.0)], [], None) == []
    assert len(chunk_rows([logged([1.0] * 5, prefill_s=5.2)], [], None)) == 5


def test_a_log_of_other_tokens_than_the_prompts_is_not_its_own() -> None:
    assert chunk_rows([logged([1.0, 1.0], prompt_tokens=CHUNK)], [], None) == []
