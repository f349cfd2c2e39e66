"""The Arrow schema of every Parquet table of the pipeline, declared once.

A file's metadata has longctx_format and git_revision; a campaign's files also have its name and config_hash, the name
of its configuration in R/.config. Prompts and token streams depend on their content alone and have no config_hash.

Format history: 1 = first version (ADDED names the columns that its first files lack).
"""

import pyarrow as pa

from longctx.storage.rows import MeasurementRow, arrow_schema
from longctx.storage.rows import ModeName as ModeName
from longctx.storage.rows import Role as Role
from longctx.storage.rows import Status as Status

_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema(list(fields.items()))


# One row per server start. weights_bytes and kv_cache_bytes are of the fullest rank as the server logs them,
# gpu_memory_bytes is what the driver shows for the fullest GPU when the server is ready, less what was in use before.
# `contract` is JSON: [{setting, asked, actual, source, ok}], `env` JSON without secrets.
SERVERS = _schema(
    campaign=_S, recipe_hash=_S, mode=_S, length=_I, pass_index=_I, started_at=pa.timestamp("us", tz="UTC"),
    command=pa.list_(_S), contract=_S, env=_S, log_path=_S, status=_S, reason=_S, detail=_S,
    vllm_version=_S, torch_version=_S, aiter_version=_S, model=_S, attention_backend=_S, prefill_backend=_S,
    kv_cache_dtype=_S, cudagraph_mode=_S, kv_capacity_tokens=_I, weights_bytes=_I, kv_cache_bytes=_I,
    gpu_memory_bytes=_I, max_model_len=_I, block_size=_I,
    tensor_parallel_size=_I, pipeline_parallel_size=_I, decode_context_parallel_size=_I, max_num_seqs=_I,
    max_num_batched_tokens=_I, prefix_caching=_B, launcher=_S, image=_S, image_digest=_S, startup_s=_F,
    host=_S, gpu=_S, gpu_count=_I, gpu_driver=_S, cuda_or_rocm=_S, cpu=_S, cpu_count=_I, memory_bytes=_I,
    kernel=_S, os=_S,
)  # fmt: skip
_SERVER, _HOST = map(SERVERS.get_field_index, ("vllm_version", "host"))
# The server and host of a row: its last columns. Rows that differ in a field of IDENTITY never merge.
SERVER_FACTS = {column.name: column.type for column in list(SERVERS)[_SERVER:_HOST]}
HOST_FACTS = {column.name: column.type for column in list(SERVERS)[_HOST:]}
IDENTITY = ("vllm_version", "model", "kv_cache_dtype", "attention_backend", "tensor_parallel_size", "gpu",
            "gpu_count", "gpu_driver", "recipe_hash")  # fmt: skip
MEASUREMENTS = pa.schema([*arrow_schema(MeasurementRow), *list(SERVERS)[_SERVER:]])

# What a server holds at one length, exact for one start: tokens of KV cache, bytes per rank or GPU.
MEMORY_FACTS = ("kv_capacity_tokens", "kv_cache_bytes", "weights_bytes", "gpu_memory_bytes")

# Whole prompts that no cache held.
COLD_ROLES = (Role.COLD.value, Role.REPEAT.value)
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
    kv_budget_bytes_per_rank=_I, capacity_tokens=_I, fits=_B, ttft_bound_s=_F, decode_bound_tok_s=_F,
    est_ttft_s=_F, est_ttft_low_s=_F,
    est_ttft_high_s=_F, est_source=_S, est_hours=_F, reason=_S, remedy=_S,
)  # fmt: skip


def _stats(metric: str) -> dict[str, pa.DataType]:
    return {f"{metric}_{name}": _F for name in ("mean", "std", "cv", "min", "median", "max")} | {f"{metric}_n": _I}


