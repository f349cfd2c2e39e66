"""Before anything runs: does each length fit, what is the hardware's limit, how long will the campaign take.

Pure arithmetic over `geometry`, `hardware`, `capacity`, `bounds` and `forecast`. Rows are of `tables.PLAN`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from packaging.version import InvalidVersion, Version

from longctx.bounds import decode_bound_tok_s, ttft_bound_s
from longctx.capacity import (
    Memory,
    capacity_tokens,
    check_parallelism,
    kv_bytes_per_rank,
    rank_memory,
    state_bytes_per_rank,
    weight_bytes_per_rank,
)
from longctx.errors import ConfigError
from longctx.forecast import Curve, Estimate, forecast, nearest_curve, reference_curves
from longctx.geometry import Geometry
from longctx.hardware import Hardware, Parallelism
from longctx.lengths import format_length

AITER_64BIT = "0.1.19.post2"  # first release whose decode kernel addresses the KV cache with 64 bits
AITER_32BIT_TOKENS = 2**24
# A decode step takes what the bandwidth bound says over this share, plus launches and sampling. Published MI355X and
# the H200 probe: 3.6 to 3.9 ms at 1Ki, 60 ms at 64Mi where the bound is 34 ms.
DECODE_SHARE_OF_BOUND = 0.6
DECODE_STEP_S = 0.004
GPU_START_S, CPU_START_S = 240.0, 60.0  # weights, graphs and warm-up of one server, where nothing was measured
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Settings:
    """What of a recipe and campaign the plan needs.

    headroom_tokens: max_model_len - prompt length; new tokens count in it. batched_tokens: one prefill chunk.
    cpu_kv_gib: VLLM_CPU_KVCACHE_SPACE of a CPU server (hardware None). scope: how long a server lives ('point',
    'pass' or 'campaign'). start_s: one server's start with warm-up, None = GPU_START_S or CPU_START_S.
    """

    kv_dtype: str = "auto"
    gpu_memory_utilization: float | None = None
    batched_tokens: int | None = None
    max_new_tokens: int = 128
    headroom_tokens: int = 16384
    cpu_kv_gib: float | None = None
    aiter_version: str | None = None
    passes: int = 1
    scope: str = "point"
    start_s: float | None = None


def memory_of(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings
) -> Memory | None:
    """Return a rank's budget; None where neither hardware nor a CPU cache size is known."""
    if hardware is not None:
        return rank_memory(
            geometry, hardware, parallelism,
            gpu_memory_utilization=settings.gpu_memory_utilization, batched_tokens=settings.batched_tokens,
        )  # fmt: skip
    check_parallelism(geometry, parallelism)
    return None if settings.cpu_kv_gib is None else Memory(int(settings.cpu_kv_gib * GIB))


def sequence_capacity(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings
) -> int | None:
    """Return the tokens of the longest sequence (prompt, new tokens and headroom); None: not known or not limited."""
    memory = memory_of(geometry, hardware, parallelism, settings)
    if memory is None:
        return None
    return capacity_tokens(
        geometry,
        parallelism,
        memory.kv,
        settings.kv_dtype,
        batched_tokens=settings.batched_tokens,
        cpu=hardware is None,
    )


def needed_tokens(length: int, settings: Settings) -> int:
    """Return what the cache must hold for a prompt of `length`: 1024 in and 16 out need at least 1040."""
    return length + max(settings.headroom_tokens, settings.max_new_tokens)


def max_context(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings
) -> int | None:
    """Return the longest prompt that fits with its headroom, 0 where none does, None where nothing limits it."""
    capacity = sequence_capacity(geometry, hardware, parallelism, settings)
    return None if capacity is None else max(0, capacity - needed_tokens(0, settings))


def aiter_problem(hardware: Hardware | None, length: int, settings: Settings) -> str | None:
    """Return why this length may not run on ROCm with the recipe's AITER, or None."""
    if hardware is None or hardware.vendor != "amd" or length + settings.max_new_tokens <= AITER_32BIT_TOKENS:
        return None
    need = f"beyond 2^24 tokens ROCm needs AITER v{AITER_64BIT} or newer (64-bit KV addresses)"
    declared = settings.aiter_version
    if declared is None:
        return f"{need}, and the recipe names no version: set serve.aiter_version to the installed release"
    try:
        good = Version(declared.removeprefix(">=").removeprefix("==")) >= Version(AITER_64BIT)
    except InvalidVersion:
        return f"{need}, and serve.aiter_version: {declared!r} is not a version"
    return None if good else f"{need}, and the recipe has {declared}: install the newer release"


