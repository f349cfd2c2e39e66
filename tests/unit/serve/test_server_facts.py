"""What a server says of itself, read from recorded logs and metrics; the contract against it."""

import re
from pathlib import Path
from typing import Any

import pytest
from longctx.campaign.recipe import Recipe
from longctx.errors import ConfigError, ServerError
from longctx.serve import contract, server_facts
from longctx.serve.command_line import command, environment
from longctx.serve.metrics import parse
from longctx.serve.server_facts import ServerReport, jit_lines

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
# the telling lines of 0.25.1 on one H200, Kimi Linear 48B geometry
GPU_0251 = """\
(APIServer pid=7) INFO 11-20 10:00:00 [api_utils.py:1] non-default args: {'max_num_seqs': 1, 'kv_cache_dtype': 'fp8'}
(EngineCore pid=9) INFO 11-20 10:00:01 [core.py:1] Initializing a V1 LLM engine (v0.25.1) with config: model='kimi', \
dtype=torch.bfloat16, max_seq_len=8400000, load_format=dummy, tensor_parallel_size=8, pipeline_parallel_size=1, \
data_parallel_size=1, decode_context_parallel_size=1, disable_custom_all_reduce=False, enforce_eager=False, \
kv_cache_dtype=fp8_e4m3, device_config=cuda, enable_prefix_caching=False, \
compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'x': 1}
(Worker_TP0 pid=11) INFO 11-20 10:00:02 [cuda.py:1] Using FLASHMLA attention backend out of potential backends: ['A'].
(Worker_TP0 pid=11) INFO 11-20 10:00:02 [selector.py:1] Using FLASH_ATTN MLA prefill backend.
(EngineCore pid=9) INFO 11-20 10:00:02 [cache.py:1] Using fp8_e4m3 data type to store kv cache. It reduces the GPU
(EngineCore pid=9) INFO 11-20 10:00:02 [interface.py:1] Setting attention block size to 3776 tokens to ensure that
(EngineCore pid=9) INFO 11-20 10:00:03 [kv_cache_utils.py:1] GPU KV cache size: 9,798,743 tokens
(EngineCore pid=9) INFO 11-20 10:00:03 [kv_cache_utils.py:2] Maximum concurrency for 8,400,000 tokens per request: 1.17x
""".splitlines()


def recorded(name: str) -> list[str]:
    return (LOGS / name).read_text().splitlines()


def test_facts_of_a_cpu_server() -> None:
    read = server_facts.read_log(recorded("cpu-0.32-start.log"))
    expected = {
        "vllm_version": "0.32.0",
        "attention_backend": "CPU_ATTN",
        "kv_cache_dtype": "fp8_e4m3",
        "cudagraph_mode": "NONE",
        "kv_capacity_tokens": 4194304,
        "max_model_len": 32768,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 2048,
        "prefix_caching": False,
        "load_format": "dummy",
        "enforce_eager": True,
    }
    assert {name: read.get(name) for name in expected} == expected
    labels = server_facts.read_metrics(parse((LOGS / "cpu-0.32-metrics.txt").read_text()), 32768)
    assert labels == {
        "kv_capacity_tokens": 4194304,
        "block_size": 128,
        "prefix_caching": False,
        "kv_cache_dtype": "fp8_e4m3",
    }


def test_facts_of_the_pinned_gpu_version() -> None:
    read = server_facts.read_log(GPU_0251)
    expected = {
        "vllm_version": "0.25.1",
        "attention_backend": "FLASHMLA",
        "prefill_backend": "FLASH_ATTN",
        "kv_cache_dtype": "fp8_e4m3",
        "block_size": 3776,
        "kv_capacity_tokens": 9798743,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "tensor_parallel_size": 8,
        "disable_custom_all_reduce": False,
    }
    assert {name: read.get(name) for name in expected} == expected


