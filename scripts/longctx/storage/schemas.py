"""Every Parquet table of the pipeline: its Arrow schema, declared once, and atomic, labelled I/O.

A file's metadata says longctx_format and git_revision; a campaign's files also its name and config_hash, by which its
configuration lies in R/.config. Prompts and token streams depend on their content alone and have no config_hash.

Format history: 1 = first version (ADDED names the columns that its first files lack).
"""

from enum import StrEnum

import pyarrow as pa

_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()


class ModeName(StrEnum):
    """The modes, in the order in which tables and figures name them; `longctx.modes` has a folder for each."""

    PREFILL = "prefill"
    REUSE = "reuse"
    DECODE_ONLY = "decode_only"


class Role(StrEnum):
    """What a request is to its point. Cold and repeated requests are whole prompts that no cache held."""

    COLD = "cold"
    REPEAT = "repeat"
    WARMUP = "warmup"
    REUSE = "reuse"
    DECODE_ONLY = "decode_only"


class Status(StrEnum):
    """What a row may claim: its values, doubtful ones (null, the raw record stays), or nothing."""

    OK = "ok"
    DOUBTFUL = "doubtful"
    FAILED = "failed"


def _schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema(list(fields.items()))


# Which server, on which host, gave a row. Rows that differ in a field of IDENTITY never merge.
SERVER_FACTS = {
    "vllm_version": _S, "torch_version": _S, "aiter_version": _S, "model": _S, "attention_backend": _S,
    "prefill_backend": _S, "kv_cache_dtype": _S, "cudagraph_mode": _S, "kv_capacity_tokens": _I,
    "max_model_len": _I, "block_size": _I, "tensor_parallel_size": _I, "pipeline_parallel_size": _I,
    "decode_context_parallel_size": _I, "max_num_seqs": _I, "max_num_batched_tokens": _I,
    "prefix_caching": _B, "launcher": _S, "image": _S, "image_digest": _S, "startup_s": _F,
}  # fmt: skip
HOST_FACTS = {
    "host": _S, "gpu": _S, "gpu_count": _I, "gpu_driver": _S, "cuda_or_rocm": _S, "cpu": _S,
    "cpu_count": _I, "memory_bytes": _I, "kernel": _S, "os": _S,
}  # fmt: skip
IDENTITY = ("vllm_version", "model", "kv_cache_dtype", "attention_backend", "tensor_parallel_size", "gpu",
            "gpu_count", "gpu_driver", "recipe_hash")  # fmt: skip

