"""The ways to split a model over GPUs, and what each of them holds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from longctx.errors import ConfigError
from longctx.model.geometry import Geometry
from longctx.plan.bounds import decode_bound_tok_s, ttft_bound_s
from longctx.plan.fit import Settings, max_context, needed_tokens, sequence_capacity, split_memory
from longctx.plan.hardware import Hardware, Parallelism
from longctx.plan.memory import check_parallelism, kv_bytes_per_rank


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
    memory = split_memory(geometry, hardware, split, settings)
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
                found.append(
                    {
                        "nodes": nodes,
                        "parallelism": split.label,
                        "kv_dtype": settings.kv_dtype,
                        "kv_bytes_per_rank": held,
                        "max_context": longest,
                        **_limits(geometry, gpus, split, settings, length),
                    }
                )
    return found
