"""Sparse, compressed, shared and windowed attention: what vLLM caches of it, and the work of a prefill."""

import json
from pathlib import Path
from typing import Any

import pytest
from longctx.errors import GeometryError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan.hardware import Parallelism, load_hardware
from longctx.plan.system import Settings, System

RELEASED = Path(__file__).parents[2] / "data" / "released"
MI = 2**20


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((RELEASED / name / "config.json").read_text()), **changes}


def released(name: str) -> Geometry:
    return read_geometry(RELEASED / name)


# vLLM 0.32: FlashMLA's fp8_ds_mla rows have 656 B (mla_attention.py); the indexer's rows 128 FP8 and one FP32 scale
# (deepseek_v2.py, DeepseekV32IndexerCache), in BF16 for MiniMax M3 (minimax_m3/common/indexer.py).
@pytest.mark.parametrize(
    ("name", "bf16", "fp8"),
    [
        ("deepseek-ai--DeepSeek-V3.2", 61 * (1152 + 132), 61 * (656 + 132)),
        ("zai-org--GLM-5", 78 * (1152 + 132), 78 * (656 + 132)),
        ("zai-org--GLM-5.2-FP8", 78 * 1152 + 21 * 132, 78 * 656 + 21 * 132),  # 57 layers share an indexer
        ("MiniMaxAI--MiniMax-M3", 60 * 2 * 4 * 128 * 2 + 57 * 256, 60 * 2 * 4 * 128 + 57 * 256),
        ("moonshotai--Kimi-K3", 24 * 576 * 2, 24 * 576),
        ("XiaomiMiMo--MiMo-V2-Flash", 9 * 4 * (192 + 128) * 2, 9 * 4 * (192 + 128)),
        ("google--gemma-4-26B-A4B", 5 * 2 * 2 * 512 * 2, 5 * 2 * 2 * 512),  # k_eq_v: vLLM caches both
        ("nvidia--Llama-3_3-Nemotron-Super-49B-v1", 49 * 2 * 8 * 128 * 2, 49 * 2 * 8 * 128),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 8 * 2 * 2 * 128 * 2, 8 * 2 * 2 * 128),
    ],
)
def test_kv_bytes_per_token_are_what_vllm_allocates(name: str, bf16: int, fp8: int) -> None:
    model = released(name)
    assert (model.kv_bytes_per_token("bfloat16"), model.kv_bytes_per_token("fp8")) == (bf16, fp8)


def test_deepseek_v4_caches_entries_of_4_and_128_tokens_and_a_window() -> None:
    model = released("deepseek-ai--DeepSeek-V4-Flash")  # 21 layers of ratio 4, 20 of 128, 2 with a window only
    growth = 21 * (584 + 132) / 4 + 20 * 584 / 128
    assert model.kv_bytes_per_token("fp8") == pytest.approx(growth, abs=1)
    assert model.kv_bytes(MI, "fp8") == 21 * MI // 4 * 716 + 20 * MI // 128 * 584 + 43 * 128 * 584
    assert model.kv_format("auto").key_bits == 8, "vLLM makes `auto` the FP8 layout (_resolve_dsv4_kv_cache_dtype)"
    # As vLLM's README of the model has it, a tenth of V3.2's cache and less.
    assert model.kv_bytes(MI, "fp8") < 0.1 * released("deepseek-ai--DeepSeek-V3.2").kv_bytes(MI, "fp8")


def test_layers_that_read_an_earlier_cache_have_none() -> None:
    plain = config("google--gemma-4-26B-A4B")
    text = {**plain["text_config"], "num_kv_shared_layers": 6}
    shared = build_geometry({**plain, "text_config": text})
    whole = build_geometry(plain)
    assert shared.kv_bytes_per_token("fp8") == whole.kv_bytes_per_token("fp8") * 4 // 5
    assert shared.attention_flops(4096) == whole.attention_flops(4096)


