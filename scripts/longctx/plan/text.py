"""The plan as text: a heading, a table of lengths, and a table of contexts that the node could hold."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from longctx.lengths import format_length
from longctx.model.geometry import Geometry
from longctx.plan.hardware import Hardware
from longctx.plan.parallel_splits import hold_table, nodes_table
from longctx.plan.planner import campaign_hours
from longctx.plan.system import System
from longctx.units import human_bytes, human_length, human_parameters, human_seconds, in_gib, in_tok_s

Rows = Sequence[Mapping[str, Any]]


def plan_text(system: System, rows: Rows, hold: int | None = None) -> str:
    """Return all that the plan prints; `hold` adds how nodes like this one could hold so many tokens."""
    longest = max(row["length"] for row in rows)
    blocks = [heading(system), [*lengths_table(rows), *position_note(system.geometry, longest)]]
    if system.hardware is not None:
        blocks.append(hold_lines(hold_table(system)))
        if hold:
            blocks.append(nodes_lines(hold, system.hardware, nodes_table(system, hold)))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def summary_line(rows: Rows) -> str:
    """Return which lengths cannot fit and how long the campaign takes, in a few words."""
    too_long = sorted({row["length"] for row in rows if row["fits"] is False})
    fitting = f"{', '.join(map(format_length, too_long))} cannot fit" if too_long else "all lengths may run"
    return f"{fitting}; {_hours_line(rows)}"


def table(header: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines under the titles of `header`, parted by '|'; only the first column is on the left."""
    titles = header.split("|")
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = []
    for cells in (titles, ["-" * width for width in widths], *rows):
        right = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        lines.append("  ".join([cells[0].ljust(widths[0]), *right]).rstrip())
    return lines


def heading(system: System) -> list[str]:
    """Return the model, the node and its memory, one fact a line."""
    geometry, hardware = system.geometry, system.hardware
    unknown = hardware is None and system.settings.is_external
    where = "an external server" if unknown else "CPU"
    if hardware:
        where = f"{hardware.count} x {hardware.name}, {system.parallelism.label}"
    block = "" if unknown else f"; block {system.block_tokens} tokens"
    lines = [
        f"{geometry.name} on {where}, KV cache {_kv_dtype(system)}",
        f"  parameters {human_parameters(geometry.parameters_total)},"
        f" active {human_parameters(geometry.parameters_active)};"
        f" weights {human_bytes(geometry.weight_bytes)}, active {human_bytes(geometry.active_weight_bytes)}",
        f"  {_growth(system)}; constant states {geometry.state_bytes() / 2**20:.1f} MiB{block}",
    ]
    if unknown:
        lines.append("  its hardware is not known: name it as 'hardware' to plan what fits and the limits")
    memory = system.memory()
    if memory is not None and memory.weights is not None:
        weights, workspace, left = map(in_gib, (memory.weights, memory.workspace, max(0, memory.kv)))
        used = f"weights {weights} GiB, workspace {workspace} GiB (with margin)"
        room = f"{left} GiB left for KV cache" if memory.kv > 0 else f"{in_gib(-memory.kv)} GiB more than there is"
        lines.append(f"  per GPU: {used}, {room}")
    elif memory is not None:
        here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        short = f"; this machine has {in_gib(here)} GiB of memory" if memory.kv > here else ""
        lines.append(f"  KV cache {in_gib(memory.kv)} GiB (VLLM_CPU_KVCACHE_SPACE){short}")
    if windowed := geometry.windowed_bytes("bfloat16"):
        most = f"{human_bytes(windowed)} more in BF16, {human_bytes(windowed / 2)} in FP8"
        in_flight = f"vLLM keeps up to {system.in_flight_tokens:,} tokens in flight beside each window"
        lines.append(f"  windowed layers hold at most {most}; {in_flight}")
    return lines + [f"  note: {note}" for note in geometry.notes]


def _kv_dtype(system: System) -> str:
    """Return the cache's type, and what `auto` becomes where the checkpoint asks for another than the model's."""
    kv_dtype, asked = system.settings.kv_dtype, system.geometry.quantization.kv_auto
    return f"auto ({asked}, as the checkpoint asks)" if kv_dtype == "auto" and asked else kv_dtype


def _growth(system: System) -> str:
    """Return how the KV cache grows with the context; with windows only it does not."""
    geometry, kv_dtype = system.geometry, system.settings.kv_dtype
    bf16, fp8, own = (geometry.kv_bytes_per_token(dtype) for dtype in ("bfloat16", "fp8", kv_dtype))
    if not bf16:
        windows = any(layer.attention for layer in geometry.layers)
        return "KV cache of windows only, which does not grow beyond them" if windows else "no KV cache"
    third = "" if own in (bf16, fp8) else f", {own:,} in {kv_dtype}"
    return f"KV cache {bf16:,} B/token in BF16, {fp8:,} in FP8{third}"


