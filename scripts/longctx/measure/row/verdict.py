"""The verdict on one request, a pure function of its observation: status, reasons, and the values its row may have."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from longctx.measure.checkpoints import Attempt, stitch
from longctx.measure.client import ttft_itl
from longctx.measure.client.request import Answer
from longctx.measure.row import reasons
from longctx.redaction import redact
from longctx.serve.metrics import Window, server_decode_tok_s
from longctx.storage.schemas import Status

# Shipping and parsing the ids is inside the client's TTFT: 0.9 s at 1Mi and 5.9 s at 8Mi were measured (under 1 µs a
# token), so client TTFT may exceed the server's prefill by this much before the clocks disagree.
SHIPPING_S, SHIPPING_S_PER_TOKEN = 0.25, 2e-6
CLOCK_JUMP_S = 2.0
# An upper limit for one kernel compiled or tuned (218 took 117 s on one H200); the published spread of 64Mi prefills.
JIT_EVENT_S, JIT_SHARE = 30.0, 0.003
# Below this a client's wait for a processor is ordinary scheduling.
STARVED_S = 0.02


class CacheExpectation(Enum):
    """What the server's KV cache must hold when a request comes."""

    COLD = auto()  # nothing of the prompt
    RESIDENT = auto()  # the beginning of the prompt
    FILLED = auto()  # made-up values for the whole prompt: there is no prefill, and no TTFT
    CLAIMED = auto()  # nothing, but exactly so many tokens are claimed as asked: a sample of the rest, and no TTFT
    ANY = auto()  # not judged: the request only prepares the server


@dataclass(frozen=True, slots=True)
class Observation:
    """All that was asked of one request, and all that it showed.

    prompt_tokens, new_tokens: as sent and as asked. claimed_tokens: that the server was asked to skip, None where it
    was asked nothing. window: growth of the server's counters, None for each that it lacks. jit_lines: log lines of
    kernels compiled meanwhile. caching: whether the server keeps prefixes, None where unknown. steady: whether the
    warm-up ended in equal times. earlier: attempts that may have left a checkpoint. violated: settings that differ from
    those asked for. unverified: settings that an external server does not show. iterations: of the prefill, as the
    server logged them. machine: columns of the row about the energy and the clocks of the server's GPUs.
    """

    cache: CacheExpectation
    prompt_tokens: int
    new_tokens: int
    answer: Answer
    window: Window
    jit_lines: list[str]
    caching: bool | None
    claimed_tokens: int | None = None
    steady: bool = True
    earlier: tuple[Attempt, ...] = ()
    clock_tolerance: float = 0.15
    violated: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    iterations: tuple[tuple[int, float, bool], ...] = ()
    log_lines: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def checkpoint_tokens(self) -> int | None:
        """How far attempts that left a checkpoint had come; None where there was none."""
        return max((attempt.reached for attempt in self.earlier), default=None)

    @property
    def cached_tokens(self) -> int | None:
        """The request's own count or the growth of the server's counters of hits, whichever shows more."""
        counts = [self.answer.cached_tokens, self.window.cached_tokens]
        if self.window.external_hit_tokens:  # a cache outside the engine; the prefix-cache counter leaves it out
            counts.append((self.window.cached_tokens or 0) + self.window.external_hit_tokens)
        return max((count for count in counts if count is not None), default=None)

    @property
    def read_checkpoint(self) -> bool:
        """Whether the server took tokens back that an earlier attempt may have left."""
        return self.checkpoint_tokens is not None and bool(self.cached_tokens)

    @property
    def resumed(self) -> bool:
        """Whether the prefill of a cold prompt went on from a checkpoint."""
        return self.cache is CacheExpectation.COLD and self.read_checkpoint

    @property
    def has_ttft(self) -> bool:
        """Whether its first token came after a prefill of the whole prompt, or of what no resident prefix held."""
        return self.cache not in (CacheExpectation.FILLED, CacheExpectation.CLAIMED)

    @property
    def server_decode_s(self) -> float | None:
        """Seconds from the first to the last token on the server's clock, None (not 0) where it counts none."""
        return self.window.itl_sum_s or self.window.decode_s or None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The status of a row, its reasons (the gravest first), and a sentence about them."""

    status: Status
    reasons: tuple[str, ...] = ()
    detail: str | None = None


def reach_verdict(observation: Observation) -> Verdict:
    """Weigh an observation: a failure ends it, a doubt nulls the headline, a mark only says what isn't proven."""
    if failure := find_failure(observation.answer, observation.prompt_tokens, observation.new_tokens):
        return Verdict(Status.FAILED, failure[:1], failure[1])
    doubts = sorted(_doubts(observation), key=lambda doubt: doubt[0] in reasons.MARKED)
    codes = tuple(reason for reason, _ in doubts)
    detail = "; ".join(text for _, text in doubts) or None
    if any(reason in reasons.DOUBTFUL for reason in codes):
        return Verdict(Status.DOUBTFUL, codes, detail)
    if not observation.steady and observation.cache is not CacheExpectation.ANY:
        codes += ("not_steady",)
    return Verdict(Status.OK, codes, detail)


