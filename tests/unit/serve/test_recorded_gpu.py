"""What vLLM 0.25.1 said on one H200 (Kimi Linear 48B geometry, random weights), replayed without a GPU."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.campaign import Campaign, load
from longctx.campaign.point import Point
from longctx.measure import checkpoints
from longctx.measure.point_record import PointRecord
from longctx.serve import root_cause, server_facts
from longctx.serve.metrics import decode_tok_s
from longctx.storage import parquet, schemas
from longctx.storage.journal import Journal, read

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "tests" / "data" / "server_logs"
RESULTS = ROOT / "resources" / "results"


def recorded(name: str) -> list[str]:
    return (LOGS / f"h200-0.25.1-{name}.log").read_text().splitlines()


def test_facts_of_a_start() -> None:
    read = server_facts.read_log(recorded("start"))
    expected = {
        "vllm_version": "0.25.1",
        "attention_backend": "FLASHMLA",
        "prefill_backend": "FLASH_ATTN",
        "kv_cache_dtype": "fp8_e4m3",
        "block_size": 3776,
        "kv_capacity_tokens": 9_800_167,
        "max_model_len": 8_404_992,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "max_num_batched_tokens": 16_384,
        "max_num_seqs": 1,
        "kv_connector": "DecodeBenchConnector",
        "tensor_parallel_size": 1,
        "prefix_caching": False,
        "load_format": "dummy",
        "device_config": "cuda",
    }
    assert {name: read.get(name) for name in expected} == expected


def test_the_capacity_logged_for_a_shorter_maximum_length() -> None:
    """An earlier start: 9,798,743 tokens at 8,400,000; block padding makes it depend on the maximum length."""
    lines = ["GPU KV cache size: 9,798,743 tokens", "Maximum concurrency for 8,400,000 tokens per request: 1.17x"]
    assert server_facts.read_log(lines)["kv_capacity_tokens"] == 9_798_743


def test_compiling_and_tuning_inside_a_request_count_as_jit() -> None:
    lines = recorded("first-requests")
    found = server_facts.jit_lines(lines)
    kinds = ("JIT compilation during inference", "Autotuning kernel ", "Triton autotuning for function ")
    assert [sum(kind in line for line in lines) for kind in kinds] == [11, 3, 1]
    assert [sum(kind in line for line in found) for kind in kinds] == [11, 3, 1]
    assert len(found) == 15, "throughput and the rest of what the tuner says are no events of their own"
    assert found[0].startswith("Triton kernel JIT compilation during inference: _zero_kv_blocks_kernel")


def test_a_killed_engine_is_not_taken_for_an_error_of_its_server() -> None:
    lines = recorded("engine-killed")
    told = root_cause.root_cause_line(lines)
    assert told == (
        "its engine process was killed or crashed, leaving no error of its own ([shutdown] MPClient: engine core exited"
        " unexpectedly; starting cleanup)"
    )
    cause = "(EngineCore pid=5160) ERROR 11-29 16:58:07 [core.py:1] torch.OutOfMemoryError: CUDA out of memory."
    assert root_cause.root_cause_line([lines[0], cause, *lines[1:]]) == "torch.OutOfMemoryError: CUDA out of memory."


def test_rates_follow_from_the_counters_of_every_recorded_request() -> None:
    rows = parquet.read_rows(RESULTS / "h200-tp1" / "rows.parquet", schemas.MEASUREMENTS)
    counted = [row for row in rows if row["status"] == "ok" and row["server_counters"]]
    assert max(row["length"] for row in counted if row["mode"] == "prefill") == 1 << 20
    assert {row["mode"] for row in counted} == {"prefill", "reuse", "decode_only"}
    for row in counted:
        counters = json.loads(row["server_counters"])
        grown = {name: counter["after"] - counter["before"] for name, counter in counters.items()}
        assert grown["requests"] == 1
        assert grown["generation_tokens"] == row["completion_tokens"]
        assert row["decode_tok_s"] == pytest.approx(decode_tok_s(row["completion_tokens"], grown["itl_sum_s"]))
        if row["mode"] == "prefill":
            assert (grown["prompt_tokens"], grown["cached_tokens"]) == (row["prompt_tokens"], 0)
            assert row["prefill_s"] == pytest.approx(grown["prefill_s"])
            assert row["overhead_s"] == pytest.approx(row["ttft_s"] - grown["prefill_s"] - grown["queue_s"])


def test_a_megatoken_answer_in_two_chunks_has_the_server_s_rate() -> None:
    rows = parquet.read_rows(RESULTS / "h200-tp1" / "rows.parquet", schemas.MEASUREMENTS)
    long = [row for row in rows if (row["mode"], row["length"], row["status"]) == ("prefill", 1 << 20, "ok")]
    coalesced = [row for row in long if row["coalesced"]]
    assert coalesced, "busy with a million ids, the API server sent many tokens at once"
    for row in coalesced:
        assert row["chunks"] < row["completion_tokens"]
        assert 190 < row["decode_tok_s"] < 210
        assert row["decode_source"] == "server"
        assert row["itl_p50_s"] is None


def rows_of(campaign: str) -> list[dict[str, Any]]:
    """The rows that count."""
    rows = parquet.read_rows(RESULTS / campaign / "rows.parquet", schemas.MEASUREMENTS)
    return [row for row in rows if row["role"] != "warmup"]


def test_a_resident_prefix_was_resident() -> None:
    hot = [row for row in rows_of("h200-tp1") if (row["mode"], row["role"]) == ("reuse", "reuse")]
    assert sorted({row["length"] for row in hot}) == [1 << 18, 1 << 20]
    for row in hot:
        counters = json.loads(row["server_counters"])
        cached = counters["cached_tokens"]["after"] - counters["cached_tokens"]["before"]
        assert row["cached_tokens"] == cached
        assert row["length"] - 3776 < cached < row["length"], "all but what does not fill a block"
        assert row["prompt_tokens"] == row["length"] + 64


@pytest.fixture
def killed(tmp_path: Path) -> PointRecord:
    """The journal of the 512Ki prefill that was killed half-way and went on, as the device wrote it."""
    with tarfile.open(RESULTS / "h200-checkpoint" / "journals.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    campaign: Campaign = load(RESULTS / "h200-checkpoint" / "recipe.yaml")
    path = tmp_path / "journal" / "512Ki" / "pass1.jsonl"
    return PointRecord(campaign, Point(1 << 19, 1), Journal(path, read(path)[0]))


def test_a_killed_prefill_went_on_and_was_put_together(killed: PointRecord) -> None:
    """kill -9 of the engine past 295,677 of 524,288 tokens; the same command took 256,768 back from the disk."""
    records = killed.journal.records
    begins = [i for i, record in enumerate(records) if record.kind == "begin" and record.data["role"] == "cold"]
    *_, row = [data for data in killed.rows().values() if data["role"] == "cold"]
    assert (row["status"], row["reasons"], row.get("ttft_s")) == ("ok", ["resumed"], None)
    assert row["resumed_from"] == row["external_hit_tokens"] == 256_768
    before = PointRecord(killed.campaign, killed.point, Journal(killed.journal.path, records[: begins[-1]]))
    (attempt,) = before.unfinished("cold", 0)
    assert (attempt.failed, attempt.reached) == (True, 295_677)
    stitched = checkpoints.stitch([attempt], row["resumed_from"], row["resumed_prefill_s"])
    assert stitched == {name: row[name] for name in stitched}
    (undisturbed,) = rows_of("h200-checkpoint-undisturbed")
    assert (undisturbed["status"], undisturbed["cached_tokens"]) == ("ok", 0)
    assert abs(row["stitched_prefill_s"] - undisturbed["prefill_s"]) < row["stitched_error_s"]
    assert row["resumed_ttft_s"] < undisturbed["ttft_s"]
