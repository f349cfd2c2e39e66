"""From what a request showed to what its row may claim: status, reasons, and which values stay null.

Pure functions: everything they use is in the observation, so each rule is tested without a server.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from longctx.measure import reasons
from longctx.measure.client import stream_rates
from longctx.measure.client.request import Answer
from longctx.serve.metrics import Window, server_decode_tok_s
from longctx.storage.schemas import COLD_ROLES

# Shipping and parsing the ids is inside the client's TTFT: 0.9 s at 1Mi and 5.9 s at 8Mi were measured (under 1 µs a
# token), so client TTFT may exceed the server's prefill by this much before the clocks disagree.
SHIPPING_S, SHIPPING_S_PER_TOKEN = 0.25, 2e-6
CLOCK_JUMP_S = 2.0
# One kernel compiled or tuned; 218 of them took 117 s on one H200. Against the spread of 64Mi prefills as published.
JIT_EVENT_S, JIT_SHARE = 30.0, 0.003
# Below this a client's wait for a processor is ordinary scheduling.
STARVED_S = 0.02


@dataclass(frozen=True, slots=True)
class Observation:
    """All that one request showed. `window` has None for what the server's metrics lack; `jit_lines` are of its log.

    checkpoint_tokens: how far attempts that left a checkpoint had come, None where there was none. untold: settings
    that a server which we did not start keeps to itself. broken: settings that differ from what was asked for.
    """

    role: str
    expected_tokens: int
    answer: Answer
    window: Window
    jit_lines: list[str]
    caching: bool | None
    checkpoint_tokens: int | None = None
    clock_tolerance: float = 0.15
    untold: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: 'ok', 'doubtful' or 'failed'; reasons: all of them, the gravest first; detail: one sentence."""

    status: str
    reasons: tuple[str, ...]
    detail: str | None


def reach_verdict(seen: Observation) -> Verdict:
    """Weigh an observation: a failure ends it, a doubt nulls the headline, a mark only says what isn't proven."""
    answer = seen.answer
    if answer.status != "ok":
        return Verdict("failed", (answer.reason or "error_event",), answer.detail)
    found = list(_doubts(seen))
    found.sort(key=lambda pair: pair[0] in reasons.MARKED)
    doubtful = any(reason in reasons.DOUBTFUL for reason, _ in found)
    detail = "; ".join(text for _, text in found) or None
    return Verdict("doubtful" if doubtful else "ok", tuple(reason for reason, _ in found), detail)


def _doubts(seen: Observation) -> Iterator[tuple[str, str]]:
    if seen.jit_lines:
        reason = "compiled" if _compilation_is_negligible(seen) else "jit"
        yield reason, f"compiled inside the measured window: {seen.jit_lines[0].strip()[:200]}"
    if abs(seen.answer.wall_jump_s or 0.0) > CLOCK_JUMP_S:
        yield "clock_jump", f"the wall clock moved {seen.answer.wall_jump_s:+.1f} s against the monotonic clock"
    if missing := _missing(seen):
        yield "no_metrics", missing
    if others := _others(seen):
        yield "other_requests", others
    else:
        yield from _clock_disagreement(seen)
    yield from _cache_doubts(seen)
    yield from _late(seen)
    if seen.broken:
        yield "contract_differs", f"the server runs with another {', '.join(seen.broken)} than was asked for"
    if seen.untold:
        yield "contract_unproven", f"the server does not tell its {', '.join(seen.untold)}"


def _missing(seen: Observation) -> str | None:
    """Say which of the row's values the server's metrics did not give, and why."""
    window = seen.window
    decode = server_decode_s(window) is None and (seen.answer.completion_tokens or 0) > 1
    lost = {
        "prefill is null": window.prefill_s is None and seen.role != "decode_only",
        "decode is the client's slope over token counts": decode,
    }
    if not any(lost.values()):
        return None
    why = window.void or "no server metrics of this kind"
    return f"{why}: {' and '.join(text for text, is_lost in lost.items() if is_lost)}"


def _others(seen: Observation) -> str | None:
    """Say how the server's counters show that it also worked for others."""
    window, made = seen.window, seen.answer.completion_tokens or 0
    if (window.requests or 0) > 1:
        return f"{window.requests} requests finished on the server during this one"
    if (window.generation_tokens or 0) > made:
        return f"the server made {window.generation_tokens} tokens during this request, which got {made}"
    if window.running_besides:
        return f"{window.running_besides} requests ran on the server when this one was sent, or still after its end"
    return None


def cached_tokens(seen: Observation) -> int | None:
    """The request's own count or the growth of the server's counters of hits, whichever shows more."""
    found = [seen.answer.cached_tokens, seen.window.cached_tokens]
    if seen.window.external_hit_tokens:  # a cache outside the engine; the prefix-cache counter leaves it out
        found.append((seen.window.cached_tokens or 0) + seen.window.external_hit_tokens)
    return max((tokens for tokens in found if tokens is not None), default=None)


def _late(seen: Observation) -> Iterator[tuple[str, str]]:
    """What made the client see the first token later than it came, where that is a share of TTFT that counts."""
    if seen.role == "decode_only":
        return
    counts_s = max(STARVED_S, seen.clock_tolerance * (seen.answer.ttft_s or 0.0))
    if (seen.answer.starved_s or 0.0) > counts_s:
        yield (
            "client_starved",
            f"the client waited {seen.answer.starved_s:.3f} s for a processor; TTFT may be late by that",
        )
    first, made = seen.answer.chunks[0], seen.answer.completion_tokens or 1
    tokens = first.tokens or (made if len(seen.answer.chunks) == 1 else 1)
    rate = server_decode_tok_s(seen.window, made) or stream_rates.client_decode_tok_s(seen.answer.chunks)
    if tokens > 1 and (rate is None or (tokens - 1) / rate > counts_s):
        late = "an unknown time" if rate is None else f"{(tokens - 1) / rate:.3f} s"
        yield "first_token_late", f"the first chunk carried {tokens} tokens: TTFT is late by {late}"


