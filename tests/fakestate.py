"""What the stand-in server (fakeserver.py) knows, and how it tells it as metrics; standard library only."""

import array
import contextlib
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 16


def unread_bytes(reader: int, writer: int) -> int:
    """Bytes that port `writer` of this machine sent to port `reader` and that nobody has read yet; 0 if unknown."""
    unread = 0
    with contextlib.suppress(OSError), open("/proc/net/tcp") as table:
        for line in table:
            _, local, remote, _, queues = line.split(maxsplit=5)[:5]
            ports = local.partition(":")[2], remote.partition(":")[2]
            if ports == (f"{reader:04X}", f"{writer:04X}"):
                unread += int(queues.partition(":")[2], 16)
    return unread


@dataclass
class Running:
    """The request in progress, for the KV usage that /metrics shows."""

    tokens: int
    cached: int
    started: float
    prefill_s: float
    model_s: tuple[float, float, float]
    hang: bool = False

    def tokens_done(self, now: float) -> float:
        share = 0.0 if self.hang else min(1.0, (now - self.started) / self.prefill_s if self.prefill_s else 1.0)
        _, b, c = self.model_s
        work = share * (b * self.tokens + c * self.tokens**2)
        done = (math.sqrt(b * b + 4 * c * work) - b) / (2 * c) if c else work / b
        return max(self.cached, min(done, self.tokens))


@dataclass
class State:
    """Everything one server knows; `plan_source` is a dict, JSON text, or the path of a JSON file."""

    plan_source: Any
    model: str = "fake"
    max_model_len: int = 1 << 20
    prefix_caching: bool = False
    details: bool = True
    kv_dtype: str = "auto"
    backend: str = "FLASH_ATTN"
    connector: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    truth: list[dict[str, Any]] = field(default_factory=list)
    seen: list[array.array] = field(default_factory=list)
    running: Running | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: threading.Lock = field(default_factory=threading.Lock)
    die: Any = None
    started: float = field(default_factory=time.time)
    aliases: list[str] = field(default_factory=list)
    late: tuple[int, Callable[[], None]] | None = None

    def plan(
        self,
        index: int | None = None,
        length: int | None = None,
        max_tokens: int | None = None,
        turn: int | None = None,
    ) -> dict[str, Any]:
        source = self.plan_source or {}
        if isinstance(source, str):
            source = json.loads(source if source.lstrip().startswith("{") else Path(source).read_text() or "{}")
        scopes = {"by_length": length, "by_max_tokens": max_tokens, "by_turn": turn, "by_request": index}
        for scope, value in scopes.items():
            source = {**source, **source.get(scope, {}).get(str(value), {})}
        return source

    def read(self) -> None:
        """The metrics are read: what was counted late may now be in them."""
        with self.reading:
            if self.late:
                left, count = self.late
                self.late = (left - 1, count) if left else None
                if not left:
                    count()

    def capacity(self) -> int:
        return int(self.plan().get("capacity", 1 << 26))

    def count(self, **grown: float) -> None:
        for name, value in grown.items():
            self.counters[name] = self.counters.get(name, 0) + value


def metrics_text(state: State, plan: dict[str, Any]) -> str:
    """The counters as vLLM 0.32 names them, or with metrics "old" as its 0.6 engine did."""
    old = plan.get("metrics") == "old"
    with state.lock:
        counters = dict(state.counters)
    running = state.running
    usage = running.tokens_done(time.monotonic()) / state.capacity() if running else 0.0
    itl = "time_per_output_token_seconds" if old else "inter_token_latency_seconds"
    engines = int(plan.get("engines", 1))
    lines = [f"process_start_time_seconds {state.started}"]
    for engine in range(engines):
        labels = f'engine="{engine}",model_name="{state.model}"'
        values = {
            "num_requests_running": 1 if running and engine == 0 else 0,
            "gpu_cache_usage_perc" if old else "kv_cache_usage_perc": usage if engine == 0 else 0.0,
        }
        names = {
            "request_prefill_time_seconds_sum": "prefill_s",
            "request_decode_time_seconds_sum": "decode_s",
            "request_queue_time_seconds_sum": "queue_s",
            "time_to_first_token_seconds_sum": "ttft_s",
            f"{itl}_sum": "decode_s",
            "prompt_tokens_total": "prompt_tokens",
            "generation_tokens_total": "generation_tokens",
            "request_success_total": "requests",
            "iteration_tokens_total_count": "iterations",
        }
        if not old:
            names |= {"prefix_cache_hits_total": "cached", "external_prefix_cache_hits_total": "external"}
        values |= {name: counters.get(key, 0.0) / engines for name, key in names.items()}
        lines += [f"vllm:{name}{{{labels}}} {value}" for name, value in values.items()]
    if not old:
        lines.append(
            f'vllm:cache_config_info{{block_size="{BLOCK}",cache_dtype="{plan.get("kv_dtype", state.kv_dtype)}",'
            f'enable_prefix_caching="{state.prefix_caching}",engine="0",kv_cache_size_tokens="{state.capacity()}",'
            f'num_gpu_blocks="{state.capacity() // BLOCK}"}} 1.0'
        )
    return "\n".join(lines) + "\n"