def position_note(geometry: Geometry, longest: int) -> list[str]:
    """Return a note where a length exceeds the model's own limit: the times hold, the answers may not."""
    if geometry.max_position is None or longest <= geometry.max_position:
        return []
    limit = f"{geometry.max_position:,} tokens"
    return [f"note: the model's own limit is {limit} (max_position_embeddings); beyond it only times mean anything"]


def lengths_table(rows: Rows) -> list[str]:
    """Return the table of schemas.PLAN rows, then the reason and remedy of each length that is refused."""
    header = "length|mode|fits|KV GiB/rank|TTFT limit|TTFT forecast|likely between|decode limit tok/s|hours"
    refused = [f"{human_length(row['length'])} {row['mode']}: {row['remedy']}" for row in rows if row["reason"]]
    sources = sorted({row["est_source"] for row in rows if row["est_source"]})
    note = [f"forecast from: {', '.join(sources)}"] if sources else []
    return [*table(header, list(map(_length_row, rows))), *refused, _hours_line(rows), *note, *_sampled_line(rows)]


def _sampled_line(rows: Rows) -> list[str]:
    """Return '64Mi: 11.2 h ± 1.0 %, from 17 samples' for the longest length whose forecast is of samples alone."""
    sampled = [row for row in rows if (row["est_source"] or "").endswith(" samples")]
    if not sampled:
        return []
    row = max(sampled, key=lambda row: row["length"])
    share = (row["est_ttft_high_s"] - row["est_ttft_low_s"]) / 2 / row["est_ttft_s"]
    time = human_seconds(row["est_ttft_s"])
    return [f"{human_length(row['length'])}: {time} ± {share * 100:.1f} %, from {row['est_source']}"]


def _hours_line(rows: Rows) -> str:
    hours = campaign_hours(rows)
    return f"campaign: {'hours unknown until two lengths are measured' if hours is None else f'{hours:.1f} hours'}"


def _length_row(row: Mapping[str, Any]) -> list[str]:
    interval = "-"
    if row["est_ttft_s"] is not None:
        interval = f"{human_seconds(row['est_ttft_low_s'])} .. {human_seconds(row['est_ttft_high_s'])}"
    fits = {None: "?", True: "yes", False: "NO"}[row["fits"]]
    point = [human_length(row["length"]), row["mode"], fits, in_gib(row["kv_bytes_per_rank"])]
    ttft = [human_seconds(row["ttft_bound_s"]), human_seconds(row["est_ttft_s"]), interval]
    hours = "-" if row["est_hours"] is None else f"{row['est_hours']:.2f}"
    return [*point, *ttft, in_tok_s(row["decode_bound_tok_s"]), hours]


def hold_lines(rows: Rows) -> list[str]:
    """Return the table 'how long a context could this node hold', a line per split and precision."""
    header = "split|KV cache|weights GiB/GPU|KV GiB/GPU|longest prompt|TTFT limit|decode limit tok/s"
    body = []
    for row in rows:
        longest = human_length(row["max_context"]) if row["max_context"] != 0 else "does not fit"
        sizes = [in_gib(row["weight_bytes_per_rank"]), in_gib(max(0, row["kv_bytes"]))]
        body.append([_split_cell(row), row["kv_dtype"], *sizes, longest, *_bound_cells(row)])
    return ["How long a context could this node hold:", *table(header, body), *_problem_notes(rows)]


def nodes_lines(length: int, node: Hardware, rows: Rows) -> list[str]:
    """Return the table of multi-node splits that hold `length`, marked as not run."""
    title = f"Holding {human_length(length)} tokens on nodes of {node.count} x {node.name} (computed, not run):"
    starting = [] if any(row["problem"] is None for row in rows) else ["  no split that vLLM starts holds it"]
    if not rows:
        return [title, "  no split of up to 16 nodes holds it"]
    header = "split|nodes|KV cache|KV GiB/GPU|longest prompt|TTFT limit|decode limit tok/s"
    body = []
    for row in rows:
        sizes = [in_gib(row["kv_bytes_per_rank"]), human_length(row["max_context"])]
        body.append([_split_cell(row), str(row["nodes"]), row["kv_dtype"], *sizes, *_bound_cells(row)])
    return [title, *starting, *table(header, body), *_problem_notes(rows)]


def _split_cell(row: Mapping[str, Any]) -> str:
    return f"{row['parallelism']} *" if row["problem"] else str(row["parallelism"])


def _problem_notes(rows: Rows) -> list[str]:
    """Return a line for each reason why vLLM does not start a row of the table that is marked with a star."""
    return [f"* computed, but {problem}" for problem in dict.fromkeys(row["problem"] for row in rows) if problem]


def _bound_cells(row: Mapping[str, Any]) -> list[str]:
    return [human_seconds(row.get("ttft_bound_s")), in_tok_s(row.get("decode_bound_tok_s"))]