# One row per (mode, length), of the roles that count there: cold and repeat in 'prefill', the hot queries in 'reuse'.
SUMMARY = _schema(
    campaign=_S, recipe_hash=_S, mode=_S, length=_I, n=_I, n_failed=_I, n_doubtful=_I, n_missing=_I, n_late=_I,
    n_outliers=_I,
    **_stats("ttft_s"), **_stats("prefill_s"), **_stats("overhead_s"), **_stats("decode_tok_s"),
    prefix_ttft_s_mean=_F, cached_tokens_min=_I,
    ttft_estimate_s=_F, ttft_estimate_low_s=_F, ttft_estimate_high_s=_F, ttft_estimate_samples=_I,
    ttft_bound_s=_F, ttft_over_bound=_F, decode_bound_tok_s=_F, decode_over_bound=_F,
    usd_per_prefill=_F, usd_per_query=_F, usd_per_mtok=_F, usd_per_mtok_out=_F, energy_j_mean=_F,
    energy_j_per_token=_F, energy_j_per_prompt_token=_F, energy_j_per_output_token=_F, power_gap_s_mean=_F,
    reasons=pa.list_(_S), synthetic_weights=_B, filled_kv=_B,
    hosts=pa.list_(_S), gpu=_S, gpu_count=_I, max_new_tokens=_I,
    **dict.fromkeys(MEMORY_FACTS, _I),
)  # fmt: skip
# One row per length of a mode that estimates the TTFT of whole prompts from parts of them. ttft_low_s and ttft_high_s
# come from repeats_s, interpolation_s and deviation_s (plan.chunk_curve); ttft_measured_s is of real prefills, and
# deviation is ttft_estimate_s / ttft_measured_s - 1. reason says why there is no estimate.
ESTIMATES = _schema(
    campaign=_S, recipe_hash=_S, mode=_S, length=_I, ttft_estimate_s=_F, ttft_low_s=_F, ttft_high_s=_F,
    ttft_measured_s=_F, samples=_I, prefill_estimate_s=_F, overhead_s=_F, method=_S, chunk_tokens=_I, knots=_I,
    repeats_s=_F, interpolation_s=_F, deviation_s=_F, deviations_n=_I, measured_mode=_S, measured_role=_S,
    measured_n=_I, deviation=_F, deviation_inside=_B, last_chunk_s=_F, last_chunk_bound_s=_F, sm_clock_mhz=_F,
    measured_sm_clock_mhz=_F, doubts=pa.list_(_S), reason=_S, synthetic_weights=_B, gpu=_S, gpu_count=_I,
)  # fmt: skip
# One row per chunk of a real prefill: `tokens` behind `depth` took `seconds`, and elapsed_s is the time of the prefill
# until their end. source: 'iterations' of the server's log, or 'progress' samples, whose seconds are off by up to
# error_s. mark: 'compiled' or 'slow' against the chunks around it. sampled_s: what the samples say of such a chunk.
CHUNKS = _schema(
    campaign=_S, mode=_S, role=_S, length=_I, pass_index=_I, request_index=_I, depth=_I, tokens=_I, seconds=_F,
    elapsed_s=_F, error_s=_F, source=_S, mark=_S, sampled_s=_F,
)  # fmt: skip
# One row per fitted curve of a mode, over its lengths: `name` is ttft_power, ttft_power_long or decode_line.
# reason: why there are no numbers.
FITS = _schema(
    campaign=_S, mode=_S, name=_S, formula=_S, n=_I, length_min=_I, length_max=_I,
    coefficient=_F, exponent=_F, exponent_std=_F, intercept_s=_F, slope_s=_F, slope_std_s=_F, r2=_F, reason=_S,
)  # fmt: skip
# One row per metric, length and other run: ratio = ours / theirs, its interval, and the verdict.
COMPARISON = _schema(
    other=_S, source=_S, per_gpu=_B, mode=_S, length=_I, metric=_S, ours_mean=_F, ours_std=_F, ours_n=_I,
    theirs_mean=_F, theirs_std=_F, theirs_n=_I, ratio=_F, ratio_low=_F, ratio_high=_F, p=_F, verdict=_S,
)  # fmt: skip
