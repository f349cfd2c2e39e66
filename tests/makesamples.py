"""Rows of mode sampled made from a known truth: what its samples would take, and real prefills with their chunks.

Truth: 16,384 tokens behind d tokens take COST0 + COST1 d seconds, a request FIXED more, its ids OVERHEAD a token.
"""

import json
from typing import Any

import makerows
from longctx.lengths import ladder
from longctx.modes.sampled.campaign import sample_tokens

CHUNK = 16384
COST0, COST1, FIXED, OVERHEAD = 0.2876, 3.05e-6, 0.02, 9e-7
Rows = list[dict[str, Any]]


def chunk_s(depth: int, tokens: int = CHUNK) -> float:
    """Return the seconds of a chunk; a part of one costs its share of a full one as deep on average."""
    return tokens / CHUNK * (COST0 + COST1 * (depth + (tokens - CHUNK) / 2))


def chunks_s(first: int, end: int) -> list[float]:
    return [chunk_s(depth, min(CHUNK, end - depth)) for depth in range(first, end, CHUNK)]


def prefill_s(length: int) -> float:
    return FIXED + sum(chunks_s(0, length))


def _row(role: str, length: int, pass_index: int, **changes: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("ttft_s", "prefill_s", "decode_tok_s", "decode_client_tok_s", "decode_source", "queue_s"))
    made = makerows.row("prefill", length, pass_index) | nothing
    made |= {"mode": "sampled", "recipe_hash": "5f0c1d2e3a4bsamp", "role": role, "overhead_s": OVERHEAD * length}
    return made | {"energy_decode_j": None, "sm_clock_mhz": 1980.0} | changes


def sample(role: str, length: int, pass_index: int = 1, scale: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Return a sample, sample_short or sample_long, as the mode asks for it; `scale` times its seconds."""
    computed = sample_tokens(role, length, CHUNK, stages=1)
    seconds = scale * (FIXED + sum(chunks_s(length - computed, length)))
    values = {"claimed_tokens": length - computed, "sample_prefill_s": seconds, "filled_kv": computed < length}
    return _row(role, length, pass_index, **values, e2e_s=seconds + OVERHEAD * length, **changes)


def real(
    length: int, pass_index: int = 1, scale: float = 1.0, *, role: str = "whole", **changes: Any
) -> dict[str, Any]:
    """Return a real prefill, of the samples' own server or (role cold) of mode prefill, with its logged chunks."""
    logged = [[min(CHUNK, length - i * CHUNK), scale * s, False] for i, s in enumerate(chunks_s(0, length))]
    seconds = scale * prefill_s(length)
    values = {"prefill_s": seconds, "ttft_s": seconds + OVERHEAD * length, "e2e_s": seconds + OVERHEAD * length}
    values |= {"queue_s": 0.0, "prefill_chunks": json.dumps(logged), "cached_tokens": 0}
    made = _row(role, length, pass_index, **values)
    return made | ({"mode": "prefill", "recipe_hash": "5f0c1d2e3a4bpref"} if role == "cold" else {}) | changes


def campaign(top: str = "8Mi", passes: int = 2, whole: tuple[str, ...] = ()) -> Rows:
    """Return a ladder of samples; the second pass is 0.4 % slower."""
    rows = []
    for pass_index in range(1, passes + 1):
        for length in ladder("1Ki", top):
            scale = 1 + 0.004 * (pass_index - 1)
            rows += [sample(role, length, pass_index, scale) for role in ("sample_short", "sample_long")]
    return rows + [real(ladder(name, name)[0]) for name in whole]
