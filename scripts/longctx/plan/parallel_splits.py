"""The ways to split a model over GPUs, and what each of them holds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.plan.hardware import Parallelism
from longctx.plan.system import System
from longctx.plan.vllm_rules import check_split

MAX_GPUS = 64  # of a remedy


def splits(geometry: Geometry, gpus: int, node_gpus: int | None = None) -> Iterator[Parallelism]:
    """Yield every TP x PP x DCP split that the model's sizes allow, TP first; TP stays inside a node (`node_gpus`)."""
    for tensor in (d for d in range(min(gpus, node_gpus or gpus), 0, -1) if gpus % d == 0):
        for context in (d for d in range(1, tensor + 1) if tensor % d == 0):
            split = Parallelism(tensor=tensor, pipeline=gpus // tensor, decode_context=context)
            try:
                check_split(geometry, split)
            except ConfigError:
                continue
            yield split


def _on_gpus(system: System, gpus: int, node_gpus: int | None = None) -> Iterator[System]:
    node = replace(system.gpus, count=gpus)
    for split in splits(system.geometry, gpus, node_gpus):
        yield replace(system, hardware=node, parallelism=split)


def ways_to_fit(system: System, length: int) -> Iterator[str]:
    """Yield the changes that make `length` fit, the smallest first: precision, parallelism, both, more GPUs.

    Only splits that vLLM starts.
    """
    candidates = [("", system)]
    if system.kv_format.key_bits > 8:
        fp8 = system.with_kv_dtype("fp8")
        if fp8.start_problem is None and fp8.holds(length):
            yield "kv_cache_dtype fp8"
        else:
            candidates.append((" with kv_cache_dtype fp8", fp8))
    count = system.gpus.count
    for suffix, candidate in candidates:
        for gpus in (count * 2**i for i in range(7) if count * 2**i <= MAX_GPUS):
            starting = (wider for wider in _on_gpus(candidate, gpus, 8) if wider.start_problem is None)
            fitting = next((wider for wider in starting if wider.holds(length)), None)
            if fitting is not None:
                yield f"{fitting.parallelism.label}{'' if gpus == count else f' on {gpus} GPUs'}{suffix}"
                break


def hold_table(system: System, kv_dtypes: Sequence[str] = ("bfloat16", "fp8")) -> list[dict[str, Any]]:
    """Return how long a context the node holds for each split of all its GPUs and each precision.

    Keys: parallelism (label), kv_dtype, weight_bytes_per_rank, kv_bytes (left per rank, may be negative), max_context
    (tokens, None: not limited by memory), decode_bound_tok_s and ttft_bound_s at that context, problem (why vLLM does
    not start it, None where it does).
    """
    rows = []
    for split in _on_gpus(system, system.gpus.count):
        for candidate in map(split.with_kv_dtype, kv_dtypes):
            memory, longest = candidate.memory(), candidate.max_context()
            sizes = {"weight_bytes_per_rank": memory and memory.weights, "kv_bytes": memory and memory.kv}
            bounds = _bounds(candidate, longest) if longest else {}
            rows.append(_labels(candidate) | sizes | {"max_context": longest} | bounds)
    return rows


def nodes_table(system: System, length: int, max_nodes: int = 16) -> list[dict[str, Any]]:
    """Return, computed and not run, how `length` tokens could be held over several of the system's nodes.

    Rows for the fewest nodes on which a split fits that vLLM starts, and for twice as many; TP and DCP may span nodes.
    Before them, for the fewest nodes alone, the splits that fit and that vLLM does not start. Keys: nodes, parallelism,
    kv_dtype, kv_bytes_per_rank, max_context, decode_bound_tok_s, ttft_bound_s (both at `length`), problem (as in
    `hold_table`).
    """
    starting: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for nodes in (2**i for i in range(max_nodes.bit_length())):
        if starting and nodes > 2 * starting[0]["nodes"]:
            break
        for candidate in _on_gpus(system, system.gpus.count * nodes):
            longest = candidate.max_context()
            if longest is not None and longest < length:
                continue
            kv_bytes = candidate.kv_bytes_per_rank(length)
            row = {"nodes": nodes, "kv_bytes_per_rank": kv_bytes, "max_context": longest} | _labels(candidate)
            rows = refused if row["problem"] else starting
            if rows is starting or not rows or rows[0]["nodes"] == nodes:
                rows.append(row | _bounds(candidate, length))
    return refused + starting


def _labels(system: System) -> dict[str, Any]:
    kv_dtype = system.settings.kv_dtype
    return {"parallelism": system.parallelism.label, "kv_dtype": kv_dtype, "problem": system.start_problem}


def _bounds(system: System, length: int) -> dict[str, float]:
    return {"decode_bound_tok_s": system.decode_bound_tok_s(length), "ttft_bound_s": system.ttft_bound_s(length)}
