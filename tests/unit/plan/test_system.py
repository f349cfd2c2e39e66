"""How vLLM pages a rank's memory, what fits, and the bounds of a system."""

import csv
from dataclasses import replace
from math import ceil

import pytest
from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.model.reader import build_geometry, read_geometry
from longctx.plan.hardware import Hardware, Parallelism, load_hardware
from longctx.plan.kv_cache.memory import Memory, pipeline_stages
from longctx.plan.system import Settings, System
from longctx.resources import GPUS_CSV

MI, GIB = 2**20, 2**30
KIMI = read_geometry("kimi-linear-48b-a3b")
LLAMA = read_geometry("llama-3.1-8b")
H200, MI355X = load_hardware("H200"), load_hardware("MI355X", 8)
MANY = load_hardware("H200", 64)
MEASURED_CAPACITY = 9_798_743  # tokens, one H200, vLLM 0.25.1 (resources/results/h200-probe.csv)
PLAIN = {
    "model_type": "llama", "dtype": "bfloat16", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
PROBE = Settings("fp8_e4m3", gpu_memory_utilization=0.95, batched_tokens=16384, vllm_version="0.25.1")
PUBLISHED = replace(PROBE, gpu_memory_utilization=0.952, aiter_version="v0.1.19.post2")


def system(geometry: Geometry = KIMI, hardware: Hardware | None = MANY, kv_dtype: str = "fp8", **split: int) -> System:
    return System(geometry, hardware, Parallelism(**split), Settings(kv_dtype))


def seen(planned: System) -> System:
    """Return the system with the version of vLLM that was measured on H200."""
    return replace(planned, settings=replace(planned.settings, vllm_version="0.25.1"))


def test_mla_is_replicated_and_gqa_sharded_down_to_one_head() -> None:
    for tensor in (1, 2, 8, 32):
        assert system(tensor=tensor).kv_bytes_per_rank(2**26) == 252 * GIB
    whole = system(LLAMA, kv_dtype="bfloat16").kv_bytes_per_rank(MI)
    for tensor, heads in ((2, 4), (4, 2), (8, 1), (16, 1), (32, 1)):
        assert system(LLAMA, kv_dtype="bfloat16", tensor=tensor).kv_bytes_per_rank(MI) == whole // 8 * heads


def test_decode_context_parallelism_shards_and_pipeline_splits() -> None:
    assert system(tensor=8, decode_context=4).kv_bytes_per_rank(2**26) == 63 * GIB
    assert system(pipeline=2).kv_bytes_per_rank(2**26) == 4 * 36 * GIB


@pytest.mark.parametrize(
    ("stages", "sizes"),
    [(1, [27]), (2, [14, 13]), (4, [7, 7, 7, 6]), (5, [5, 5, 6, 6, 5]), (8, [3, 3, 3, 3, 4, 4, 4, 3])],
)
def test_pipeline_stages_follow_vllm(stages: int, sizes: list[int]) -> None:
    # vllm.distributed.utils.get_pp_indices of 0.32.
    assert [len(stage) for stage in pipeline_stages(KIMI, stages)] == sizes


def test_a_partition_of_the_environment_is_followed() -> None:
    # MLA layers are the 4th, 8th, … 24th and the 27th: 12 layers hold three of them, 15 the other four.
    def planned(partition: str) -> System:
        known = system(pipeline=2)
        return replace(known, settings=replace(known.settings, env=(("VLLM_PP_LAYER_PARTITION", partition),)))

    assert [len(stage) for stage in planned("12,15").stages] == [12, 15]
    assert [len(stage) for stage in planned("16, 11").stages] == [16, 11]
    for wrong in ("12,14", "27", "27,0", "a,b", "9,9,9"):
        with pytest.raises(ConfigError, match=r"VLLM_PP_LAYER_PARTITION: .* is not 2 numbers of layers"):
            _ = planned(wrong).stages


@pytest.mark.parametrize(
    ("geometry", "kv_dtype", "split", "problem"),
    [
        (LLAMA, "fp8_e4m3", {}, None),
        (LLAMA, "auto", {"tensor": 2}, None),
        (LLAMA, "auto", {"pipeline": 2}, "starts with pipeline parallelism and dies at the first request"),
        (LLAMA, "nvfp4", {}, "does not store a KV cache as nvfp4"),
        (read_geometry("deepseek-v3"), "fp8", {}, "does not store MLA as fp8"),
        (read_geometry("deepseek-v3"), "bfloat16", {"tensor": 2, "decode_context": 2}, "has no context parallelism"),
        (KIMI, "auto", {}, "has no kernel for KDA layers"),
    ],
)
def test_what_the_cpu_does_not_serve(
    geometry: Geometry, kv_dtype: str, split: dict[str, int], problem: str | None
) -> None:
    planned = system(geometry, None, kv_dtype, **split)
    assert planned.start_problem == (problem and f"vLLM on the CPU {problem}")


def test_states_are_sharded_by_tensor_parallelism() -> None:
    assert system().state_bytes_per_rank == KIMI.state_bytes()
    assert system(tensor=8).state_bytes_per_rank == ceil(KIMI.state_bytes() / 8)


def test_about_12_gib_of_weights_per_rank() -> None:
    assert system(tensor=8).weight_bytes_per_rank == pytest.approx(12 * GIB, rel=0.05)
    assert system().weight_bytes_per_rank == pytest.approx(KIMI.weight_bytes, rel=1e-5)


def test_block_size_is_the_one_vllm_logs() -> None:
    # 'Setting attention block size to 3776 tokens' (H200, TP1, FP8, 0.25.1); 0.32 rounds MLA's to 128 (interface.py).
    assert seen(system(kv_dtype="fp8_e4m3")).block_tokens == 3776
    assert system(kv_dtype="fp8_e4m3").block_tokens == 3840
    assert system(LLAMA).block_tokens == 16


def test_paging_alone_gives_the_measured_capacity() -> None:
    # The server's 36.9 GiB were 2599 blocks of 7 layers; its log divides by max_model_len, hence the last 23 tokens.
    pool = 2599 * 7 * 3776 * 576
    assert pool == pytest.approx(36.9 * GIB, rel=0.002)
    capacity = seen(system()).capacity_tokens(pool)
    assert capacity is not None
    assert 0 <= MEASURED_CAPACITY - capacity < 3776


def memory(settings: Settings) -> Memory:
    budget = System(KIMI, H200, Parallelism(), settings).memory()
    assert budget is not None
    return budget


def test_h200_capacity_within_3_percent_and_never_more_than_granted() -> None:
    assert memory(PROBE).weights == pytest.approx(91.6 * GIB, rel=0.005)
    assert memory(PROBE).kv <= 36.9 * GIB
    capacity = System(KIMI, H200, Parallelism(), PROBE).capacity_tokens()
    assert capacity is not None
    assert 0.97 * MEASURED_CAPACITY <= capacity <= MEASURED_CAPACITY


def test_utilization_and_chunk_size_enter() -> None:
    kv = memory(PROBE).kv
    assert memory(replace(PROBE, gpu_memory_utilization=0.9)).kv == pytest.approx(kv - 0.05 * 140.4 * GIB, abs=2)
    assert memory(replace(PROBE, batched_tokens=8192)).kv > kv


def test_mi355x_holds_64mi_in_fp8_and_not_in_bf16() -> None:
    fp8 = System(KIMI, MI355X, Parallelism(tensor=8), PUBLISHED)
    bf16 = fp8.with_kv_dtype("bfloat16").capacity_tokens()
    assert bf16 is not None
    assert bf16 < 2**26 + 16384 <= (fp8.capacity_tokens() or 0)


def test_cpu_capacity_is_its_cache_space() -> None:
    # The default campaign's model: 256 B/token in FP8; 4 GiB were seen to hold 16.7 M tokens.
    sizes = {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    tiny = build_geometry(PLAIN | sizes | {"num_attention_heads": 2, "num_key_value_heads": 1})
    settings = Settings("fp8_e4m3", cpu_kv_gib=4)
    assert System(tiny, None, Parallelism(), settings).capacity_tokens() == pytest.approx(16.7e6, rel=0.01)


def test_two_h200_hold_what_the_server_said() -> None:
    # TP2: 83.34 GiB for KV, 'GPU KV cache size: 22,184,825 tokens'; the log rounds through max_model_len.
    capacity = seen(system(hardware=load_hardware("H200", 2), tensor=2)).capacity_tokens(int(83.34 * GIB))
    assert capacity == pytest.approx(22_184_825, rel=1e-4)


@pytest.mark.parametrize(
    ("split", "mla_layers"),
    [({"pipeline": 2}, 4), ({"pipeline": 4}, 2), ({"pipeline": 8}, 1), ({"tensor": 2, "pipeline": 2}, 4)],
)
def test_pipeline_stages_hold_their_own_layers(split: dict[str, int], mla_layers: int) -> None:
    # Seven MLA layers over the stages; the fullest one limits. Pages of KDA's states are as large as MLA's.
    planned = seen(system(**split))
    blocks = GIB // (mla_layers * planned.block_tokens * 576)
    assert set(planned.cache_pool.block_bytes) == {mla_layers * planned.block_tokens * 576}
    assert planned.capacity_tokens(GIB) == (blocks - 1 - 3) * planned.block_tokens


def test_pipelines_of_h200_hold_what_tensor_parallelism_does_not() -> None:
    def longest(gpus: int, **split: int) -> float:
        node = System(KIMI, load_hardware("H200", gpus), Parallelism(**split), PROBE)
        assert node.start_problem is None
        return (node.max_context() or 0) / MI

    assert longest(2, pipeline=2) > 36 > 22 > longest(2, tensor=2)
    assert longest(4, pipeline=4) > 64 > longest(4, tensor=4)
    assert longest(8, pipeline=8) > longest(8, tensor=2, pipeline=4) > 64 > longest(8, tensor=8)


def test_windows_cost_a_constant() -> None:
    mistral = build_geometry(PLAIN | {"model_type": "mistral", "sliding_window": 4096})
    assert system(mistral).capacity_tokens(8 * GIB) is None
    assert system(mistral).capacity_tokens(1000) == 0
    # vLLM's null block, and the blocks of 4095 + 2 x 8192 tokens, and one, since these need not begin with a block.
    least = (1 + 1280 + 1) * 16 * mistral.kv_bytes(1, "fp8")
    assert system(mistral).capacity_tokens(least) is None
    assert system(mistral).capacity_tokens(least - 1) == 1279 * 16, "shorter sequences take less"
    gemma = read_geometry("gemma-3-27b")
    capacity, limit = system(gemma, kv_dtype="bfloat16").capacity_tokens(64 * GIB), 64 * GIB
    assert capacity is not None
    assert 0.85 * limit < capacity * gemma.kv_bytes_per_token("bfloat16") < limit


def test_a_split_that_cannot_be_is_no_system() -> None:
    with pytest.raises(ConfigError, match=r"hardware\.count: TP2 needs 2 GPUs and there are 1"):
        system(hardware=H200, tensor=2)
    with pytest.raises(ConfigError, match="exceeds the 27 layers"):
        system(pipeline=28)


def test_a_cpu_has_no_bounds() -> None:
    with pytest.raises(ConfigError, match="hardware: missing"):
        system(hardware=None).ttft_bound_s(1024)


def test_published_and_probed_bounds() -> None:
    assert system(hardware=H200).ttft_bound_s(MI) == pytest.approx(86, rel=0.01)
    assert system(hardware=MI355X, tensor=8).decode_bound_tok_s(2**26) == pytest.approx(29, rel=0.02)


@pytest.mark.parametrize("tokens", [1024, MI])
def test_one_gpu_moves_the_bytes_of_a_decode_step_at_its_bandwidth(tokens: int) -> None:
    moved = KIMI.active_weight_bytes + KIMI.kv_bytes(tokens, "fp8") + 2 * KIMI.state_bytes()
    assert system(hardware=H200).decode_bound_tok_s(tokens) == pytest.approx(H200.hbm_bytes_per_s / moved)


def test_no_measurement_beats_its_bound() -> None:
    for known, file, ttft, decode in (
        (system(hardware=MI355X, tensor=8), "mi355x-published.csv", "ttft_s_mean", "decode_tok_s_mean"),
        (system(hardware=H200), "h200-probe.csv", "ttft_client_s", "decode_tok_s"),
    ):
        lines = [line for line in (GPUS_CSV.parents[1] / "results" / file).read_text().splitlines() if line[0] != "#"]
        for row in csv.DictReader(lines):
            tokens = int(row["prompt_tokens"])
            if row.get("mode", "prefill") == "prefill":
                assert float(row[ttft]) > known.ttft_bound_s(tokens)
            if row[decode]:
                assert float(row[decode]) < known.decode_bound_tok_s(tokens)


def test_mla_attention_is_bound_by_bf16_and_gqa_over_fp8_by_fp8() -> None:
    def bounds(geometry: Geometry, gpu: str, tokens: int) -> list[float]:
        return [system(geometry, load_hardware(gpu), kv).ttft_bound_s(tokens) for kv in ("fp8", "bfloat16")]

    fp8, bf16 = bounds(KIMI, "H200", MI)
    assert fp8 == bf16
    fp8, bf16 = bounds(LLAMA, "H200", MI)
    assert fp8 < bf16
    fp8, bf16 = bounds(LLAMA, "A100", 1024)
    assert fp8 == bf16


def test_pipeline_stages_do_not_shorten_a_token() -> None:
    assert system(pipeline=8).decode_bound_tok_s(MI) == system().decode_bound_tok_s(MI)
    assert system(pipeline=8).ttft_bound_s(MI) == pytest.approx(system(tensor=8).ttft_bound_s(MI))


def test_1024_in_and_16_out_need_1040() -> None:
    def needed(**settings: int) -> int:
        return System(LLAMA, H200, Parallelism(), Settings(**settings)).needed_tokens(1024)

    assert needed(max_new_tokens=16, headroom_tokens=1) == 1040
    assert needed(max_new_tokens=16, headroom_tokens=64) == 1088, "new tokens count in it"


@pytest.mark.parametrize(("held", "fits"), [(1024, False), (1152, True)])
def test_a_cpu_cache_of_whole_blocks(held: int, fits: bool) -> None:
    block, tiny = 128, replace(LLAMA, layers=(replace(LLAMA.layers[0], count=1),))
    pool_gib = (held // block + 1) * block * tiny.kv_bytes_per_token("fp8") / GIB
    settings = Settings("fp8", max_new_tokens=16, headroom_tokens=1, cpu_kv_gib=pool_gib)
    known = System(tiny, None, Parallelism(), settings)
    assert known.capacity_tokens() == held
    assert known.holds(1024) is fits


def test_capacity_limits_max_context() -> None:
    known = System(KIMI, H200, Parallelism(), PROBE)
    longest = known.max_context()
    assert longest is not None
    assert known.holds(longest)
    assert not known.holds(longest + 1)


def test_beyond_2_to_24_tokens_rocm_needs_aiter() -> None:
    def problem(length: int, version: str | None, hardware: Hardware = MI355X) -> str | None:
        settings = replace(PUBLISHED, aiter_version=version)
        return System(KIMI, hardware, Parallelism(), settings).aiter_problem(length)

    for version in ("v0.1.19.post2", "0.1.20", ">=0.1.19.post2", "0.2.0"):
        assert problem(64 * MI, version) is None
    for version in ("0.1.19", "v0.1.19.post1", "0.1.5", None, "main"):
        assert "AITER v0.1.19.post2 or newer" in (problem(64 * MI, version) or "")
    assert problem(8 * MI, "0.1.5") is None
    assert problem(2**24 - 128, "0.1.5") is None
    assert problem(2**24, "0.1.5") is not None
    assert problem(64 * MI, "0.1.5", H200) is None


def test_the_same_setup_has_the_same_split_of_the_same_gpus() -> None:
    known = system(hardware=MI355X, tensor=8)
    assert known.is_same_setup(replace(known, settings=PROBE))
    assert known.is_same_setup(replace(known, geometry=replace(KIMI, name="another name")))
    for other in (
        replace(known, parallelism=Parallelism(pipeline=8)),
        replace(known, hardware=replace(MI355X, count=16)),
        replace(known, geometry=LLAMA),
    ):
        assert not known.is_same_setup(other)