# Of MEASUREMENTS.role: whole prompts that no cache held.
COLD_ROLES = ("cold", "repeat")
MEASUREMENTS = _schema(
    campaign=_S, recipe_hash=_S, mode=_S, role=_S, length=_I, pass_index=_I, request_index=_I,
    status=_S, reason=_S, reasons=pa.list_(_S), detail=_S,
    prompt_sha256=_S, prompt_tokens=_I, completion_tokens=_I, max_new_tokens=_I, cached_tokens=_I,
    temperature=_F, ignore_eos=_B,
    ttft_s=_F, prefill_s=_F, queue_s=_F, overhead_s=_F, e2e_s=_F,
    decode_tok_s=_F, decode_client_tok_s=_F, decode_source=_S,
    itl_p50_s=_F, itl_p90_s=_F, itl_p99_s=_F, itl_max_s=_F,
    chunks=_I, coalesced=_B, starved_s=_F, jit_events=_I,
    resumed_from=_I, external_hit_tokens=_I, resumed_ttft_s=_F, resumed_prefill_s=_F,
    stitched_prefill_s=_F, stitched_error_s=_F,
    energy_j=_F, energy_decode_j=_F, power_mean_w=_F, power_gap_s=_F,
    synthetic_weights=_B, filled_kv=_B,
    started_at=pa.timestamp("us", tz="UTC"),
    server_counters=_S, log_lines=pa.list_(_S),
    **SERVER_FACTS, **HOST_FACTS,
)  # fmt: skip
# One row per server start. `contract` is JSON: [{setting, asked, actual, source, ok}], `env` JSON without secrets.
SERVERS = _schema(
    campaign=_S, recipe_hash=_S, mode=_S, length=_I, pass_index=_I, started_at=pa.timestamp("us", tz="UTC"),
    command=pa.list_(_S), contract=_S, env=_S, log_path=_S, status=_S, reason=_S, detail=_S,
    **SERVER_FACTS, **HOST_FACTS,
)  # fmt: skip
TRACES = _schema(length=_I, pass_index=_I, request_index=_I, role=_S, elapsed_s=_F, tokens=_I, total_tokens=_I)
PROGRESS = _schema(
    length=_I, pass_index=_I, request_index=_I, role=_S, elapsed_s=_F, tokens_done=_I, tokens_total=_I,
    rate_tok_s=_F, eta_s=_F,
)  # fmt: skip
VALIDATION = _schema(
    length=_I, target=_I, counted=_I, ids_in_range=_B, special_ids=_I, undecodable_ids=_I, round_trip=_B,
    cycles=_I, prompt_sha256=_S, ok=_B, detail=_S,
)  # fmt: skip
PLAN = _schema(
    mode=_S, length=_I, kv_bytes_per_rank=_I, state_bytes_per_rank=_I, weight_bytes_per_rank=_I,
    capacity_tokens=_I, fits=_B, ttft_bound_s=_F, decode_bound_tok_s=_F, est_ttft_s=_F, est_ttft_low_s=_F,
    est_ttft_high_s=_F, est_source=_S, est_hours=_F, reason=_S, remedy=_S,
)  # fmt: skip


def _stats(metric: str) -> dict[str, pa.DataType]:
    return {f"{metric}_{name}": _F for name in ("mean", "std", "cv", "min", "median", "max")} | {f"{metric}_n": _I}


# One row per (mode, length), of the roles that count there: cold and repeat in 'prefill', the hot queries in 'reuse'.
SUMMARY = _schema(
    campaign=_S, recipe_hash=_S, mode=_S, length=_I, n=_I, n_failed=_I, n_doubtful=_I, n_missing=_I, n_outliers=_I,
    **_stats("ttft_s"), **_stats("prefill_s"), **_stats("overhead_s"), **_stats("decode_tok_s"),
    prefix_ttft_s_mean=_F, cached_tokens_min=_I,
    ttft_bound_s=_F, ttft_over_bound=_F, decode_bound_tok_s=_F, decode_over_bound=_F,
    usd_per_prefill=_F, usd_per_query=_F, usd_per_mtok=_F, usd_per_mtok_out=_F, energy_j_mean=_F,
    energy_j_per_token=_F, energy_j_per_prompt_token=_F, energy_j_per_output_token=_F, power_gap_s_mean=_F,
    reasons=pa.list_(_S), synthetic_weights=_B, filled_kv=_B,
    hosts=pa.list_(_S), gpu=_S, gpu_count=_I, max_new_tokens=_I,
)  # fmt: skip
# One row per fitted curve of a mode, over its lengths: `name` is ttft_power, ttft_power_long or decode_line.
FITS = _schema(
    campaign=_S, mode=_S, name=_S, formula=_S, n=_I, length_min=_I, length_max=_I,
    coefficient=_F, exponent=_F, exponent_std=_F, intercept_s=_F, slope_s=_F, slope_std_s=_F, r2=_F,
)  # fmt: skip
# One row per metric, length and other run: ratio = ours / theirs, its interval, and the verdict (longctx.compare).
COMPARISON = _schema(
    other=_S, source=_S, per_gpu=_B, mode=_S, length=_I, metric=_S, ours_mean=_F, ours_std=_F, ours_n=_I,
    theirs_mean=_F, theirs_std=_F, theirs_n=_I, ratio=_F, ratio_low=_F, ratio_high=_F, p=_F, verdict=_S,
)  # fmt: skip
