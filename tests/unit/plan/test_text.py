"""The plan as text."""

import json
from pathlib import Path

from longctx.model.reader import build_geometry, read_geometry
from longctx.plan import text
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.parallel_splits import hold_table, nodes_table
from longctx.plan.planner import plan_points
from longctx.plan.system import Settings, System

MI = 2**20
KIMI = read_geometry("kimi-linear-48b-a3b")
LLAMA = read_geometry("llama-3.1-8b")
NODE = System(KIMI, load_hardware("MI355X", 8), Parallelism(tensor=8), Settings("fp8_e4m3", 0.952, 16384))


def test_the_heading_names_model_and_place() -> None:
    cpu = System(LLAMA, None, Parallelism(), Settings("fp8", cpu_kv_gib=4.0))
    first, *_, last = text.heading(cpu)
    assert first == f"{LLAMA.name} on CPU, KV cache fp8"
    assert last == "  KV cache 4.0 GiB (VLLM_CPU_KVCACHE_SPACE)"
    assert text.heading(NODE)[0] == f"{KIMI.name} on 8 x MI355X, TP8, KV cache fp8_e4m3"


def test_windows_are_named() -> None:
    configs = json.loads((Path(__file__).parents[2] / "data" / "real_configs.json").read_text())
    mistral = build_geometry(configs["Mistral-7B-v0.1"]["config"], "mistral")
    assert mistral.windowed_bytes("bfloat16") == 32 * 2 * 8 * 128 * 4096 * 2
    lines = text.heading(System(mistral, load_hardware("H200"), Parallelism(), Settings()))
    assert any("windowed layers hold at most 512 MiB more in BF16, 256 MiB in FP8; vLLM keeps" in x for x in lines)
    assert "0 B/token" not in "\n".join(lines)
    assert any("KV cache of windows only" in line for line in lines)
    assert "windowed" not in "\n".join(text.heading(NODE))


def test_a_dtype_of_its_own_is_named_with_its_bytes() -> None:
    # 32 layers of 8 heads, keys and values of 128: half a byte an element and a byte of scale for 16.
    lines = text.heading(System(LLAMA, load_hardware("H200"), Parallelism(), Settings("nvfp4")))
    assert f"in FP8, {32 * 8 * 2 * (64 + 8):,} in nvfp4" in lines[2]


def test_memory_that_is_not_there_is_named() -> None:
    huge = System(LLAMA, None, Parallelism(), Settings("fp8", cpu_kv_gib=2.0**20))
    assert "this machine has " in text.heading(huge)[-1]
    large = System(read_geometry("deepseek-v3"), load_hardware("H200"), Parallelism(), Settings("fp8"))
    assert any(line.endswith(" GiB more than there is") for line in text.heading(large))


def test_lengths_beyond_the_model_s_own_limit_are_noted() -> None:
    assert text.position_note(LLAMA, 131072) == []
    assert "own limit is 131,072 tokens" in text.position_note(LLAMA, MI)[0]


def test_hold_lines_align_a_row_per_split_and_precision() -> None:
    rows = hold_table(NODE)
    title, header, dashes, *body, note = text.hold_lines(rows)
    assert note.startswith("* computed, but vLLM 0.32 has context parallelism for hybrid models in its code")
    assert all(("DCP" in line) == (" * " in line) for line in body)
    assert title == "How long a context could this node hold:"
    assert len(body) == len(rows)
    assert header.startswith("split  ")
    assert len({len(line) for line in (header, dashes, *body)}) == 1


def test_nodes_are_computed_and_not_run() -> None:
    rows = nodes_table(NODE, 512 * MI)
    assert "(computed, not run)" in text.nodes_lines(512 * MI, NODE.gpus, rows)[0]
    assert text.nodes_lines(512 * MI, NODE.gpus, [])[1] == "  no split of up to 16 nodes holds it"


def test_the_summary_line_names_what_cannot_fit() -> None:
    rows = plan_points(NODE, [("prefill", MI), ("prefill", 512 * MI)])
    assert text.summary_line(rows).startswith("512Mi cannot fit; campaign: ")
    assert text.summary_line(rows[:1]).startswith("all lengths may run; campaign: ")
    assert text.plan_text(NODE, rows).count("\n\n") == 2
    assert "Holding 128Mi tokens on nodes of 8 x MI355X" in text.plan_text(NODE, rows, 128 * MI)