def test_memory_is_that_of_the_fullest_rank() -> None:
    start = server_facts.read_log((LOGS / "h200-0.25.1-start.log").read_text().splitlines())
    assert start["weights_bytes"] / 2**30 == pytest.approx(91.56)
    assert start["kv_cache_bytes"] / 2**30 == pytest.approx(36.86)
    cpu = server_facts.read_log((LOGS / "cpu-0.32-start.log").read_text().splitlines())
    assert (cpu["kv_cache_bytes"], cpu.get("weights_bytes")) == (1 << 30, None)
    ranks = [f"Model loading took {gib} GiB memory and 1.8 seconds" for gib in (45.84, 45.9)]
    ranks += [f"Available KV cache memory: {gib} GiB" for gib in (83.34, 83.1)]
    read = server_facts.read_log(ranks)
    assert (read["weights_bytes"], read["kv_cache_bytes"]) == (round(45.9 * 2**30), round(83.1 * 2**30))


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("Using ROCM_AITER_MLA backend (selected via --attention-backend).", "ROCM_AITER_MLA"),
        ("Using AttentionBackendEnum.FLASHINFER backend.", "FLASHINFER"),
        ("Found incompatible backend(s) [X]. Overriding with TRITON_MLA out of potential backends: Z", "TRITON_MLA"),
        ("Cannot use FLASHMLA backend on CPU.", None),
        ("Using FLASH_ATTN backend for vit attention", None),
    ],
)  # fmt: skip
def test_attention_backend_lines(line: str, backend: str | None) -> None:
    assert server_facts.read_log([line]).get("attention_backend") == backend


def test_a_hybrid_model_s_capacity_comes_from_its_concurrency() -> None:
    lines = ["GPU KV cache size: 1,234,567 tokens", "Maximum concurrency for 8,400,000 tokens per request: 1.17x"]
    assert server_facts.read_log(lines)["kv_capacity_tokens"] == int(1.165 * 8_400_000)
    old = 'vllm:cache_config_info{block_size="16",kv_cache_max_concurrency="1.5"} 1.0\n'
    assert server_facts.read_metrics(parse(old), 1000) == {"kv_capacity_tokens": 1500, "block_size": 16}


@pytest.mark.parametrize(
    ("size", "concurrency", "max_model_len", "capacity"),
    [
        ("290864", "33.04", 32768, 1_082_654),  # a hybrid model: the size counts some layers only
        ("290864", "33.04", None, 290_864),
        ("4194304", "28.444444444444443", 147_456, 4_194_304),  # vLLM 0.32, both exact
        ("1082600", "33.04", 32768, 1_082_600),  # rounded to two decimals
        ("290864", "nan", 32768, 290_864),
        ("290864", "0.0", 32768, 290_864),
        ("9" * 40, "33.04", 32768, 1_082_654),
    ],
)
def test_a_labelled_size_counts_where_the_concurrency_agrees(
    size: str, concurrency: str, max_model_len: int | None, capacity: int
) -> None:
    labels = f'kv_cache_size_tokens="{size}",kv_cache_max_concurrency="{concurrency}"'
    text = f"vllm:cache_config_info{{{labels}}} 1.0\n"
    assert server_facts.read_metrics(parse(text), max_model_len)["kv_capacity_tokens"] == capacity


def test_the_smallest_engine_counts_where_both_labels_differ() -> None:
    text = "".join(
        f'vllm:cache_config_info{{engine="{engine}",kv_cache_size_tokens="500",kv_cache_max_concurrency="{ratio}"}} 1\n'
        for engine, ratio in ((0, 4.0), (1, 3.0))
    )
    assert server_facts.read_metrics(parse(text), 1000)["kv_capacity_tokens"] == 3000


def test_capacity_is_that_of_the_smallest_engine() -> None:
    text = "".join(
        f'vllm:cache_config_info{{engine="{engine}",kv_cache_size_tokens="{size}"}} 1.0\n'
        for engine, size in ((0, 4000), (1, 3000))
    )
    assert server_facts.read_metrics(parse(text), None)["kv_capacity_tokens"] == 3000
    assert server_facts.read_metrics(parse("vllm:num_requests_running 0.0\n"), None) == {}


@pytest.mark.parametrize(
    "text",
    ["", "<html><body>sign in</body></html>", '{"detail": "Not Found"}', "vllm:cache_config_info{oops 1\n",
     'vllm:cache_config_info{kv_cache_max_concurrency="inf",block_size="²"} 1.0\n', "not a metric at all\n"],
)  # fmt: skip
def test_whatever_answers_in_place_of_metrics_tells_nothing(text: str) -> None:
    assert server_facts.read_metrics(parse(text), 1000) == {}


