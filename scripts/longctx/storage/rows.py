"""The row of one request, typed: `longctx.storage.schemas` derives the measurements' Arrow schema from it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, get_args, get_type_hints

import pyarrow as pa


class ModeName(StrEnum):
    """The modes, in the order in which tables and figures name them; `longctx.modes` has a folder for each."""

    PREFILL = "prefill"
    REUSE = "reuse"
    DECODE_ONLY = "decode_only"
    SAMPLED = "sampled"


class Role(StrEnum):
    """What a request is to its point. Cold and repeated requests are whole prompts that no cache held.

    A sample computes the last chunk (short) or chunks (long) of a prompt whose beginning is claimed. A whole prompt on
    the same server claims nothing.
    """

    COLD = "cold"
    REPEAT = "repeat"
    WARMUP = "warmup"
    REUSE = "reuse"
    DECODE_ONLY = "decode_only"
    SAMPLE_SHORT = "sample_short"
    SAMPLE_LONG = "sample_long"
    WHOLE = "whole"


class Status(StrEnum):
    """What a row may claim: its values, doubtful ones (null, the raw record stays), or nothing."""

    OK = "ok"
    DOUBTFUL = "doubtful"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRow:
    """One request and what it may claim; times in s, energy in J, power in W; None is not known.

    prompt_sha256: of the prompt's file, without the salt. claimed_tokens: the beginning of the prompt that a KV
    connector claimed, so that the server did not compute it.
    sample_prefill_s: the server's time for the rest, in s: an ingredient of an estimate, never a prefill.
    sm_clock_mhz, sm_clock_min_mhz: mean and lowest of the samples of all GPUs during the request. throttle_reasons: why
    a GPU held its clocks back then, as NVML names it. prefill_chunks: JSON of what the server logged of each iteration
    of the prefill, [tokens, s, whether something was compiled in it].
    """

    campaign: str
    recipe_hash: str
    mode: ModeName
    role: Role
    length: int
    pass_index: int
    request_index: int
    status: Status
    reason: str | None = None
    reasons: tuple[str, ...] = ()
    detail: str | None = None
    prompt_sha256: str | None = None
    prompt_salt: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    max_new_tokens: int | None = None
    cached_tokens: int | None = None
    claimed_tokens: int | None = None
    temperature: float | None = None
    ignore_eos: bool | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    sample_prefill_s: float | None = None
    queue_s: float | None = None
    overhead_s: float | None = None
    e2e_s: float | None = None
    decode_tok_s: float | None = None
    decode_client_tok_s: float | None = None
    decode_source: str | None = None
    itl_p50_s: float | None = None
    itl_p90_s: float | None = None
    itl_p99_s: float | None = None
    itl_max_s: float | None = None
    chunks: int | None = None
    coalesced: bool | None = None
    starved_s: float | None = None
    jit_events: int | None = None
    resumed_from: int | None = None
    external_hit_tokens: int | None = None
    resumed_ttft_s: float | None = None
    resumed_prefill_s: float | None = None
    prefill_chunks: str | None = None
    stitched_prefill_s: float | None = None
    stitched_error_s: float | None = None
    energy_j: float | None = None
    energy_decode_j: float | None = None
    power_mean_w: float | None = None
    power_gap_s: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_min_mhz: float | None = None
    throttle_reasons: str | None = None
    synthetic_weights: bool | None = None
    filled_kv: bool | None = None
    started_at: datetime | None = None
    server_counters: str | None = None
    log_lines: tuple[str, ...] | None = None


_ARROW = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), tuple[str, ...]: pa.list_(pa.string()),
    datetime: pa.timestamp("us", tz="UTC"), ModeName: pa.string(), Role: pa.string(), Status: pa.string(),
}  # fmt: skip


def arrow_schema(record: type[Any]) -> pa.Schema:
    """Return the Arrow schema of a dataclass: one nullable column for each field, in the order of the fields."""
    hints = get_type_hints(record)
    types = {name: next(kind for kind in (hint, *get_args(hint)) if kind in _ARROW) for name, hint in hints.items()}
    return pa.schema([(name, _ARROW[kind]) for name, kind in types.items()])