@dataclass(frozen=True, slots=True)
class Planner:
    """One model on one node with one recipe; `curves` back the forecasts where nothing is measured yet."""

    geometry: Geometry
    hardware: Hardware | None
    parallelism: Parallelism
    settings: Settings
    measured: Mapping[int, float]
    curve: Curve | None

    def ttft_bound_s(self, length: int) -> float | None:
        """Return the least TTFT in s that the hardware allows, None on a CPU."""
        if self.hardware is None:
            return None
        return ttft_bound_s(self.geometry, self.hardware, self.parallelism, length, self.settings.kv_dtype)

    def decode_bound_tok_s(self, length: int) -> float | None:
        """Return the most tokens/s behind `length` tokens, None on a CPU."""
        if self.hardware is None:
            return None
        return decode_bound_tok_s(self.geometry, self.hardware, self.parallelism, length, self.settings.kv_dtype)

    def estimate(self, length: int) -> Estimate | None:
        """Return the TTFT to expect, None where nothing measured or published says anything."""
        bound = None
        if self.hardware is not None:
            bound = partial(
                ttft_bound_s, self.geometry, self.hardware, self.parallelism, kv_dtype=self.settings.kv_dtype
            )
        return forecast(length, measured=self.measured, bound=bound, curve=self.curve, same_setup=self._same_setup())

    def _same_setup(self) -> bool:
        if self.curve is None or self.hardware is None:
            return False
        same_gpus = (self.curve.hardware.name, self.curve.hardware.count) == (self.hardware.name, self.hardware.count)
        same_split = replace(self.curve.parallelism, data=self.parallelism.data) == self.parallelism
        return same_gpus and same_split and self.curve.geometry.layers == self.geometry.layers

    def hours(self, mode: str, length: int, requests: int, starts: float, passes: int) -> float | None:
        """Return the hours of a rung over all its passes: server starts, prefills and decodes."""
        estimate = self.estimate(length)
        if mode != "decode_only" and estimate is None:
            return None
        bound_tok_s = self.decode_bound_tok_s(length)
        step_s = DECODE_STEP_S + (1 / bound_tok_s / DECODE_SHARE_OF_BOUND if bound_tok_s else 0.0)
        decodes = requests * self.settings.max_new_tokens * step_s
        prefills = {"prefill": requests, "reuse": 1}.get(mode, 0) * (estimate.ttft_s if estimate else 0.0)
        default_start = CPU_START_S if self.hardware is None else GPU_START_S
        start_s = default_start if self.settings.start_s is None else self.settings.start_s
        return passes * (starts * start_s + prefills + decodes) / 3600

    def row(self, mode: str, length: int, requests: int, starts: float, passes: int) -> dict[str, Any]:
        """Return a tables.PLAN row. `requests` and `starts` are per pass (a shared server starts less than once)."""
        memory = memory_of(self.geometry, self.hardware, self.parallelism, self.settings)
        capacity = sequence_capacity(self.geometry, self.hardware, self.parallelism, self.settings)
        reason, mend = self._verdict(length, memory, capacity)
        estimate = self.estimate(length) if mode != "decode_only" else None
        return {
            "mode": mode,
            "length": length,
            "kv_bytes_per_rank": kv_bytes_per_rank(self.geometry, self.parallelism, length, self.settings.kv_dtype),
            "state_bytes_per_rank": state_bytes_per_rank(self.geometry, self.parallelism),
            "weight_bytes_per_rank": weight_bytes_per_rank(self.geometry, self.parallelism),
            "capacity_tokens": capacity,
            "fits": None if memory is None else reason is None,
            "ttft_bound_s": None if mode == "decode_only" else self.ttft_bound_s(length),
            "decode_bound_tok_s": self.decode_bound_tok_s(length),
            "est_ttft_s": estimate and estimate.ttft_s,
            "est_ttft_low_s": estimate and estimate.low_s,
            "est_ttft_high_s": estimate and estimate.high_s,
            "est_source": estimate and estimate.source,
            "est_hours": self.hours(mode, length, requests, starts, passes) if reason is None else None,
            "reason": reason,
            "mend": mend,
        }

    def _verdict(self, length: int, memory: Memory | None, capacity: int | None) -> tuple[str | None, str | None]:
        if memory is not None and capacity is not None and needed_tokens(length, self.settings) > capacity:
            return "does_not_fit", self._mend(length, memory, capacity)
        if problem := aiter_problem(self.hardware, length, self.settings):
            return "unsupported", problem
        return None, None

    def _mend(self, length: int, memory: Memory, capacity: int) -> str:
        need = kv_bytes_per_rank(
            self.geometry, self.parallelism, needed_tokens(length, self.settings), self.settings.kv_dtype
        )
        if memory.kv <= 0 and memory.weights is not None:
            what = f"the weights ({memory.weights / GIB:.1f} GiB per GPU) leave no room for a KV cache"
        else:
            what = f"needs {need / GIB:.1f} GiB of KV cache per rank, {max(0, memory.kv) / GIB:.1f} GiB are left"
        if self.hardware is None:
            enough = self._cpu_gib(length)
            ways = [f"VLLM_CPU_KVCACHE_SPACE={enough}"]
        else:
            ways = list(ways_to_fit(self.geometry, self.hardware, self.parallelism, self.settings, length))
        room = capacity - needed_tokens(0, self.settings)
        if room > 0:
            ways.append(f"lengths up to {room:,} tokens")
        return f"{what}; would fit: {' or '.join(ways)}" if ways else f"{what}; nothing within 64 GPUs would fit"

    def _cpu_gib(self, length: int) -> int:
        gib = 1
        while True:
            capacity = sequence_capacity(self.geometry, None, self.parallelism, replace(self.settings, cpu_kv_gib=gib))
            if capacity is None or capacity >= needed_tokens(length, self.settings):
                return gib
            gib *= 2