@pytest.mark.parametrize("listed", [{}, {"data": None}, {"data": []}, {"data": [None]}, {"data": {"id": "x"}}])
def test_a_model_list_of_another_form_tells_nothing(listed: dict[str, object]) -> None:
    assert server_facts._listed_model(listed, "x") == {}


@pytest.mark.parametrize(
    "line",
    [
        "[aiter] start build [module_mha_varlen_fwd] under /opt/aiter/aiter/jit/build/module_mha_varlen_fwd",
        "[aiter] [pid=254 pname=Worker_TP0] \x1b[32mfinish build [module_moe], cost 57.8s \x1b[0m",
        "2026-11-29 12:24:22,992 - INFO - flashinfer.jit: Loading JIT ops: batch_mla_attention_dtype_q_bf16",
        "2026-11-29 12:24:42,108 - INFO - flashinfer.jit: Finished loading JIT ops: batch_mla_attention_dtype_q_bf16",
        "[TileLang:tilelang.jit.kernel:INFO]: TileLang begins to compile kernel `mhc_post` with `out_idx=[-1]`",
        "Compiling a graph for compile range (1, 8192) takes 14.77 s",
        "Graph capturing finished in 12 secs, took 0.58 GiB",
    ],
)
def test_every_builder_of_kernels_is_heard(line: str) -> None:
    assert jit_lines([f"(Worker_TP0 pid=12) {line}"]) != []


@pytest.mark.parametrize(
    "line",
    [
        "[aiter] import [module_moe] under /opt/aiter/aiter/jit/module_moe.so",
        "[aiter] shape is M:6, N:6144, K:4096, not found tuned config in a8w8.csv, will use default config!",
        "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 1.0 tokens/s",
        'INFO:     127.0.0.1:1234 - "POST /v1/completions HTTP/1.1" 200 OK',
    ],
)
def test_loading_what_is_built_is_no_compilation(line: str) -> None:
    assert jit_lines([line]) == []


def test_kv_limits() -> None:
    assert server_facts.kv_limit(recorded("cpu-0.32-kv-too-small.log")) == (True, 4194176)
    old = "max seq len (9) is larger than the maximum number of tokens that can be stored in KV cache (7,168). Try"
    assert server_facts.kv_limit([old]) == (True, 7168)
    assert server_facts.kv_limit(["ValueError: No available memory for the cache blocks. Try"]) == (True, None)
    assert server_facts.kv_limit(recorded("cpu-0.32-start.log")) == (False, None)


def test_jit_lines_are_those_of_compilation_only() -> None:
    jit = "Triton kernel JIT compilation during inference: _fwd_kernel (x). This causes a latency spike"
    lines = [
        f"(Worker pid=1) WARNING 11-29 10:00:00 [jit_monitor.py:1] {jit}",
        "INFO Kernel JIT monitor activated; monitored JIT compilations during inference will use mode=warn.",
        "INFO Avg prompt throughput: 1.0 tokens/s",
    ]
    assert jit_lines(lines) == [jit]
    assert jit_lines(recorded("cpu-0.32-start.log")) == []


