"""The plan as text: one table of lengths, one of what the node could hold, and what they rest on."""

from collections.abc import Mapping, Sequence
from typing import Any

from longctx.model.geometry import Geometry
from longctx.plan.fit import Settings, split_memory
from longctx.plan.hardware import Hardware, Parallelism
from longctx.plan.memory import block_tokens
from longctx.plan.planner import campaign_hours
from longctx.units import gib, human_seconds, length_name, parameters, rate, size_name


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines; the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return ["  ".join(_aligned(line, widths)).rstrip() for line in lines]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cells[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells[1:], widths[1:], strict=True))]


def heading(geometry: Geometry, hardware: Hardware | None, parallelism: Parallelism, settings: Settings) -> list[str]:
    """Return what is planned and what memory there is, one fact a line."""
    where = f"{hardware.count} x {hardware.name}, {parallelism.label}" if hardware else "CPU"
    lines = [
        f"{geometry.name} on {where}, KV cache {settings.kv_dtype}",
        f"  parameters {parameters(geometry.parameters_total)}, active {parameters(geometry.parameters_active)};"
        f" weights {size_name(geometry.weight_bytes)}, active {size_name(geometry.active_weight_bytes)}",
        f"  KV cache {geometry.kv_bytes_per_token('bfloat16'):,} B/token in BF16,"
        f" {geometry.kv_bytes_per_token('fp8'):,} in FP8; constant states {geometry.state_bytes() / 2**20:.1f} MiB;"
        f" block {block_tokens(geometry, parallelism, settings.kv_dtype, cpu=hardware is None)} tokens",
    ]
    memory = split_memory(geometry, hardware, parallelism, settings)
    if memory is not None and memory.weights is not None:
        lines.append(
            f"  per GPU: weights {gib(memory.weights)} GiB, workspace {gib(memory.workspace)} GiB (with margin),"
            f" {gib(max(0, memory.kv))} GiB left for KV cache"
        )
    elif memory is not None:
        lines.append(f"  KV cache {gib(memory.kv)} GiB (VLLM_CPU_KVCACHE_SPACE)")
    if bounded := geometry.windowed_bytes("bfloat16"):
        lines.append(
            f"  windowed layers hold at most {size_name(bounded)} more in BF16, {size_name(bounded / 2)} in FP8"
        )
    return lines + [f"  note: {note}" for note in geometry.notes]


def position_note(geometry: Geometry, longest: int) -> list[str]:
    """Say where a length is beyond what the model was made for: the times hold, the answers may not."""
    if geometry.max_position is None or longest <= geometry.max_position:
        return []
    limit = f"{geometry.max_position:,} tokens"
    return [f"note: the model's own limit is {limit} (max_position_embeddings); beyond it only times mean anything"]


def lengths_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of tables.PLAN rows, then the reason and remedy of each length that is refused."""
    header = [
        "length",
        "mode",
        "fits",
        "KV GiB/rank",
        "TTFT limit",
        "TTFT forecast",
        "likely between",
        "decode limit tok/s",
        "hours",
    ]
    body = [_length_row(row) for row in rows]
    refused = [f"{length_name(row['length'])} {row['mode']}: {row['remedy']}" for row in rows if row["reason"]]
    hours = campaign_hours(rows)
    total = (
        f"campaign: {hours:.1f} hours"
        if hours is not None
        else "campaign: hours unknown until two lengths are measured"
    )
    sources = sorted({row["est_source"] for row in rows if row["est_source"]})
    note = [f"forecast from: {', '.join(sources)}"] if sources else []
    return [*table(header, body), *refused, total, *note]


def _length_row(row: Mapping[str, Any]) -> list[str]:
    interval = "-"
    if row["est_ttft_s"] is not None:
        interval = f"{human_seconds(row['est_ttft_low_s'])} .. {human_seconds(row['est_ttft_high_s'])}"
    fits = {None: "?", True: "yes", False: "NO"}[row["fits"]]
    return [
        length_name(row["length"]),
        row["mode"],
        fits,
        gib(row["kv_bytes_per_rank"]),
        human_seconds(row["ttft_bound_s"]),
        human_seconds(row["est_ttft_s"]),
        interval,
        rate(row["decode_bound_tok_s"]),
        "-" if row["est_hours"] is None else f"{row['est_hours']:.2f}",
    ]


def hold_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table 'how long a context could this node hold', a line per split and precision."""
    header = [
        "split",
        "KV cache",
        "weights GiB/GPU",
        "KV GiB/GPU",
        "longest prompt",
        "TTFT limit",
        "decode limit tok/s",
    ]
    body = [
        [
            row["parallelism"],
            row["kv_dtype"],
            gib(row["weight_bytes_per_rank"]),
            gib(max(0, row["kv_bytes"])),
            length_name(row["max_context"]) if row["max_context"] != 0 else "does not fit",
            human_seconds(row.get("ttft_bound_s")),
            rate(row.get("decode_bound_tok_s")),
        ]
        for row in rows
    ]
    return ["How long a context could this node hold:", *table(header, body)]


def nodes_lines(length: int, node: Hardware, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of multi-node splits that hold `length`, marked as not run."""
    title = f"Holding {length_name(length)} tokens on nodes of {node.count} x {node.name} (computed, not run):"
    if not rows:
        return [title, "  no split of up to 16 nodes holds it"]
    header = ["split", "nodes", "KV cache", "KV GiB/GPU", "longest prompt", "TTFT limit", "decode limit tok/s"]
    body = [
        [
            row["parallelism"],
            str(row["nodes"]),
            row["kv_dtype"],
            gib(row["kv_bytes_per_rank"]),
            length_name(row["max_context"]),
            human_seconds(row["ttft_bound_s"]),
            rate(row["decode_bound_tok_s"]),
        ]
        for row in rows
    ]
    return [title, *table(header, body)]
