"""Measurement, plan, server and validation rows made from a known truth, with the faults that a real campaign has.

Truth: TTFT = T0 + A L + B L^2 (cold), HOT behind a resident prefix, seconds per output token = D0 + D1 L.
"""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from longctx.lengths import format_length, ladder

T0, A, B = 0.12, 1.6e-5, 9.5e-11
HOT0, HOT1 = 0.11, 1.1e-6
D0, D1 = 3.86e-3, 1.38e-9
NOISE = 0.01
STARTED = datetime(2026, 11, 29, 9, 0, tzinfo=UTC)

SERVER = {
    "vllm_version": "0.25.1", "torch_version": "2.11.0+cu130", "model": "kimi-linear-48b-a3b",
    "attention_backend": "FLASHMLA", "prefill_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8_e4m3",
    "cudagraph_mode": "FULL_AND_PIECEWISE", "kv_capacity_tokens": 9_798_743, "block_size": 3776,
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "max_num_seqs": 1,
    "max_num_batched_tokens": 16384, "prefix_caching": False, "launcher": "local", "startup_s": 95.2,
}  # fmt: skip
HOST = {
    "host": "node-1", "gpu": "NVIDIA H200", "gpu_count": 1, "gpu_driver": "580.159", "cuda_or_rocm": "CUDA 13.0",
    "cpu": "Xeon Platinum 8592+", "cpu_count": 16, "memory_bytes": 128 << 30, "kernel": "6.8.0", "os": "Ubuntu 24.04",
}  # fmt: skip


def ttft_s(length: int) -> float:
    return T0 + A * length + B * length * length


def hot_ttft_s(length: int) -> float:
    return HOT0 + HOT1 * length


def decode_tok_s(length: int) -> float:
    return 1 / (D0 + D1 * length)


def row(mode: str = "prefill", length: int = 4096, pass_index: int = 1, **changes: Any) -> dict[str, Any]:
    """Return one noise-free ok row; `changes` replace fields."""
    decode_only, reuse = mode == "decode_only", mode == "reuse"
    ttft = None if decode_only else hot_ttft_s(length) if reuse else ttft_s(length)
    overhead = 0.008 + 8e-7 * length
    rate = decode_tok_s(length)
    made = {
        "campaign": "h200",
        "recipe_hash": f"5f0c1d2e3a4b{mode[:4]}",
        "mode": mode,
        "role": {"prefill": "cold", "reuse": "reuse", "decode_only": "decode_only"}[mode],
        "length": length,
        "pass_index": pass_index,
        "request_index": 1 if reuse else 0,
        "status": "ok",
        "prompt_sha256": f"{length:064x}",
        "prompt_tokens": length,
        "completion_tokens": 128,
        "max_new_tokens": 128,
        "cached_tokens": length - 64 if reuse else 0,
        "temperature": 0.0,
        "ignore_eos": True,
        "ttft_s": ttft,
        "prefill_s": ttft and max(ttft - overhead, ttft / 2),
        "queue_s": ttft and 0.0002,
        "e2e_s": (ttft or 0.0) + 127 / rate,
        "decode_tok_s": rate,
        "decode_client_tok_s": rate * 0.998,
        "decode_source": "server",
        "chunks": 128,
        "coalesced": length >= 1 << 20,
        "jit_events": 0,
        "energy_j": ((ttft or 0.0) + 127 / rate) * 640,
        "energy_decode_j": 127 / rate * 640,
        "power_mean_w": 640.0,
        "power_gap_s": 0.0,
        "synthetic_weights": True,
        "filled_kv": decode_only,
        "started_at": STARTED + timedelta(seconds=length / 500),
        "server_counters": json.dumps({"vllm:request_prefill_time_seconds_sum": [0.0, ttft]}),
        "log_lines": [],
        **SERVER,
        **HOST,
        "max_model_len": length + 16384,
    }
    if ttft:
        made["overhead_s"] = ttft - made["prefill_s"] - 0.0002
    if made["coalesced"] is False:
        made |= {"itl_p50_s": 1 / rate, "itl_p90_s": 1.05 / rate, "itl_p99_s": 1.2 / rate, "itl_max_s": 2 / rate}
    return made | changes