def test_sparse_prefill_grows_with_the_selection_and_the_indexer_with_the_square() -> None:
    model = released("deepseek-ai--DeepSeek-V3.2")
    pairs = 2048 * MI - 2048**2 / 2
    assert model.attention_flops(MI) == 61 * 2 * 128 * (192 + 128) * pairs
    assert model.index_flops(MI) == 61 * 2 * 64 * 128 * MI**2 / 2
    assert model.index_flops(2048) == 0, "a prompt within the selection needs no scores"
    dense = released("deepseek-ai--DeepSeek-V3")
    assert model.attention_flops(2048) == dense.attention_flops(2048)
    assert dense.index_flops(MI) == 0


def test_only_layers_with_an_indexer_of_their_own_score() -> None:
    own, shared = released("zai-org--GLM-5.1"), released("zai-org--GLM-5.2-FP8")
    assert own.index_flops(MI) / 78 == pytest.approx(shared.index_flops(MI) / 21)
    assert own.attention_flops(MI) == shared.attention_flops(MI)


def test_compressed_prefill_counts_entries_and_the_window() -> None:
    model = released("deepseek-ai--DeepSeek-V4-Flash")
    window = 128 * MI - 128**2 / 2
    selected = (512 * 4 * MI - (512 * 4) ** 2 / 2) / 4
    pairs = 43 * window + 21 * selected + 20 * MI**2 / 2 / 128
    assert model.attention_flops(MI) == 2 * 64 * (512 + 512) * pairs
    assert model.index_flops(MI) == 21 * 2 * 64 * 128 * MI**2 / 2 / 4


def test_bounds_of_a_sparse_model_follow_its_work() -> None:
    sparse, dense = (
        System(released(name), load_hardware("H200", 8), Parallelism(tensor=8), Settings("fp8"))
        for name in ("deepseek-ai--DeepSeek-V3.2", "deepseek-ai--DeepSeek-V3")
    )
    assert sparse.ttft_bound_s(MI) < dense.ttft_bound_s(MI) / 5
    assert sparse.ttft_bound_s(2048) == pytest.approx(dense.ttft_bound_s(2048), rel=0.03)  # the indexer has weights
    # A step reads the selected entries and every index key.
    assert sparse.kv_bytes_per_rank(MI, read=True) == 61 * (2048 * 656 + MI * 132)
    assert sparse.decode_bound_tok_s(MI) > dense.decode_bound_tok_s(MI)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("deepseek-ai--DeepSeek-V3.2", {"index_n_heads": None}, "index_n_heads is missing"),
        ("zai-org--GLM-5.2-FP8", {"indexer_types": ["full"] * 3}, "indexer_types is not a list of one entry per layer"),
        ("zai-org--GLM-5", {"index_topk_pattern": "FX" * 39}, "index_topk_pattern is"),
        ("deepseek-ai--DeepSeek-V4-Flash", {"compress_ratios": [4, 8]}, "compress_ratios is not a list of 0, 4 or 128"),
        ("deepseek-ai--DeepSeek-V4-Flash", {"n_shared_experts": 2}, "n_shared_experts is 2; known is 1"),
        ("MiniMaxAI--MiniMax-M3", {"moe_intermediate_size": 1}, "moe_intermediate_size is 1; known is 3072"),
        ("MiniMaxAI--MiniMax-M3", {"attention_output_gate": True}, "attention_output_gate is True"),
        ("XiaomiMiMo--MiMo-V2-Flash", {"hybrid_layer_pattern": [2] * 48}, "hybrid_layer_pattern is not a list"),
        ("stepfun-ai--Step-3.7-Flash", {"moe_layers_enum": "3,x"}, "moe_layers_enum is '3,x'"),
        ("nvidia--Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": [{}]}, "block_configs is not a list of one"),
        ("MiniMaxAI--MiniMax-M2.5", {"attn_type_list": [0] * 62}, "attn_type_list is [0, 0"),
    ],
)  # fmt: skip
def test_what_the_readers_do_not_know_is_named(name: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(GeometryError) as caught:
        build_geometry(config(name, **change), "some.json")
    assert str(caught.value).startswith(f"some.json: {said}")
    assert "\n" not in str(caught.value)
