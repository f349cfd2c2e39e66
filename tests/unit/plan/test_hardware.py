"""GPU table, parallel splits, and how vLLM pages a rank's memory."""

import csv
from math import ceil

import pytest
from longctx.errors import ConfigError
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan.bounds import decode_bound_tok_s, ttft_bound_s
from longctx.plan.hardware import Parallelism, load_hardware, read_gpus
from longctx.plan.memory import (
    block_tokens,
    capacity_tokens,
    check_parallelism,
    kv_bytes_per_rank,
    pipeline_stages,
    rank_memory,
    state_bytes_per_rank,
    weight_bytes_per_rank,
)
from longctx.resources import GPUS_CSV

GIB = 2**30
KIMI = read_geometry("kimi-linear-48b-a3b")
MEASURED_CAPACITY = 9_798_743  # tokens, one H200, vLLM 0.25.1 (resources/results/h200-probe.csv)
LLAMA = {
    "model_type": "llama", "dtype": "bfloat16", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
PROBE = {"gpu_memory_utilization": 0.95, "batched_tokens": 16384}


def test_the_gpu_table() -> None:
    gpus = {gpu.name: gpu for gpu in read_gpus()}
    assert gpus["H200"].hbm_bytes == int(140.4 * GIB)
    assert gpus["MI355X"].bf16_flops == 2516.6e12
    assert gpus["A100"].fp8_flops is None
    assert all(gpu.source and gpu.vendor in ("amd", "nvidia") for gpu in gpus.values())
    assert load_hardware("mi355x", 8).count == 8


@pytest.mark.parametrize("wrong", ["-80", "0", "nan", "inf", ""])
def test_a_gpu_s_line_has_numbers_above_zero(tmp_path, wrong: str) -> None:  # type: ignore[no-untyped-def]
    head = "gpu,vendor,hbm_gib,hbm_tb_s,bf16_tflops,fp8_tflops,source"
    (tmp_path / "gpus.csv").write_text(f"{head}\nMine,nvidia,80,{wrong},100,,datasheet\n")
    with pytest.raises(ConfigError, match=f"hbm_tb_s of 'Mine' is '{wrong}'; it must be a number above 0"):
        load_hardware("mine", path=tmp_path / "gpus.csv")


def test_unknown_or_broken_hardware(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=r"hardware\.gpu: 'H900' is not in gpus\.csv; known are MI355X"):
        load_hardware("H900")
    with pytest.raises(ConfigError, match=r"hardware\.count: is 0"):
        load_hardware("H200", 0)
    lines = GPUS_CSV.read_text().replace("989.5", "much")
    (tmp_path / "gpus.csv").write_text(lines)
    with pytest.raises(ConfigError, match="bf16_tflops of 'H200' is 'much'; it must be a number above 0"):
        read_gpus(tmp_path / "gpus.csv")


def test_parallelism_is_checked() -> None:
    assert Parallelism(tensor=8, decode_context=4, pipeline=2).gpus == 16
    assert (Parallelism().label, Parallelism(tensor=8, decode_context=8).label) == ("1 GPU", "TP8 DCP8")
    with pytest.raises(ConfigError, match="decode_context_parallel_size: 3 does not divide"):
        Parallelism(tensor=8, decode_context=3)
    with pytest.raises(ConfigError, match="tensor_parallel_size: is 0"):
        Parallelism(tensor=0)
    with pytest.raises(ConfigError, match="does not divide the 28 attention heads"):
        check_parallelism(read_geometry("qwen2.5-7b-1m"), Parallelism(tensor=8))
    with pytest.raises(ConfigError, match="needs at least 64 TP ranks"):
        check_parallelism(read_geometry("llama-3.1-8b"), Parallelism(tensor=8, decode_context=8))
    with pytest.raises(ConfigError, match="exceeds the 27 layers"):
        check_parallelism(KIMI, Parallelism(pipeline=28))


def test_mla_is_replicated_and_gqa_sharded_down_to_one_head() -> None:
    for tensor in (1, 2, 8, 32):
        assert kv_bytes_per_rank(KIMI, Parallelism(tensor=tensor), 2**26, "fp8") == 252 * GIB
    llama = read_geometry("llama-3.1-8b")
    whole = kv_bytes_per_rank(llama, Parallelism(), 2**20, "bfloat16")
    for tensor, heads in ((2, 4), (4, 2), (8, 1), (16, 1), (32, 1)):
        assert kv_bytes_per_rank(llama, Parallelism(tensor=tensor), 2**20, "bfloat16") == whole // 8 * heads


def test_decode_context_parallelism_shards_and_pipeline_splits() -> None:
    assert kv_bytes_per_rank(KIMI, Parallelism(tensor=8, decode_context=4), 2**26, "fp8") == 63 * GIB
    assert kv_bytes_per_rank(KIMI, Parallelism(pipeline=2), 2**26, "fp8") == 4 * 36 * GIB


@pytest.mark.parametrize(
    ("stages", "sizes"),
    [(1, [27]), (2, [14, 13]), (4, [7, 7, 7, 6]), (5, [5, 5, 6, 6, 5]), (8, [3, 3, 3, 3, 4, 4, 4, 3])],
)
def test_pipeline_stages_follow_vllm(stages: int, sizes: list[int]) -> None:
    # vllm.distributed.utils.get_pp_indices of 0.32.
    assert [len(stage) for stage in pipeline_stages(KIMI, stages)] == sizes


def test_states_are_sharded_by_tensor_parallelism() -> None:
    one = state_bytes_per_rank(KIMI, Parallelism())
    assert one == KIMI.state_bytes()
    assert state_bytes_per_rank(KIMI, Parallelism(tensor=8)) == ceil(one / 8)


def test_about_12_gib_of_weights_per_rank() -> None:
    assert weight_bytes_per_rank(KIMI, Parallelism(tensor=8)) == pytest.approx(12 * GIB, rel=0.05)
    assert weight_bytes_per_rank(KIMI, Parallelism()) == pytest.approx(KIMI.weight_bytes, rel=1e-5)


def test_block_size_is_the_one_vllm_logs() -> None:
    # 'Setting attention block size to 3776 tokens' (H200, TP1, FP8).
    assert block_tokens(KIMI, Parallelism(), "fp8_e4m3") == 3776
    assert block_tokens(read_geometry("llama-3.1-8b"), Parallelism(), "fp8") == 16


def test_paging_alone_gives_the_measured_capacity() -> None:
    # The server's 36.9 GiB were 2599 blocks of 7 layers; its log divides by max_model_len, hence the last 23 tokens.
    pool = 2599 * 7 * 3776 * 576
    assert pool == pytest.approx(36.9 * GIB, rel=0.002)
    capacity = capacity_tokens(KIMI, Parallelism(), pool, "fp8")
    assert capacity is not None
    assert 0 <= MEASURED_CAPACITY - capacity < 3776


def test_h200_capacity_within_3_percent_and_never_more_than_granted() -> None:
    memory = rank_memory(KIMI, load_hardware("H200"), Parallelism(), **PROBE)  # type: ignore[arg-type]
    assert memory.weights == pytest.approx(91.6 * GIB, rel=0.005)
    assert memory.kv <= 36.9 * GIB
    capacity = capacity_tokens(KIMI, Parallelism(), memory.kv, "fp8_e4m3", batched_tokens=16384)
    assert capacity is not None
    assert 0.97 * MEASURED_CAPACITY <= capacity <= MEASURED_CAPACITY


def test_utilization_and_chunk_size_enter() -> None:
    def kv(**changed: float) -> int:
        return rank_memory(KIMI, load_hardware("H200"), Parallelism(), **(PROBE | changed)).kv  # type: ignore[arg-type]

    assert kv(gpu_memory_utilization=0.9) == pytest.approx(kv() - 0.05 * 140.4 * GIB, abs=2)
    assert kv(batched_tokens=8192) > kv()


def test_mi355x_holds_64mi_in_fp8_and_not_in_bf16() -> None:
    node, split = load_hardware("MI355X", 8), Parallelism(tensor=8)
    memory = rank_memory(KIMI, node, split, gpu_memory_utilization=0.952, batched_tokens=16384)
    needed = 2**26 + 16384
    fp8 = capacity_tokens(KIMI, split, memory.kv, "fp8_e4m3", batched_tokens=16384)
    bf16 = capacity_tokens(KIMI, split, memory.kv, "bfloat16", batched_tokens=16384)
    assert fp8 is not None
    assert bf16 is not None
    assert bf16 < needed <= fp8


def test_cpu_capacity_is_its_cache_space() -> None:
    # The default campaign's model: 256 B/token in FP8; 4 GiB were seen to hold 16.7 M tokens.
    config = LLAMA | {
        "vocab_size": 4096,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    tiny = build_geometry(config)
    capacity = capacity_tokens(tiny, Parallelism(), 4 * GIB, "fp8_e4m3", cpu=True)
    assert capacity == pytest.approx(16.7e6, rel=0.01)


def test_windows_cost_a_constant() -> None:
    mistral = build_geometry(LLAMA | {"model_type": "mistral", "sliding_window": 4096})
    assert capacity_tokens(mistral, Parallelism(), 8 * GIB, "fp8") is None
    assert capacity_tokens(mistral, Parallelism(), 1000, "fp8") == 0
    # vLLM's null block, and the blocks of 4095 + 8192 tokens, and one, since these need not begin with a block.
    least = (1 + 768 + 1) * 16 * mistral.kv_bytes(1, "fp8")
    assert capacity_tokens(mistral, Parallelism(), least, "fp8") is None
    assert capacity_tokens(mistral, Parallelism(), least - 1, "fp8") == 0
    gemma = read_geometry("gemma-3-27b")
    capacity = capacity_tokens(gemma, Parallelism(), 64 * GIB, "bfloat16")
    assert capacity is not None
    assert (
        0.9 * 64 * GIB / gemma.kv_bytes_per_token("bfloat16")
        < capacity
        < 64 * GIB / gemma.kv_bytes_per_token("bfloat16")
    )


def test_too_many_gpus_asked() -> None:
    with pytest.raises(ConfigError, match=r"hardware\.count: TP2 needs 2 GPUs and there are 1"):
        rank_memory(KIMI, load_hardware("H200"), Parallelism(tensor=2))


def test_published_and_probed_bounds() -> None:
    h200 = load_hardware("H200")
    assert ttft_bound_s(KIMI, h200, Parallelism(), 2**20, "fp8") == pytest.approx(86, rel=0.01)
    node = load_hardware("MI355X", 8)
    assert decode_bound_tok_s(KIMI, node, Parallelism(tensor=8), 2**26, "fp8") == pytest.approx(29, rel=0.02)


@pytest.mark.parametrize("tokens", [1024, 2**20])
def test_one_gpu_moves_the_bytes_of_a_decode_step_at_its_bandwidth(tokens: int) -> None:
    h200 = load_hardware("H200")
    expected = h200.hbm_bytes_per_s / KIMI.decode_bytes(tokens, "fp8")
    assert decode_bound_tok_s(KIMI, h200, Parallelism(), tokens, "fp8") == pytest.approx(expected)


def test_no_measurement_beats_its_bound() -> None:
    for gpu, count, split, file, ttft, decode in (
        ("MI355X", 8, Parallelism(tensor=8), "mi355x-published.csv", "ttft_s_mean", "decode_tok_s_mean"),
        ("H200", 1, Parallelism(), "h200-probe.csv", "ttft_client_s", "decode_tok_s"),
    ):
        hardware = load_hardware(gpu, count)
        lines = [line for line in (GPUS_CSV.parents[1] / "results" / file).read_text().splitlines() if line[0] != "#"]
        for row in csv.DictReader(lines):
            tokens = int(row["prompt_tokens"])
            if row.get("mode", "prefill") == "prefill":
                assert float(row[ttft]) > ttft_bound_s(KIMI, hardware, split, tokens, "fp8")
            if row[decode]:
                assert float(row[decode]) < decode_bound_tok_s(KIMI, hardware, split, tokens, "fp8")


def test_mla_attention_is_bound_by_bf16_and_gqa_over_fp8_by_fp8() -> None:
    h200, one = load_hardware("H200"), Parallelism()
    assert ttft_bound_s(KIMI, h200, one, 2**20, "fp8") == ttft_bound_s(KIMI, h200, one, 2**20, "bfloat16")
    llama = read_geometry("llama-3.1-8b")
    assert ttft_bound_s(llama, h200, one, 2**20, "fp8") < ttft_bound_s(llama, h200, one, 2**20, "bfloat16")
    assert ttft_bound_s(llama, load_hardware("A100"), one, 1024, "fp8") == ttft_bound_s(
        llama, load_hardware("A100"), one, 1024, "bfloat16"
    )


def test_pipeline_stages_do_not_shorten_a_token() -> None:
    node = load_hardware("H200", 8)
    one = decode_bound_tok_s(KIMI, node, Parallelism(), 2**20, "fp8")
    assert decode_bound_tok_s(KIMI, node, Parallelism(pipeline=8), 2**20, "fp8") == one
    assert ttft_bound_s(KIMI, node, Parallelism(pipeline=8), 2**20) == pytest.approx(
        ttft_bound_s(KIMI, node, Parallelism(tensor=8), 2**20)
    )