def plan_campaign(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, points: Sequence[tuple[str, int]],
    settings: Settings, *, requests: Callable[[str, int], int] = lambda mode, length: 1,
    passes: Callable[[str], int] | None = None, measured: Mapping[int, float] | None = None,
    curves: Sequence[Curve] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return one tables.PLAN row per (mode, length) of `points`, hours over all passes.

    `requests` gives the measured requests per point and pass (reuse: queries), `passes` those of a mode (by default
    settings.passes), `measured` the mean TTFT in seconds of the lengths that this campaign has measured already.
    ConfigError where the model cannot be split so.
    """
    check_parallelism(geometry, parallelism)
    known = reference_curves() if curves is None else curves
    curve = nearest_curve(hardware, known) if hardware is not None else None
    planner = Planner(geometry, hardware, parallelism, settings, measured or {}, curve)
    rungs = Counter(mode for mode, _ in points)
    passes_of = {mode: passes(mode) if passes else settings.passes for mode in rungs}

    def starts(mode: str) -> float:
        # Each mode has servers of its own.
        return {"point": 1.0, "pass": 1 / rungs[mode]}.get(settings.scope, 1 / (rungs[mode] * passes_of[mode]))

    return [planner.row(mode, n, requests(mode, n), starts(mode), passes_of[mode]) for mode, n in points]


def plan_point(
    geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings, length: int,
    mode: str = "prefill", requests: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Return the tables.PLAN row of one length."""
    points = [(mode, length)]
    return plan_campaign(geometry, hardware, parallelism, points, settings, requests=lambda *_: requests)[0]


def campaign_hours(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the sum over the rows that run, None if one of them has no estimate."""
    hours = [row["est_hours"] for row in rows if row["reason"] is None]
    return None if any(h is None for h in hours) else float(sum(hours))


def splits(geometry: Geometry, gpus: int, node_gpus: int | None = None) -> Iterator[Parallelism]:
    """Yield every TP x PP split of `gpus` GPUs with every DCP that vLLM allows for this model, TP first.

    TP stays within `node_gpus` where given, since it needs the links inside a node.
    """
    for tensor in range(min(gpus, node_gpus or gpus), 0, -1):
        if gpus % tensor:
            continue
        for context in (d for d in range(1, tensor + 1) if tensor % d == 0):
            split = Parallelism(tensor=tensor, pipeline=gpus // tensor, decode_context=context)
            try:
                check_parallelism(geometry, split)
            except ConfigError:
                continue
            yield split


def _fits(geometry: Geometry, hardware: Hardware, split: Parallelism, settings: Settings, length: int) -> bool:
    capacity = sequence_capacity(geometry, hardware, split, settings)
    return capacity is None or capacity >= needed_tokens(length, settings)


def ways_to_fit(
    geometry: Geometry, hardware: Hardware, parallelism: Parallelism, settings: Settings, length: int
) -> Iterator[str]:
    """Yield what would make `length` fit, the smallest change first: precision, parallelism, both, more GPUs."""
    options = [("", settings)]
    if geometry.kv_dtype_bytes(settings.kv_dtype) > 1:
        smaller = replace(settings, kv_dtype="fp8")
        if _fits(geometry, hardware, parallelism, smaller, length):
            yield "kv_cache_dtype fp8"
        else:
            options.append((" with kv_cache_dtype fp8", smaller))
    for label, chosen in options:
        for gpus in [n for n in (hardware.count, *(hardware.count * 2**i for i in range(1, 7))) if n <= 64]:
            wider = replace(hardware, count=gpus)
            found = [s for s in splits(geometry, gpus, 8) if _fits(geometry, wider, s, chosen, length)]
            if found:
                more = "" if gpus == hardware.count else f" on {gpus} GPUs"
                yield f"{found[0].label}{more}{label}"
                break


def hold_table(
    geometry: Geometry, hardware: Hardware, settings: Settings, kv_dtypes: Sequence[str] = ("bfloat16", "fp8")
) -> list[dict[str, Any]]:
    """Return how long a context the node holds for each split of all its GPUs and each precision.

    Keys: parallelism (label), kv_dtype, weight_bytes_per_rank, kv_bytes (left per rank, may be negative),
    max_context (tokens, None: not limited by memory), decode_bound_tok_s and ttft_bound_s at that context.
    """
    return [
        _hold_row(geometry, hardware, split, replace(settings, kv_dtype=kv_dtype))
        for split in splits(geometry, hardware.count)
        for kv_dtype in kv_dtypes
    ]


def _hold_row(geometry: Geometry, hardware: Hardware, split: Parallelism, settings: Settings) -> dict[str, Any]:
    memory = memory_of(geometry, hardware, split, settings)
    longest = max_context(geometry, hardware, split, settings)
    return {
        "parallelism": split.label,
        "kv_dtype": settings.kv_dtype,
        "weight_bytes_per_rank": memory and memory.weights,
        "kv_bytes": memory and memory.kv,
        "max_context": longest,
        **(_limits(geometry, hardware, split, settings, longest) if longest else {}),
    }


def _limits(
    geometry: Geometry, hardware: Hardware, split: Parallelism, settings: Settings, length: int
) -> dict[str, float]:
    return {
        "decode_bound_tok_s": decode_bound_tok_s(geometry, hardware, split, length, settings.kv_dtype),
        "ttft_bound_s": ttft_bound_s(geometry, hardware, split, length, settings.kv_dtype),
    }


def nodes_table(
    geometry: Geometry, node: Hardware, settings: Settings, length: int, max_nodes: int = 16
) -> list[dict[str, Any]]:
    """Return, computed and not run, how `length` tokens could be held over nodes of `node.count` GPUs.

    Rows for the fewest nodes on which a split fits, and for twice as many; TP and DCP may span nodes. Keys: nodes,
    parallelism, kv_dtype, kv_bytes_per_rank, max_context, decode_bound_tok_s, ttft_bound_s (both at `length`).
    """
    found: list[dict[str, Any]] = []
    for nodes in (2**i for i in range(max_nodes.bit_length())):
        if found and nodes > 2 * found[0]["nodes"]:
            break
        gpus = replace(node, count=node.count * nodes)
        for split in splits(geometry, gpus.count):
            longest = max_context(geometry, gpus, split, settings)
            if longest is None or longest >= length:
                held = kv_bytes_per_rank(geometry, split, length, settings.kv_dtype)
                found.append({
                    "nodes": nodes, "parallelism": split.label, "kv_dtype": settings.kv_dtype,
                    "kv_bytes_per_rank": held, "max_context": longest,
                    **_limits(geometry, gpus, split, settings, length),
                })  # fmt: skip
    return found


def length_name(tokens: int | None) -> str:
    """Return a length rounded down for reading: '64Ki' where exact, else '9.3Mi'; 'no limit' for None."""
    if tokens is None:
        return "no limit"
    exact = format_length(tokens)
    if tokens < 1024 or exact.endswith(("Mi", "Gi")) or (exact.endswith("Ki") and tokens < 2**20):
        return exact
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if tokens >= size:
            return f"{tokens * 10 // size / 10:.1f}{unit}"
    return str(tokens)