def _cache_doubts(seen: Observation) -> Iterator[tuple[str, str]]:
    cached = cached_tokens(seen)
    if seen.role == "reuse":
        if not cached:
            yield "not_cached", f"{cached or 'no'} cached tokens were reported for a query behind a resident prefix"
    elif seen.role in COLD_ROLES:
        if _resumed(seen):
            yield "resumed", f"prefill took {cached} tokens back from a checkpoint"
        elif seen.checkpoint_tokens and not cached:
            yield (
                "no_external_hits",
                f"an earlier attempt had prefilled {seen.checkpoint_tokens} tokens; none came back",
            )
        elif cached:
            yield "cached", f"{cached} of {seen.expected_tokens} tokens came from the cache"
        elif cached is None and seen.caching is not False:
            yield "cold_unproven", "the server does not say whether it caches prefixes or how many tokens it took"


def _resumed(seen: Observation) -> bool:
    return seen.role in COLD_ROLES and seen.checkpoint_tokens is not None and bool(cached_tokens(seen))


def _compilation_is_negligible(seen: Observation) -> bool:
    """Whether compilation is no reason to begin a prefill anew.

    It went on from a checkpoint, so that its time is a bound anyway, or it takes so long that compiling hides in the
    spread between runs.
    """
    hidden = len(seen.jit_lines) * JIT_EVENT_S <= JIT_SHARE * (seen.answer.ttft_s or 0.0)
    return _resumed(seen) or (seen.role in COLD_ROLES and hidden)


def _clock_disagreement(seen: Observation) -> Iterator[tuple[str, str]]:
    """Compare what both clocks can see: TTFT against queue + prefill, and the two decode rates."""
    answer, window = seen.answer, seen.window
    # Reading a checkpoint is neither queue nor prefill to the server.
    comparable = seen.role != "decode_only" and not (seen.checkpoint_tokens is not None and cached_tokens(seen))
    if comparable and answer.ttft_s is not None and window.prefill_s is not None:
        server_s = window.prefill_s + (window.queue_s or 0.0)
        slack = SHIPPING_S + SHIPPING_S_PER_TOKEN * seen.expected_tokens + seen.clock_tolerance * answer.ttft_s
        if not -seen.clock_tolerance * answer.ttft_s - 0.01 <= answer.ttft_s - server_s <= slack:
            yield "clock_disagreement", f"client TTFT {answer.ttft_s:.3f} s, server queue + prefill {server_s:.3f} s"
    decode_s = server_decode_s(window)
    if decode_s and stream_rates.coalesced(answer.chunks) is False and len(answer.chunks) > 1:
        client_s = answer.chunks[-1].elapsed_s - answer.chunks[0].elapsed_s
        if abs(client_s - decode_s) > max(seen.clock_tolerance * decode_s, 0.05):
            yield "clock_disagreement", f"client decode {client_s:.3f} s, server decode {decode_s:.3f} s"


def server_decode_s(window: Window) -> float | None:
    """Seconds between the first and the last token on the server's clock (its sum of inter-token latencies).

    None where it counts none: no time is not a time of 0.
    """
    return window.itl_sum_s or window.decode_s or None


def measured_values(seen: Observation, judged: Verdict) -> dict[str, Any]:
    """Return the row's measured columns; those that the verdict forbids are null.

    ttft_s: client, from sending to the first token. prefill_s, queue_s: server. overhead_s = ttft - prefill - queue.
    decode_tok_s = (completion tokens - 1) / server decode time, or the client's slope where there are no metrics.
    """
    answer, window = seen.answer, seen.window
    if judged.status == "failed":
        return {}
    slope = stream_rates.client_decode_tok_s(answer.chunks)
    source = "client" if server_decode_s(window) is None else "server"
    rate = slope if source == "client" else server_decode_tok_s(window, answer.completion_tokens)
    values: dict[str, Any] = {
        "decode_client_tok_s": slope,
        "decode_tok_s": rate,
        "decode_source": source if rate else None,
        **_itl(answer),
    }
    if seen.jit_lines:
        values = dict.fromkeys(values)  # nobody knows whether the compiling fell into decode
    if seen.role != "decode_only":
        cold = "resumed" not in judged.reasons
        values["queue_s"] = window.queue_s
        # The times of a resumed prefill are not cold ones: they go into the stitched time alone.
        values["ttft_s" if cold else "resumed_ttft_s"] = answer.ttft_s
        values["prefill_s" if cold else "resumed_prefill_s"] = window.prefill_s
        if cold and answer.ttft_s is not None and window.prefill_s is not None:
            values["overhead_s"] = answer.ttft_s - window.prefill_s - (window.queue_s or 0.0)
    return dict.fromkeys(values) if judged.status == "doubtful" else values


def _itl(answer: Answer) -> dict[str, float | None]:
    itl = stream_rates.itl(answer.chunks)
    names = ("p50_s", "p90_s", "p99_s", "max_s")
    return {f"itl_{name}": getattr(itl, name) if itl else None for name in names}
