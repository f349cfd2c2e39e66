"""Splits of a model over GPUs: which ones there are, and how long a context each of them holds."""

from dataclasses import replace

import pytest
from longctx.model.reader import read_geometry
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.parallel_splits import hold_table, nodes_table, splits
from longctx.plan.system import Settings, System

MI, GIB = 2**20, 2**30
KIMI = read_geometry("kimi-linear-48b-a3b")
LLAMA = read_geometry("llama-3.1-8b")
MI355X, H200 = load_hardware("MI355X", 8), load_hardware("H200")
PUBLISHED = Settings("fp8_e4m3", 0.952, 16384, aiter_version="v0.1.19.post2", passes=3, vllm_version="0.25.1")
NODE = System(KIMI, MI355X, Parallelism(tensor=8), PUBLISHED)


def test_hold_table_covers_splits_and_precisions() -> None:
    rows = hold_table(NODE)
    longest = {(row["parallelism"], row["kv_dtype"]): row["max_context"] for row in rows}
    assert longest["TP8", "bfloat16"] < 64 * MI <= longest["TP8", "fp8"]
    assert longest["TP8 DCP8", "fp8"] == pytest.approx(8 * longest["TP8", "fp8"], rel=0.01)
    assert longest["PP8", "fp8"] > 6 * longest["TP8", "fp8"]
    assert {row["parallelism"] for row in rows if row["problem"]} == {
        row["parallelism"] for row in rows if "DCP" in row["parallelism"]
    }
    llama = {row["parallelism"] for row in hold_table(replace(NODE, geometry=LLAMA))}
    assert "TP8" in llama
    assert not any("DCP" in label for label in llama)


def test_a_length_over_nodes_is_computed_not_run() -> None:
    rows = nodes_table(NODE, 256 * MI)
    starting = [(row["nodes"], row["parallelism"]) for row in rows if row["problem"] is None]
    assert starting == [(1, "PP8"), (2, "TP2 PP8"), (2, "PP16")]
    assert rows[-1]["kv_bytes_per_rank"] == 144 * GIB, "one MLA layer"
    assert all(row["max_context"] >= 256 * MI for row in rows)
    (row,) = nodes_table(NODE, 512 * MI)
    assert (row["parallelism"], row["problem"]) == (
        "TP8 DCP8",
        "vLLM 0.25.1 refuses context parallelism for hybrid models (layers with caches of several kinds)",
    )
    assert nodes_table(System(KIMI, H200, Parallelism(), PUBLISHED), 2**36, max_nodes=1) == []


def test_splits_are_those_the_model_allows() -> None:
    qwen = read_geometry("qwen2.5-7b-1m")
    assert [s.label for s in splits(qwen, 8)] == ["TP4 PP2", "TP2 PP4", "PP8"]