def test_the_command_line_of_the_published_recipe() -> None:
    recipe = Recipe(
        model="moonshotai/Kimi-Linear-48B-A3B-Instruct",
        served_name="kimi",
        max_model_len=67125248,
        revision="abc",
        trust_remote_code=True,
        tensor_parallel_size=8,
        kv_cache_dtype="fp8_e4m3",
        attention_backend="ROCM_AITER_MLA",
        cudagraph_mode="FULL_AND_PIECEWISE",
        gpu_memory_utilization=0.952,
        kv_transfer_config={"kv_connector": "X"},
        extra_args=("--seed", "1"),
        env={"A": "1"},
    )
    words = " ".join(command(recipe, "127.0.0.1", 8000))
    for part in (
        "--host 127.0.0.1 --port 8000",
        "--served-model-name kimi",
        "--max-model-len 67125248",
        "--revision abc",
        "--tensor-parallel-size 8",
        "--kv-cache-dtype fp8_e4m3",
        "--attention-backend ROCM_AITER_MLA",
        '--compilation-config {"cudagraph_mode": "FULL_AND_PIECEWISE"}',
        "--gpu-memory-utilization 0.952",
        "--max-num-seqs 1",
        '--kv-transfer-config {"kv_connector": "X"}',
        "--trust-remote-code",
        "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--seed 1",
    ):
        assert part in words
    for absent in ("--disable-custom-all-reduce", "--enforce-eager", "--data-parallel", "None"):
        assert absent not in words
    assert environment(recipe)["A"] == "1"
    assert environment(recipe)["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1"


@pytest.mark.parametrize("version", ["0.25.1", "0.32.0"])
def test_every_flag_is_one_that_vllm_has(version: str) -> None:
    recipe = Recipe(
        model="m",
        served_name="m",
        max_model_len=1,
        revision="r",
        trust_remote_code=True,
        data_parallel_size=2,
        decode_context_parallel_size=2,
        attention_backend="A",
        cudagraph_mode="NONE",
        custom_all_reduce=False,
        gpu_memory_utilization=0.5,
        max_num_batched_tokens=1,
        enforce_eager=True,
        prefix_caching=True,
        kv_transfer_config={"a": 1},
    )
    known = recorded(f"{version}-flags.txt")
    flags = [word for word in command(recipe, "h", 1) if word.startswith("--")]
    assert [flag for flag in flags if flag.replace("--no-", "--") not in known] == []


def said(**values: Any) -> ServerReport:
    return ServerReport(values, dict.fromkeys(values, "log"))


KEPT = {
    "root": "m", "max_model_len": 8, "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1,
    "decode_context_parallel_size": 1, "max_num_seqs": 1, "prefix_caching": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "actual"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "bfloat16"}),
        ({"attention_backend": "FLASHMLA"}, {"attention_backend": "TRITON_MLA"}),
        ({"tensor_parallel_size": 8}, {"tensor_parallel_size": 4}),
        ({"cudagraph_mode": "FULL_AND_PIECEWISE"}, {"cudagraph_mode": "PIECEWISE"}),
        ({"enforce_eager": True}, {"cudagraph_mode": "FULL"}),
        ({"max_num_seqs": 1}, {"max_num_seqs": 256}),
        ({"max_num_batched_tokens": 8192}, {"max_num_batched_tokens": 2048}),
        ({"prefix_caching": False}, {"prefix_caching": True}),
        ({"load_format": "dummy"}, {"load_format": "auto"}),
        ({"max_model_len": 8}, {"max_model_len": 4}),
        ({"kv_transfer_config": {"kv_connector": "A"}}, {"kv_connector": "B"}),
        ({"versions": {"vllm": "0.25.1"}}, {"vllm_version": "0.32.0"}),
        ({"versions": {"torch": "2.13.0"}}, {"torch_version": "2.11.0+cpu"}),
        ({"versions": {"aiter": ">=0.1.19.post2"}}, {"aiter_version": "0.1.19"}),
        (
            {"tensor_parallel_size": 8, "custom_all_reduce": True},
            {"tensor_parallel_size": 8, "disable_custom_all_reduce": True},
        ),
    ],
)
def test_each_contradiction_is_found_and_named(asked: dict[str, Any], actual: dict[str, Any]) -> None:
    recipe = Recipe(**({"model": "m", "served_name": "m", "max_model_len": 8} | asked))
    (entry,) = [entry for entry in contract.check(recipe, said(**(KEPT | actual))) if entry["ok"] is False]
    with pytest.raises(ServerError, match=re.escape(entry["setting"])) as error:
        contract.enforce([entry])
    assert error.value.reason == "contract"


def test_a_kept_contract_and_one_that_cannot_be_proven() -> None:
    recipe = Recipe(
        model="m", served_name="m", max_model_len=8, kv_cache_dtype="fp8", versions={"aiter": ">=0.1.19.post2"}
    )
    kept = contract.check(recipe, said(**KEPT, kv_cache_dtype="fp8_e4m3", aiter_version="0.1.19.post2+gabc"))
    assert {entry["ok"] for entry in kept} == {True}
    silent = contract.check(recipe, said())
    assert {(entry["ok"], entry["actual"], entry["source"]) for entry in silent} == {(None, None, "unproven")}
    contract.enforce(silent)


def test_a_wrong_version_specifier_is_named() -> None:
    recipe = Recipe(model="m", served_name="m", max_model_len=8, versions={"vllm": "new one"})
    with pytest.raises(ConfigError, match=r"versions.vllm: 'new one' is not a version"):
        contract.check(recipe, said())
