"""The chunks of real prefills: how long each took, and how far into the prompt it stood."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, pairwise
from statistics import median
from typing import Any

from longctx.errors import DataError
from longctx.plan.forecasting.chunk_curve import ChunkCurve
from longctx.storage.schemas import COLD_ROLES, Role, Status

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]

REAL_ROLES = (*COLD_ROLES, Role.WHOLE.value)
ITERATIONS, PROGRESS = "iterations", "progress"
COMPILED, SLOW = "compiled", "slow"
# A chunk is slow if it took so many times what the chunks around it say of its depth.
SLOW_FACTOR = 1.25
SLOW_DEVIATIONS = 4.0  # and it is so many median deviations of those chunks away: on a noisy machine 1.25 is nothing
NEIGHBOURS = 4  # on each side; near an end more on the other side
# A span between progress samples lasts so many times the gap between two: its seconds are then off by 10 % at most.
LEAST_GAPS = 20
# vLLM times how long its engine waits for an iteration. Where the engine runs ahead of the GPU, it waits for some only,
# so the times are believed if they add up to the prefill, no chunk has a small part of what those around it have, and
# no chunk of several has most of the prefill.
SUM_TOLERANCE = 0.1
LEAST_OF_NEIGHBOURS = 0.2
MOST_OF_ALL, SEVERAL = 0.5, 5
_REQUEST = ("mode", "length", "pass_index", "role", "request_index")


def chunk_rows(rows: Iterable[Row], progress: Iterable[Row], curve: ChunkCurve | None) -> Rows:
    """Return schemas.CHUNKS rows of every sound real prefill that was neither cached nor resumed.

    progress: schemas.PROGRESS rows with `mode`. curve: what samples say of a chunk at the same depth.
    """
    samples: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for sample in progress:
        samples[tuple(sample[name] for name in _REQUEST)].append(sample)
    made: Rows = []
    for row in rows:
        if row["role"] not in REAL_ROLES or row["status"] != Status.OK or not row["prefill_s"] or row["cached_tokens"]:
            continue
        labels = {"campaign": row["campaign"]} | {name: row[name] for name in _REQUEST}
        chunks = _of_iterations(row) or _of_progress(row, samples[tuple(row[name] for name in _REQUEST)])
        _mark_slow(chunks)
        for chunk in chunks:
            sampled_s = None
            with suppress(DataError):
                sampled_s = _sampled_s(curve, chunk) if curve else None
            made.append(labels | chunk | {"sampled_s": sampled_s})
    return made


def _of_iterations(row: Row) -> Rows:
    """Return the chunks that the server logged; none where tokens or times are not those of the prefill."""
    logged = json.loads(row.get("prefill_chunks") or "[]")
    if sum(tokens for tokens, _, _ in logged) != row["prompt_tokens"] or not _are_times(logged, row["prefill_s"]):
        return []
    chunks, depth, elapsed_s = [], 0, 0.0
    for tokens, seconds, compiled in logged:
        elapsed_s += seconds
        times = {"seconds": seconds, "elapsed_s": elapsed_s, "error_s": 0.0}
        mark = COMPILED if compiled else None
        chunks.append({"depth": depth, "tokens": tokens, **times, "source": ITERATIONS, "mark": mark})
        depth += tokens
    return chunks


def _are_times(logged: Sequence[tuple[int, float, bool]], prefill_s: float) -> bool:
    """Return whether logged seconds are those of the chunks, and not how long an engine that ran ahead waited."""
    seconds = [one for _, one, _ in logged]
    if abs(sum(seconds) / prefill_s - 1) > SUM_TOLERANCE:
        return False
    if len(seconds) < SEVERAL:
        return True
    full = seconds[:-1]  # the last one may be short
    around = [[*full[max(0, i - NEIGHBOURS) : i], *full[i + 1 : i + 1 + NEIGHBOURS]] for i in range(len(full))]
    is_even = all(one >= LEAST_OF_NEIGHBOURS * median(near) for one, near in zip(full, around, strict=True))
    return is_even and max(seconds) <= MOST_OF_ALL * sum(seconds)


def _of_progress(row: Row, samples: Sequence[Row]) -> Rows:
    """Return spans between progress samples, each LEAST_GAPS long at least; the ends are the server's prefill time.

    The cache's use grows when a chunk is scheduled: what it shows more than a chunk ago is computed. A sample's clock
    starts when the client sends: overhead and queue come before the prefill.
    """
    chunk, before_s = row["max_num_batched_tokens"], (row["overhead_s"] or 0.0) + (row["queue_s"] or 0.0)
    seen = [(one["elapsed_s"] - before_s, one["tokens_done"]) for one in samples if one["tokens_done"]]
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(seen)]
    if not chunk or not gaps:
        return []
    gap_s = median(gaps)
    points = [(0.0, 0)]
    for elapsed_s, done in seen:
        computed = done - chunk
        if elapsed_s - points[-1][0] >= LEAST_GAPS * gap_s and points[-1][1] < computed < row["prompt_tokens"]:
            points.append((elapsed_s, computed))
    if len(points) > 1 and row["prefill_s"] - points[-1][0] < LEAST_GAPS * gap_s:
        points.pop()
    points.append((row["prefill_s"], row["prompt_tokens"]))
    return [
        {"depth": first, "tokens": last - first, "seconds": end_s - start_s, "elapsed_s": end_s}
        | {"error_s": 2 * gap_s, "source": PROGRESS, "mark": None}
        for (start_s, first), (end_s, last) in pairwise(points)
        if len(points) > 2
    ]


def _mark_slow(chunks: Rows) -> None:
    """Mark chunks that took SLOW_FACTOR times what those around them say, a token; a shorter last one is left."""
    full = max((chunk["tokens"] for chunk in chunks), default=0)
    whole = [chunk for chunk in chunks if chunk["source"] != ITERATIONS or chunk["tokens"] == full]
    rates = [(chunk["depth"] + chunk["tokens"] / 2, chunk["seconds"] / chunk["tokens"]) for chunk in whole]
    for index, chunk in enumerate(whole):
        first = max(0, min(index - NEIGHBOURS, len(whole) - 1 - 2 * NEIGHBOURS))
        around = rates[first:index] + rates[index + 1 : first + 2 * NEIGHBOURS + 1]
        if len(around) >= NEIGHBOURS and not chunk["mark"]:
            chunk["mark"] = SLOW if rates[index][1] > _highest(around, rates[index][0]) else None


def _highest(rates: Sequence[tuple[float, float]], depth: float) -> float:
    """Return the highest rate at `depth` that is not slow, by the rates around it.

    Theil and Sen's line, whose slope is the median one, is not moved by few far points. At an end of the prompt it is
    extrapolated: it gives no less than the smallest rate there is.
    """
    slope = median((later[1] - one[1]) / (later[0] - one[0]) for one, later in combinations(rates, 2))
    here = [rate + slope * (depth - at) for at, rate in rates]
    typical = max(median(here), min(rate for _, rate in rates))
    deviation = median(abs(rate - median(here)) for rate in here)
    return max(SLOW_FACTOR * typical, typical + SLOW_DEVIATIONS * deviation)


def _sampled_s(curve: ChunkCurve, chunk: Row) -> float:
    """Return what the curve says of a chunk, or of the several chunks of a span."""
    pieces = range(chunk["depth"], chunk["depth"] + chunk["tokens"], curve.chunk_tokens)
    end = chunk["depth"] + chunk["tokens"]
    return sum(curve.span_s(first, min(curve.chunk_tokens, end - first)) for first in pieces)
