"""Before anything runs: does each length fit, what is the hardware's limit, how long will the campaign take.

Pure arithmetic over `geometry`, `hardware`, `capacity`, `bounds` and `forecast`. Rows are of `tables.PLAN`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from longctx.model.geometry import Geometry
from longctx.plan.bounds import decode_bound_tok_s, ttft_bound_s
from longctx.plan.fit import Settings, aiter_problem, needed_tokens, sequence_capacity, split_memory
from longctx.plan.forecast import Estimate, ReferenceCurve, forecast, nearest_curve, reference_curves
from longctx.plan.hardware import Hardware, Parallelism
from longctx.plan.memory import (
    Memory,
    check_parallelism,
    kv_bytes_per_rank,
    state_bytes_per_rank,
    weight_bytes_per_rank,
)
from longctx.plan.splits import ways_to_fit
from longctx.units import GIB

# A decode step takes what the bandwidth bound says over this share, plus launches and sampling. Published MI355X and
# the H200 probe: 3.6 to 3.9 ms at 1Ki, 60 ms at 64Mi where the bound is 34 ms.
DECODE_SHARE_OF_BOUND = 0.6
DECODE_STEP_S = 0.004
GPU_START_S, CPU_START_S = 240.0, 60.0  # weights, graphs and warm-up of one server, where nothing was measured


@dataclass(frozen=True, slots=True)
class Planner:
    """One model on one node with one recipe; `curves` back the forecasts where nothing is measured yet."""

    geometry: Geometry
    hardware: Hardware | None
    parallelism: Parallelism
    settings: Settings
    measured: Mapping[int, float]
    curve: ReferenceCurve | None

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
        memory = split_memory(self.geometry, self.hardware, self.parallelism, self.settings)
        capacity = sequence_capacity(self.geometry, self.hardware, self.parallelism, self.settings)
        reason, remedy = self._verdict(length, memory, capacity)
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
            "remedy": remedy,
        }

    def _verdict(self, length: int, memory: Memory | None, capacity: int | None) -> tuple[str | None, str | None]:
        if memory is not None and capacity is not None and needed_tokens(length, self.settings) > capacity:
            return "does_not_fit", self._remedy(length, memory, capacity)
        if problem := aiter_problem(self.hardware, length, self.settings):
            return "unsupported", problem
        return None, None

    def _remedy(self, length: int, memory: Memory, capacity: int) -> str:
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


def plan_points(
    geometry: Geometry,
    hardware: Hardware | None,
    parallelism: Parallelism,
    points: Sequence[tuple[str, int]],
    settings: Settings,
    *,
    requests: Callable[[str, int], int] = lambda mode, length: 1,
    passes: Callable[[str], int] | None = None,
    measured: Mapping[int, float] | None = None,
    curves: Sequence[ReferenceCurve] | None = None,
) -> list[dict[str, Any]]:
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
    geometry: Geometry,
    hardware: Hardware | None,
    parallelism: Parallelism,
    settings: Settings,
    length: int,
    mode: str = "prefill",
    requests: int = 1,
) -> dict[str, Any]:
    """Return the tables.PLAN row of one length."""
    points = [(mode, length)]
    return plan_points(geometry, hardware, parallelism, points, settings, requests=lambda *_: requests)[0]


def campaign_hours(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the sum over the rows that run, None if one of them has no estimate."""
    hours = [row["est_hours"] for row in rows if row["reason"] is None]
    return None if any(h is None for h in hours) else float(sum(hours))