def bad_row(reason: str, status: str = "failed", detail: str = "", **changes: Any) -> dict[str, Any]:
    """Return a failed or doubtful row: no headline values."""
    values = (
        "ttft_s",
        "prefill_s",
        "queue_s",
        "overhead_s",
        "e2e_s",
        "decode_tok_s",
        "decode_client_tok_s",
        "decode_source",
        "itl_p50_s",
        "itl_p90_s",
        "itl_p99_s",
        "itl_max_s",
        "energy_j",
        "energy_decode_j",
    )
    made = row(**changes)
    return made | dict.fromkeys(values) | {"status": status, "reason": reason, "reasons": [reason], "detail": detail}


def _noisy(made: dict[str, Any], noise: random.Random) -> dict[str, Any]:
    for field in ("ttft_s", "prefill_s", "decode_tok_s", "decode_client_tok_s", "energy_j"):
        if made.get(field):
            made[field] *= 1 + noise.gauss(0, NOISE)
    if made.get("ttft_s"):
        made["overhead_s"] = max(made["ttft_s"] - made["prefill_s"] - 0.0002, 0.001)
    return made


def campaign(seed: int = 1, top: str = "1Mi", passes: int = 3, faults: bool = True) -> list[dict[str, Any]]:
    """Return the rows of a campaign in three modes; with `faults`, some fail, doubt, warm up, retry and stand out."""
    noise = random.Random(seed)
    rows = []
    for pass_index in range(1, passes + 1):
        for length in ladder("1Ki", top):
            warm = row("prefill", length, pass_index, role="warmup", request_index=-1)
            warm |= {"ttft_s": 24.0, "length": length, "prompt_tokens": 1024}
            rows += [warm, _noisy(row("prefill", length, pass_index), noise)]
        for length in ladder("256Ki", top):
            resident = row("prefill", length, pass_index) | {"mode": "reuse", "recipe_hash": "5f0c1d2e3a4breus"}
            rows.append(_noisy(resident, noise))
            rows += [_noisy(row("reuse", length, pass_index, request_index=i), noise) for i in range(1, 5)]
        for length in ladder("1Ki", "8Mi"):
            rows.append(_noisy(row("decode_only", length, pass_index), noise))
    return _with_faults(rows) if faults else rows


