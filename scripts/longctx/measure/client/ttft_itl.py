"""TTFT, ITL and decode rate as the client sees them: pure functions of chunks' arrival times and token counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longctx.serve.metrics import rate


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that arrived in one read of the socket, `elapsed_s` after the first byte was sent.

    tokens: the new ones, total: those so far (both None where the server does not say which chunk carries how many).
    """

    elapsed_s: float
    tokens: int | None
    total: int | None


def client_ttft_s(chunks: Sequence[Chunk], text_events: int) -> float | None:
    """Return the time to first token in s: arrival of the first chunk, from just before the first byte was sent.

    text_events: the events that showed a token. None where there is no such event and no count of tokens: the first
    chunk may be a greeting that the server sent before the prefill.
    """
    return chunks[0].elapsed_s if chunks and (text_events or chunks[0].tokens) else None


def most_at_first(chunks: Sequence[Chunk], made: int) -> int:
    """Return how many of `made` tokens may have come with the first chunk: of unknown counts, all that later ones,
    with one token each, leave.
    """
    first = chunks[0]
    return first.tokens or made - sum(chunk.elapsed_s > first.elapsed_s for chunk in chunks)


def least_decode_tok_s(chunks: Sequence[Chunk]) -> float | None:
    """Return the lowest decode rate that the arrivals allow, in tokens/s: one token in each later chunk."""
    later = sum(chunk.elapsed_s > chunks[0].elapsed_s for chunk in chunks)
    return client_decode_tok_s(chunks) or rate(later, chunks[-1].elapsed_s - chunks[0].elapsed_s)


def client_decode_tok_s(chunks: Sequence[Chunk]) -> float | None:
    """Return tokens/s = (tokens after the first chunk, whose own took the prefill) / (t_last - t_first).

    None with fewer than two chunks, unknown token counts, or no time between first and last.
    """
    later = [chunk.tokens for chunk in chunks[1:]]
    if not later or any(tokens is None for tokens in later):
        return None
    return rate(sum(tokens for tokens in later if tokens is not None), chunks[-1].elapsed_s - chunks[0].elapsed_s)


def coalesced(chunks: Sequence[Chunk]) -> bool | None:
    """Return whether some chunk carried more than one token; None where token counts are unknown."""
    tokens = [chunk.tokens for chunk in chunks]
    return None if None in tokens else any(count != 1 for count in tokens)


def itl_quantiles(chunks: Sequence[Chunk]) -> dict[str, float | None]:
    """Return the columns of inter-token latencies in s, linear quantiles; None unless each token had its own chunk."""
    names = ("itl_p50_s", "itl_p90_s", "itl_p99_s", "itl_max_s")
    if len(chunks) < 2 or coalesced(chunks) is not False:
        return dict.fromkeys(names)
    gaps_s = np.diff([chunk.elapsed_s for chunk in chunks])
    return dict(zip(names, np.percentile(gaps_s, [50, 90, 99, 100]).tolist(), strict=True))
