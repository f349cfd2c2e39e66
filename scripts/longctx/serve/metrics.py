"""A server's own counters, under one set of names whatever its version.

The names are vLLM's, from 0.32 (first in each row) back to the 0.6 engine. Series of several engines are added up.
What a server does not report is None, never 0.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

from longctx.serve.http import client, get

# Canonical name -> the sample names that mean it; the first one present counts.
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
    "queue_s": ("vllm:request_queue_time_seconds_sum",),
    "decode_s": ("vllm:request_decode_time_seconds_sum",),
    "itl_sum_s": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "ttft_s": ("vllm:time_to_first_token_seconds_sum",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "requests": ("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count"),
    # vLLM's older gpu_prefix_cache_hits counted blocks before it counted tokens, so it is not among these.
    "cached_tokens": ("vllm:prefix_cache_hits_total",),
    "external_hit_tokens": ("vllm:external_prefix_cache_hits_total",),
    "iterations": ("vllm:iteration_tokens_total_count",),
    "preemptions": ("vllm:num_preemptions_total",),
}
GAUGES: Mapping[str, tuple[str, ...]] = {
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "running": ("vllm:num_requests_running",),
    "process_start": ("process_start_time_seconds",),
}
CACHE_INFO = "vllm:cache_config_info"
_WANTED = {name for names in (*COUNTERS.values(), *GAUGES.values()) for name in names} | {CACHE_INFO}
SETTLE_S = 5.0
LONGEST_COUNT = 15  # digits of a number of tokens


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading. `counters` and `sources` (which metric gave it) by canonical name.

    kv_usage is the fullest engine's share of its KV cache, 0..1; kv_capacity_tokens, of the smallest engine, is None
    before vLLM 0.32, whose block counts do not add up to tokens for hybrid models (take it from the log there).
    engines: each engine's labels of CACHE_INFO.
    """

    counters: Mapping[str, float]
    sources: Mapping[str, str]
    engines: tuple[Mapping[str, str], ...] = ()
    kv_capacity_tokens: int | None = None
    kv_usage: float | None = None
    running: float | None = None
    process_start: float | None = None

    def activity(self) -> tuple[float | None, ...]:
        """Return values of which at least one moves while the engine works."""
        moving = ("iterations", "generation_tokens", "prompt_tokens", "requests")
        return (self.kv_usage, *(self.counters.get(name) for name in moving))


@dataclass(frozen=True, slots=True)
class Window:
    """The growth of each counter between two readings; None where it is unknown, and why where all of it is.

    running_besides: requests that ran at the first reading, or still at the last, when ours did not.
    """

    prefill_s: float | None = None
    queue_s: float | None = None
    decode_s: float | None = None
    itl_sum_s: float | None = None
    ttft_s: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    requests: int | None = None
    cached_tokens: int | None = None
    external_hit_tokens: int | None = None
    iterations: int | None = None
    preemptions: int | None = None
    running_besides: int | None = None
    void: str | None = None
    record: str | None = None
    """JSON of what it was taken from: {name: {metric, before, after}}."""


def parse(text: str) -> Snapshot | None:
    """Return the reading in a Prometheus text, or None where it holds no metric that we know."""
    lines = [line for line in text.split("\n") if line.partition("{")[0].partition(" ")[0] in _WANTED]
    values: dict[str, list[float]] = {}
    engines: list[Mapping[str, str]] = []
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.name == CACHE_INFO:
                    engines.append(sample.labels)
                else:
                    values.setdefault(sample.name, []).append(sample.value)
    except (ValueError, KeyError, IndexError):  # what the parser makes of a damaged text
        return None
    # of a sum, every part must be a number
    values = {name: series for name, series in values.items() if all(0 <= value < math.inf for value in series)}
    values = {name: series for name, series in values.items() if sum(series) < math.inf}
    sources = _present(COUNTERS, values)
    if not sources and not engines:
        return None
    gauges: dict[str, Any] = {name: max(values[metric]) for name, metric in _present(GAUGES, values).items()}
    if "running" in gauges:
        gauges["running"] = sum(values[GAUGES["running"][0]])
    counters = {name: math.fsum(values[metric]) for name, metric in sources.items()}
    labelled = [labels.get("kv_cache_size_tokens", "") for labels in engines]
    sizes = [int(size) for size in labelled if size.isdecimal() and len(size) <= LONGEST_COUNT]
    return Snapshot(counters, sources, tuple(engines), min(sizes, default=None), **gauges)