def _with_faults(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    doubt = {"detail": "compiled inside the measured window: Triton kernel JIT compilation during inference"}
    rows = [r for r in rows if not (r["mode"] == "prefill" and r["length"] == 1 << 20 and r["pass_index"] == 3)]
    rows.insert(1, bad_row("jit", "doubtful", length=1024, pass_index=1) | doubt | {"jit_events": 3})
    refused = "prompt 8388608 + 128 new + 16256 headroom > capacity 8200000 tokens"
    rows.append(bad_row("kv_too_small", mode="decode_only", length=1 << 24, pass_index=1) | {"detail": refused})
    died = "EngineCore died: torch.OutOfMemoryError: <tried> to allocate 2.00 GiB & failed"
    rows.append(bad_row("server_died", length=1 << 20, pass_index=3) | {"detail": died})
    marked = next(r for r in rows if r["mode"] == "prefill" and r["length"] == 1 << 19 and r["role"] == "cold")
    marked |= {
        "ttft_s": None,
        "prefill_s": None,
        "overhead_s": None,
        "queue_s": None,
        "reason": "resumed",
        "reasons": ["resumed"],
        "cached_tokens": 262_144,
        "resumed_from": 262_144,
        "stitched_prefill_s": 34.4,
        "stitched_error_s": 0.9,
        "detail": "prefill took 262144 tokens back from a checkpoint",
    }
    slow = next(r for r in rows if r["mode"] == "reuse" and r["role"] == "reuse" and r["length"] == 1 << 18)
    slow["ttft_s"] *= 3
    return rows


def expected(top: str = "1Mi", passes: int = 3) -> dict[tuple[str, int], int]:
    """Return the requests that `campaign` should have: 2Mi was never reached."""
    wanted = {("prefill", n): passes for n in ladder("1Ki", top)} | {("prefill", 1 << 21): passes}
    wanted |= {("reuse", n): 4 * passes for n in ladder("256Ki", top)}
    return wanted | {("decode_only", n): passes for n in ladder("1Ki", "16Mi")}


def plan() -> list[dict[str, Any]]:
    """Return schemas.PLAN rows whose TTFT bound is 70 % of the truth and whose decode bound is twice the truth."""
    made = []
    for mode, lengths in (("prefill", ladder("1Ki", "2Mi")), ("decode_only", ladder("1Ki", "16Mi"))):
        for n in lengths:
            made.append(
                {
                    "mode": mode,
                    "length": n,
                    "kv_bytes_per_rank": 4032 * n,
                    "state_bytes_per_rank": 43 << 20,
                    "weight_bytes_per_rank": 98_357_000_000,
                    "capacity_tokens": 9_830_000,
                    "fits": n < 9_830_000,
                    "ttft_bound_s": 0.7 * ttft_s(n) - 0.05,
                    "decode_bound_tok_s": 2 * decode_tok_s(n),
                    "est_ttft_s": 1.04 * ttft_s(n),
                    "est_ttft_low_s": 0.9 * ttft_s(n),
                    "est_ttft_high_s": 1.2 * ttft_s(n),
                    "est_source": "measured 1Ki..64Ki",
                    "est_hours": ttft_s(n) / 1200,
                    "reason": None if n < 9_830_000 else "16Mi in fp8_e4m3 needs 63.0 GiB of KV, 36.9 GiB are left",
                    "remedy": None if n < 9_830_000 else "2 GPUs with decode context parallelism 2 would hold it",
                }
            )
    return made


def servers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a schemas.SERVERS row for each server that gave `rows`."""
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    kept = (*SERVER, *HOST, "max_model_len", "campaign", "recipe_hash", "mode", "length", "pass_index", "started_at")
    contract = [
        {"setting": "kv_cache_dtype", "asked": "fp8_e4m3", "actual": "fp8_e4m3", "source": "log", "ok": True},
        {"setting": "attention_backend", "asked": "FLASHMLA", "actual": "FLASHMLA", "source": "log", "ok": True},
        {"setting": "cudagraph_mode", "asked": "FULL", "actual": "FULL_AND_PIECEWISE", "source": "log", "ok": False},
        {"setting": "aiter_version", "asked": None, "actual": None, "source": None, "ok": None},
    ]
    for r in rows:
        run = f"pass{r['pass_index']}" if r["mode"] == "prefill" else f"{r['mode']}-pass{r['pass_index']}"
        log_path = f"results/h200/logs/{format_length(r['length'])}/{run}.server.log"
        command = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--kv-cache-dtype", "fp8_e4m3"]
        made.setdefault(
            (r["mode"], r["length"], r["pass_index"]),
            {field: r.get(field) for field in kept}
            | {
                "command": command,
                "contract": json.dumps(contract),
                "log_path": log_path,
                "status": "ok",
                "env": json.dumps({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
            },
        )
    return list(made.values())


def validation(cycled_from: int = 1 << 20) -> list[dict[str, Any]]:
    """Return schemas.VALIDATION rows; from `cycled_from` tokens on, the corpus was used twice."""
    return [
        {
            "length": n,
            "target": n,
            "counted": n,
            "ids_in_range": True,
            "special_ids": 0,
            "undecodable_ids": 0,
            "round_trip": True,
            "cycles": 2 if n >= cycled_from else 1,
            "prompt_sha256": f"{n:064x}",
            "ok": True,
        }
        for n in ladder("1Ki", "2Mi")
    ]