def find_failure(answer: Answer, prompt_tokens: int, new_tokens: int) -> tuple[str, str | None] | None:
    """Return why an answer is not the measurement asked for, as (reason, sentence); None where it is."""
    made, chunks = answer.completion_tokens, answer.chunks
    if answer.status != Status.OK:
        return answer.reason or "error_event", answer.detail
    if answer.prompt_tokens is None or made is None:
        return "no_usage", "the stream ended without prompt and completion token counts"
    if answer.prompt_tokens != prompt_tokens:
        return "length_mismatch", f"the server counted {answer.prompt_tokens} prompt tokens, sent: {prompt_tokens}"
    if answer.text_events > made:
        return "count_mismatch", f"{answer.text_events} events with text came, the usage says {made} new tokens"
    if made < new_tokens:
        return "short_output", redact(f"{made} of {new_tokens} tokens; finish_reason {answer.finish_reason}")
    if made > new_tokens:
        return "count_mismatch", f"the server counted {made} new tokens, asked: {new_tokens}"
    if not chunks:
        return "truncated_stream", f"the server counted {made} new tokens but sent none"
    if chunks[-1].total not in (None, made):
        return "count_mismatch", f"the events carried {chunks[-1].total} new tokens, the usage says {made}"
    return None


def _doubts(observation: Observation) -> Iterator[tuple[str, str]]:
    if observation.jit_lines:
        # A resumed prefill's time is a bound anyway, and in a long one compiling hides in the spread between runs.
        hidden = len(observation.jit_lines) * JIT_EVENT_S <= JIT_SHARE * (observation.answer.ttft_s or 0.0)
        counts = observation.resumed or (observation.cache is CacheExpectation.COLD and hidden)
        yield (
            "compiled" if counts else "jit",
            f"compiled inside the measured window: {observation.jit_lines[0].strip()[:200]}",
        )
    if abs(jump_s := observation.answer.wall_jump_s or 0.0) > CLOCK_JUMP_S:
        yield "clock_jump", f"the wall clock moved {jump_s:+.1f} s against the monotonic clock"
    yield from _missing_metrics(observation)
    if others := _other_requests(observation):
        yield "other_requests", others
    else:
        yield from _clock_disagreement(observation)
    yield from _cache_doubts(observation)
    yield from _late_first_token(observation)
    if observation.violated:
        yield "contract_differs", f"the server runs with another {', '.join(observation.violated)} than was asked for"
    if observation.unverified:
        yield "contract_unproven", f"the server does not tell its {', '.join(observation.unverified)}"


def _missing_metrics(observation: Observation) -> Iterator[tuple[str, str]]:
    lost = []
    if observation.cache is CacheExpectation.CLAIMED:
        if not observation.window.prefill_s:
            yield "sample_untimed", f"{observation.window.void or 'no metric of the prefill'}: the sample has no time"
        return
    if observation.window.prefill_s is None and observation.cache is not CacheExpectation.FILLED:
        lost.append("prefill is null")
    if observation.server_decode_s is None and (observation.answer.completion_tokens or 0) > 1:
        slope = ttft_itl.client_decode_tok_s(observation.answer.chunks)
        lost.append("decode is the client's slope over token counts" if slope else "decode is null")
    if lost:
        yield "no_metrics", f"{observation.window.void or 'no server metrics of this kind'}: {' and '.join(lost)}"


def _other_requests(observation: Observation) -> str | None:
    window, made = observation.window, observation.answer.completion_tokens or 0
    if (window.requests or 0) > 1:
        return f"{window.requests} requests finished on the server during this one"
    if (window.generation_tokens or 0) > made:
        return f"the server made {window.generation_tokens} tokens during this request, which got {made}"
    if window.running_besides:
        return f"{window.running_besides} requests ran on the server when this one was sent, or still after its end"
    return None


def _late_first_token(observation: Observation) -> Iterator[tuple[str, str]]:
    if not observation.has_ttft:
        return
    answer = observation.answer
    limit_s = max(STARVED_S, observation.clock_tolerance * (answer.ttft_s or 0.0))
    if (starved_s := answer.starved_s or 0.0) > limit_s:
        yield "client_starved", f"the client waited {starved_s:.3f} s for a processor; TTFT may be late by that"
    if answer.ttft_s is None:
        unseen = "no event has text and none has a count of tokens: any of them may be the first token"
        yield "first_token_unseen", unseen
        return
    made = answer.completion_tokens or 1
    tokens, up_to = ttft_itl.most_at_first(answer.chunks, made), ""
    rate = server_decode_tok_s(observation.window, made) or ttft_itl.least_decode_tok_s(answer.chunks)
    if answer.chunks[0].tokens is None and tokens < made:
        up_to = "up to "
    if tokens > 1 and (rate is None or (tokens - 1) / rate > limit_s):
        late = "an unknown time" if rate is None else f"{up_to}{(tokens - 1) / rate:.3f} s"
        yield "first_token_late", f"the first chunk carried {up_to}{tokens} tokens: TTFT is late by {late}"