def _present(table: Mapping[str, tuple[str, ...]], values: Mapping[str, list[float]]) -> dict[str, str]:
    return {name: metric for name, metrics in table.items() for metric in metrics[::-1] if metric in values}


def scrape(url: str, *, api_key: str | None = None, timeout_s: float = 30.0) -> Snapshot | None:
    """Return the reading of `url`/metrics now; None where there is none, or it cannot be read."""
    try:
        with client(url, api_key, timeout_s=timeout_s) as http:
            response = get(http, "/metrics")
    except httpx.HTTPError:
        return None
    return parse(response.text) if response.status_code == 200 else None


def difference(before: Snapshot | None, after: Snapshot | None) -> Window:
    """Return what grew between two readings; void where either is missing or the server restarted between."""
    if before is None or after is None:
        return Window(void="no server metrics" if before is None else "the server's metrics stopped during the request")
    shared = [name for name, metric in after.sources.items() if before.sources.get(name) == metric]
    grown: dict[str, Any] = {name: after.counters[name] - before.counters[name] for name in shared}
    if before.process_start != after.process_start or any(growth < 0 for growth in grown.values()):
        return Window(void="the server's counters began anew, or another server's were read")
    grown = {name: growth if name.endswith("_s") else round(growth) for name, growth in grown.items()}
    at_ends = ((name, before.counters[name], after.counters[name]) for name in shared)
    record = {name: {"metric": after.sources[name], "before": first, "after": last} for name, first, last in at_ends}
    running = max((round(n) for n in (before.running, after.running) if n is not None), default=None)
    return Window(**grown, running_besides=running, record=orjson.dumps(record).decode())


def attribute_to_request(window: Window, completion_tokens: int | None) -> Window:
    """Return `window`, void where it lacks a request that made `completion_tokens`; its record stays as evidence.

    So it is where the counters of another replica were read, or where they never caught up.
    """
    if _holds(window, completion_tokens):
        return window
    return Window(void="the server's counters never showed this request", record=window.record)


def settle(
    url: str, before: Snapshot | None, *, completion_tokens: int | None, api_key: str | None = None
) -> Snapshot | None:
    """Return the reading after a request has ended, once its counters have caught up.

    Waits until the request and its tokens are counted and nothing runs; after SETTLE_S the last reading.
    """
    waited_s, step_s = 0.0, 0.05
    while True:
        after = scrape(url, api_key=api_key)
        if before is None or after is None or waited_s >= SETTLE_S:
            return after
        if _holds(difference(before, after), completion_tokens) and not after.running:
            return after
        time.sleep(step_s)
        waited_s, step_s = waited_s + step_s, min(2 * step_s, 0.5)


def _holds(window: Window, completion_tokens: int | None) -> bool:
    """Return whether the request and its tokens are in the counters, as far as there are any."""
    counted = window.requests is None or window.requests >= 1
    return counted and (window.generation_tokens is None or window.generation_tokens >= (completion_tokens or 0))


def server_decode_tok_s(window: Window, completion_tokens: int | None) -> float | None:
    """Return (completion_tokens - 1) / growth of the sum of inter-token latencies, else of the decode time."""
    rate = decode_tok_s(completion_tokens, window.itl_sum_s)
    return decode_tok_s(completion_tokens, window.decode_s) if rate is None else rate


def decode_tok_s(completion_tokens: int | None, decode_s: float | None) -> float | None:
    """Return tokens/s = (completion_tokens - 1) / decode_s; the first token belongs to the prefill.

    None with fewer than two tokens, or where the time is unknown or zero.
    """
    if completion_tokens is None or decode_s is None:
        return None
    return rate(completion_tokens - 1, decode_s)


def rate(tokens: int, time_s: float) -> float | None:
    rate = tokens / time_s if tokens > 0 and time_s > 0 else math.inf
    return rate if math.isfinite(rate) else None
