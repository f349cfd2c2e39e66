"""The schemas.PLAN rows of a plan: whether each length fits, the hardware's limits, how long the campaign takes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

from longctx.campaign.mode import campaign_facet
from longctx.plan.forecasting.forecast import Estimate, forecast, rising
from longctx.plan.forecasting.published_curves import nearest_curve, reference_curves
from longctx.plan.kv_cache.memory import Memory
from longctx.plan.parallel_splits import ways_to_fit
from longctx.plan.system import System
from longctx.units import GIB

# A decode step takes what the bandwidth bound says over this share, plus launches and sampling. Published MI355X and
# the H200 probe: 3.6 to 3.9 ms at 1Ki, 60 ms at 64Mi where the bound is 34 ms.
DECODE_SHARE_OF_BOUND = 0.6
DECODE_STEP_S = 0.004
GPU_START_S, CPU_START_S = 240.0, 60.0  # weights, graphs and warm-up of one server, where nothing was measured
_ESTIMATED = ("est_ttft_s", "est_ttft_low_s", "est_ttft_high_s", "est_source")  # the fields of an Estimate


def _row(
    system: System,
    mode: str,
    length: int,
    estimate: Estimate | None,
    requests: int,
    starts: float,
    passes: int,
    samples_s: float | None,
) -> dict[str, Any]:
    """Return a schemas.PLAN row. `requests` and `starts` are per pass (a shared server starts less than once).

    samples_s: the time of the parts of prompts that all passes compute, None where it is not known.
    """
    facet, memory, has_bounds = campaign_facet(mode), system.memory(), system.hardware is not None
    reason, remedy = None, system.aiter_problem(length)
    if problem := system.start_problem:
        reason, remedy = "unsupported", _remedy(system, length, problem)
    elif memory is not None and not system.holds(length):
        reason, remedy = "does_not_fit", _remedy(system, length, _shortage(system, length, memory))
    elif remedy:
        reason = "unsupported"
    decode_bound_tok_s = system.decode_bound_tok_s(length) if has_bounds else None
    hours = None
    if reason is None and samples_s is not None and (estimate or not facet.measures_ttft):
        prefill_s = facet.prefills(requests) * (estimate.ttft_s if estimate else 0.0)
        pass_s = _pass_s(system, starts, prefill_s, requests if facet.decodes else 0, decode_bound_tok_s)
        hours = (passes * pass_s + samples_s) / 3600
    return {
        "mode": mode,
        "length": length,
        "kv_bytes_per_rank": system.kv_bytes_per_rank(length),
        "state_bytes_per_rank": system.state_bytes_per_rank,
        "weight_bytes_per_rank": system.weight_bytes_per_rank,
        "kv_budget_bytes_per_rank": None if memory is None else max(0, memory.kv),
        "capacity_tokens": system.capacity_tokens(),
        "fits": None if memory is None else reason is None,
        "ttft_bound_s": system.ttft_bound_s(length) if has_bounds and facet.measures_ttft else None,
        "decode_bound_tok_s": decode_bound_tok_s,
        "est_hours": hours,
        "reason": reason,
        "remedy": remedy,
    } | dict(zip(_ESTIMATED, astuple(estimate) if estimate else (None,) * len(_ESTIMATED), strict=True))


def _pass_s(system: System, starts: float, prefill_s: float, requests: int, decode_bound_tok_s: float | None) -> float:
    step_s = DECODE_STEP_S + (1 / decode_bound_tok_s / DECODE_SHARE_OF_BOUND if decode_bound_tok_s else 0.0)
    start_s = CPU_START_S if system.hardware is None else GPU_START_S
    return starts * start_s + prefill_s + requests * system.settings.max_new_tokens * step_s


def _shortage(system: System, length: int, memory: Memory) -> str:
    """Return what leaves no room for `length`: the weights, the workspace of a prefill chunk, or the KV cache."""
    if memory.kv > 0 or memory.weights is None or memory.workspace is None:
        need, left = system.kv_shortage(length)
        return f"needs {need / GIB:.1f} GiB of KV cache per rank, {max(0, left) / GIB:.1f} GiB are left"
    weights = f"the weights ({memory.weights / GIB:.1f} GiB per GPU)"
    if memory.kv + memory.workspace <= 0:
        return f"{weights} leave no room for a KV cache"
    chunk = f"the workspace of a prefill chunk of {system.batched_tokens:,} tokens ({memory.workspace / GIB:.1f} GiB)"
    return f"{weights} and {chunk} leave no room for a KV cache: lower max_num_batched_tokens"


def _remedy(system: System, length: int, problem: str) -> str:
    if system.hardware is None:
        if system.start_problem:
            return f"{problem}; name GPUs as 'hardware', or take a model, split and KV cache type that the CPU serves"
        gib = 1  # the smallest power of two that holds `length`
        while not replace(system, settings=replace(system.settings, cpu_kv_gib=gib)).holds(length):
            gib *= 2
        ways = [f"VLLM_CPU_KVCACHE_SPACE={gib}"]
    else:
        ways = list(ways_to_fit(system, length))
    if system.start_problem is None and (longest := system.max_context()):
        ways.append(f"lengths up to {longest:,} tokens")
    return f"{problem}; would fit: {' or '.join(ways)}" if ways else f"{problem}; nothing within 64 GPUs would fit"


def plan_points(
    system: System,
    points: Sequence[tuple[str, int]],
    *,
    requests: Callable[[str, int], int] = lambda mode, length: 1,
    passes: Callable[[str], int] | None = None,
    measured: Mapping[int, float] | None = None,
    sampled: Mapping[int, Estimate] | None = None,
    samples: Callable[[str, int], Sequence[tuple[int, int]]] = lambda mode, length: (),
) -> list[dict[str, Any]]:
    """Return one schemas.PLAN row per (mode, length) of `points`, hours over all passes.

    `requests` gives the counted requests per point and pass, `passes` those of a mode (by default settings.passes),
    `measured` the mean TTFT in seconds of the lengths that this campaign has measured already, `sampled` the estimates
    from samples of the same recipe. `samples` gives the parts of prompts, from token to token, that all passes compute:
    each costs the difference of two forecasts.
    """
    curve = None if system.hardware is None else nearest_curve(system.hardware, reference_curves())
    bound = None if system.hardware is None else system.ttft_bound_s
    same_setup = curve is not None and system.is_same_setup(curve.system)
    rungs = Counter(mode for mode, _ in points)
    mode_passes = {mode: passes(mode) if passes else system.settings.passes for mode in rungs}
    scope = system.settings.scope
    expect = partial(
        forecast, sampled=sampled, bound=bound, curve=curve, same_setup=same_setup, work=system.attention_work
    )

    def starts(mode: str) -> float:
        # Each mode has servers of its own.
        return {"point": 1.0, "pass": 1 / rungs[mode]}.get(scope, 1 / (rungs[mode] * mode_passes[mode]))

    rows = []
    lengths = {n for mode, n in points if campaign_facet(mode).measures_ttft}
    known = rising({n: one for n in {*lengths, *(measured or ())} if (one := expect(n, measured=measured))})
    for mode, n in points:
        estimate = known.get(n) if campaign_facet(mode).measures_ttft else None
        # A measured time less a sampled one would be the difference of two methods.
        samples_s = _samples_s(samples(mode, n), partial(expect, measured=None if sampled else measured))
        rows.append(_row(system, mode, n, estimate, requests(mode, n), starts(mode), mode_passes[mode], samples_s))
    return rows


def _samples_s(samples: Sequence[tuple[int, int]], expect: Callable[[int], Estimate | None]) -> float | None:
    """Return the seconds of parts of prompts, None where a whole prompt has no forecast."""
    total_s = 0.0
    for ends in samples:
        first, last = (expect(tokens) if tokens else Estimate(0.0, 0.0, 0.0, "") for tokens in ends)
        if first is None or last is None:
            return None
        total_s += max(0.0, last.ttft_s - first.ttft_s)
    return total_s


def campaign_hours(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the sum over the rows that run, None if one of them has no estimate."""
    hours = [row["est_hours"] for row in rows if row["reason"] is None]
    return None if any(hour is None for hour in hours) else float(sum(hours))