def _cache_doubts(observation: Observation) -> Iterator[tuple[str, str]]:
    cached, reached = observation.cached_tokens, observation.checkpoint_tokens
    if observation.cache is CacheExpectation.RESIDENT and not cached:
        yield "not_cached", f"{cached or 'no'} cached tokens were reported for a query behind a resident prefix"
    if observation.cache is CacheExpectation.CLAIMED and (cached or 0) != observation.claimed_tokens:
        told = "no" if cached is None else cached
        yield "not_claimed", f"{told} tokens were skipped, asked: {observation.claimed_tokens}"
    if observation.cache is not CacheExpectation.COLD:
        return
    if observation.resumed:
        yield "resumed", f"prefill took {cached} tokens back from a checkpoint"
    elif reached and not cached:
        yield "no_external_hits", f"an earlier attempt had prefilled {reached} tokens; none came back"
    elif cached:
        yield "cached", f"{cached} of {observation.prompt_tokens} tokens came from the cache"
    elif cached is None and observation.caching is not False:
        yield "cold_unproven", "the server does not say whether it caches prefixes or how many tokens it took"


def _clock_disagreement(observation: Observation) -> Iterator[tuple[str, str]]:
    """Compare what both clocks can see: TTFT against queue + prefill, and the two decode rates."""
    answer, window, tolerance = observation.answer, observation.window, observation.clock_tolerance
    # Reading a checkpoint is neither queue nor prefill to the server.
    comparable = observation.cache is not CacheExpectation.FILLED and not observation.read_checkpoint
    if comparable and answer.ttft_s is not None and window.prefill_s is not None:
        server_s = window.prefill_s + (window.queue_s or 0.0)
        slack_s = SHIPPING_S + SHIPPING_S_PER_TOKEN * observation.prompt_tokens + tolerance * answer.ttft_s
        if not -tolerance * answer.ttft_s - 0.01 <= answer.ttft_s - server_s <= slack_s:
            yield "clock_disagreement", f"client TTFT {answer.ttft_s:.3f} s, server queue + prefill {server_s:.3f} s"
    decode_s = observation.server_decode_s
    if decode_s and ttft_itl.coalesced(answer.chunks) is False and len(answer.chunks) > 1:
        client_s = answer.chunks[-1].elapsed_s - answer.chunks[0].elapsed_s
        if abs(client_s - decode_s) > max(tolerance * decode_s, 0.05):
            yield "clock_disagreement", f"client decode {client_s:.3f} s, server decode {decode_s:.3f} s"


def measured_values(observation: Observation, verdict: Verdict) -> dict[str, Any]:
    """Return the row's measured columns; those that the verdict forbids are null.

    ttft_s: client, from sending to the first token. prefill_s, queue_s: server. overhead_s = ttft - prefill - queue.
    decode_tok_s = (completion tokens - 1) / server decode time, or the client's slope where there are no metrics.
    A sample has sample_prefill_s in place of TTFT, prefill and decode: it is no measurement of its prompt.
    """
    if verdict.status == Status.FAILED:
        return {}
    values = {} if observation.cache is CacheExpectation.CLAIMED else _decode_values(observation)
    if observation.jit_lines:
        values = dict.fromkeys(values)  # nobody knows whether the compiling fell into decode
    if observation.cache is not CacheExpectation.FILLED:
        values |= _prefill_values(observation)
    if verdict.status == Status.DOUBTFUL:
        values = dict.fromkeys(values)
    if "resumed" in verdict.reasons:
        compiling_s = len(observation.jit_lines) * JIT_EVENT_S
        values |= stitch(observation.earlier, observation.cached_tokens or 0, values["resumed_prefill_s"], compiling_s)
    return values


def _decode_values(observation: Observation) -> dict[str, Any]:
    answer = observation.answer
    slope = ttft_itl.client_decode_tok_s(answer.chunks)
    source = "client" if observation.server_decode_s is None else "server"
    rate = slope if source == "client" else server_decode_tok_s(observation.window, answer.completion_tokens)
    rates = {"decode_client_tok_s": slope, "decode_tok_s": rate, "decode_source": source if rate else None}
    return rates | ttft_itl.itl_quantiles(answer.chunks)


def _prefill_values(observation: Observation) -> dict[str, Any]:
    """The times of a resumed prefill are not cold ones: they go into the stitched time alone."""
    ttft_s, prefill_s, queue_s = observation.answer.ttft_s, observation.window.prefill_s, observation.window.queue_s
    if observation.resumed:
        return {"queue_s": queue_s, "resumed_ttft_s": ttft_s, "resumed_prefill_s": prefill_s}
    values = {"queue_s": queue_s, "ttft_s": ttft_s, "prefill_s": prefill_s}
    if observation.cache is CacheExpectation.CLAIMED:
        values = {"queue_s": queue_s, "sample_prefill_s": prefill_s}
    if ttft_s is not None and prefill_s is not None:
        values["overhead_s"] = ttft_s - prefill_s - (queue_s or 0.0)
    return values
