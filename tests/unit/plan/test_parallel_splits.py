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
PUBLISHED = Settings("fp8_e4m3", 0.952, 16384, aiter_version="v0.1.19.post2", passes=3)
NODE = System(KIMI, MI355X, Parallelism(tensor=8), PUBLISHED)


def test_hold_table_covers_splits_and_precisions() -> None:
    rows = hold_table(NODE)
    longest = {(row["parallelism"], row["kv_dtype"]): row["max_context"] for row in rows}
    assert longest["TP8", "bfloat16"] < 64 * MI <= longest["TP8", "fp8"]
    assert longest["TP8 DCP8", "fp8"] == pytest.approx(8 * longest["TP8", "fp8"], rel=0.01)
    assert ("PP8", "fp8") in longest
    llama = {row["parallelism"] for row in hold_table(replace(NODE, geometry=LLAMA))}
    assert "TP8" in llama
    assert not any("DCP" in label for label in llama)


def test_512mi_over_nodes_is_computed_not_run() -> None:
    rows = nodes_table(NODE, 512 * MI)
    assert (rows[0]["nodes"], rows[0]["parallelism"]) == (1, "TP8 DCP8")
    assert rows[0]["kv_bytes_per_rank"] == 252 * GIB
    assert any(row["nodes"] == 2 and "PP2" in row["parallelism"] for row in rows)
    assert all(row["max_context"] >= 512 * MI for row in rows)
    assert nodes_table(System(KIMI, H200, Parallelism(), PUBLISHED), 2**36, max_nodes=1) == []


def test_splits_are_those_the_model_allows() -> None:
    qwen = read_geometry("qwen2.5-7b-1m")
    assert [s.label for s in splits(qwen, 8)] == ["TP4 PP2", "TP2 PP4", "PP8"]
