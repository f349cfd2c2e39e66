"""From rows to one summary row per mode and length, and the fits over lengths.

Which rows count: in mode prefill the requests of role cold and repeat (each a cold prompt of its own; a resumed one has
no TTFT but a decode rate), in mode reuse the hot queries (role reuse; the prefill that makes the prefix resident gives
prefix_ttft_s_mean), in decode_only its own. Warm-ups never count. A request that was tried again counts once, by its
best attempt (ok, then doubtful, then failed). Only ok rows give values; `n` counts them and `<metric>_n` the values
behind each mean.
Nothing is dropped for being far off: outliers are counted.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.results import cost, statistics
from longctx.results.cost import Price
from longctx.storage import atomic, schemas

Row = Mapping[str, Any]
Key = tuple[str, int]

OBSERVED_ROLES = {"prefill": schemas.COLD_ROLES, "reuse": ("reuse",), "decode_only": ("decode_only",)}
METRICS = ("ttft_s", "prefill_s", "overhead_s", "decode_tok_s")
WARMUP = "warmup"
_RANK = {"ok": 2, "doubtful": 1}


def summarise(
    rows: Iterable[Row],
    expected: Mapping[Key, int],
    plan_rows: Iterable[Row] = (),
    price: Price | None = None,
) -> list[dict[str, Any]]:
    """Return tables.SUMMARY rows for every (mode, length) that was measured or expected, by mode, then length.

    rows: tables.MEASUREMENTS rows (an extra key `source`, the file, is used in messages). expected: requests that each
    (mode, length) should have; fewer are `n_missing`. plan_rows: tables.PLAN rows, for the bounds. DataError if ok rows
    of a mode come from servers that differ in a field of tables.IDENTITY.
    """
    rows = [row for row in rows if row["role"] != WARMUP]
    check_identity(rows)
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["mode"], row["length"]].append(row)
    bounds = {(row["mode"], row["length"]): row for row in plan_rows}
    modes = list(OBSERVED_ROLES)
    keys = sorted({*groups, *expected}, key=lambda key: (modes.index(key[0]), key[1]))
    return [_summarise_point(key, groups[key], expected.get(key, 0), _bound(bounds, key), price) for key in keys]


def observations(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that count, one per request: its best attempt, the latest among equals."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["role"] not in OBSERVED_ROLES[row["mode"]]:
            continue
        key = tuple(row.get(field) for field in ("mode", "length", "pass_index", "request_index"))
        if key not in best or _RANK.get(row["status"], 0) >= _RANK.get(best[key]["status"], 0):
            best[key] = row
    return list(best.values())


def value(row: Row, metric: str) -> float | None:
    """Return what `row` contributes to the statistics of `metric`, None if nothing; a filled cache has no prefill."""
    if row["status"] != "ok" or (row["mode"] == "decode_only" and metric != "decode_tok_s"):
        return None
    number: float | None = row.get(metric)
    return number


def outlier_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose TTFT or decode throughput stands out among the others of their mode and length."""
    found = []
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in observations(rows):
        groups[row["mode"], row["length"]].append(row)
    for group in groups.values():
        marks = [statistics.outliers([value(row, metric) for row in group]) for metric in ("ttft_s", "decode_tok_s")]
        found += [row for row, *far in zip(group, *marks, strict=True) if any(far)]
    return found


def _summarise_point(key: Key, rows: list[Row], expected: int, bound: Row, price: Price | None) -> dict[str, Any]:
    counted = observations(rows)
    sound = [row for row in counted if row["status"] == "ok"]
    summary: dict[str, Any] = dict.fromkeys(schemas.SUMMARY.names) | {
        "mode": key[0],
        "length": key[1],
        "n": sum(row["status"] == "ok" for row in counted),
        "n_failed": sum(row["status"] == "failed" for row in rows),
        "n_doubtful": sum(row["status"] == "doubtful" for row in rows),
        "n_missing": max(0, expected - len(counted)),
        "n_outliers": len(outlier_rows(rows)),
        "reasons": sorted({reason for row in rows for reason in reasons_of(row)}),
        "hosts": sorted({row["host"] for row in sound if row.get("host")}),
        "cached_tokens_min": min(
            (row["cached_tokens"] for row in sound if row.get("cached_tokens") is not None), default=None
        ),
        "synthetic_weights": any(row.get("synthetic_weights") for row in rows) or None,
        "filled_kv": any(row.get("filled_kv") for row in rows) or None,
    }
    if key[0] == "reuse":
        summary["prefix_ttft_s_mean"] = statistics.describe(
            value(row, "ttft_s") for row in rows if row["role"] == "cold"
        ).mean
    for field in ("campaign", "recipe_hash", "gpu", "gpu_count", "max_new_tokens"):
        summary[field] = next((row[field] for row in [*sound, *rows] if row.get(field) is not None), None)
    for metric in METRICS:
        described = statistics.describe(value(row, metric) for row in counted)
        for name in described.__dataclass_fields__:
            summary[f"{metric}_{name}"] = getattr(described, name)
    _add_bounds(summary, bound)
    _add_energy(summary, sound)
    if price:
        _add_cost(summary, price)
    return summary


def reasons_of(row: Row) -> list[str]:
    """Return everything that a row says against itself: failures, doubts, and marks of an ok row."""
    return list(row.get("reasons") or ([row["reason"]] if row.get("reason") else []))


def _bound(bounds: Mapping[Key, Row], key: Key) -> Row:
    """Return the plan row of a point; decode is bounded alike in every mode, so any mode's plan row serves."""
    return bounds.get(key) or next((row for (_, length), row in bounds.items() if length == key[1]), {})


def _add_bounds(summary: dict[str, Any], bound: Row) -> None:
    """Add the bounds and measured / bound; a hot query and a filled cache have no prefill to bound."""
    ttft_bound = bound.get("ttft_bound_s") if summary["mode"] == "prefill" else None
    decode_bound = bound.get("decode_bound_tok_s")
    summary["ttft_bound_s"], summary["decode_bound_tok_s"] = ttft_bound, decode_bound
    summary["ttft_over_bound"] = _quotient(summary["ttft_s_mean"], ttft_bound)
    summary["decode_over_bound"] = _quotient(summary["decode_tok_s_mean"], decode_bound)


def _add_energy(summary: dict[str, Any], rows: list[Row]) -> None:
    """Add the mean energy of a request in J; per token that it computed (prompt - cached + output); and apart, per such
    prompt token until the first token and per output token after it. A filled cache computed none of its prompt: what
    was spent until its first token is nobody's."""
    whole, prompt, output = [], [], []
    for row in rows:
        energy, decode, made = (row.get(name) for name in ("energy_j", "energy_decode_j", "completion_tokens"))
        if row["mode"] != "decode_only":
            computed = (row.get("prompt_tokens") or 0) - (row.get("cached_tokens") or 0)
            whole.append(_quotient(energy, computed + (made or 0)))
            prompt.append(None if energy is None or decode is None else _quotient(energy - decode, computed))
        compiled = "compiled" in reasons_of(row)  # perhaps while decoding
        output.append(_quotient(decode, made - 1 if made and not compiled else None))
    summary["energy_j_mean"] = statistics.describe(row.get("energy_j") for row in rows).mean
    for name, values in (("", whole), ("prompt_", prompt), ("output_", output)):
        summary[f"energy_j_per_{name}token"] = statistics.describe(values).mean
    summary["power_gap_s_mean"] = statistics.describe(row.get("power_gap_s") for row in rows).mean


def _add_cost(summary: dict[str, Any], price: Price) -> None:
    """Add $ of a cold prefill, of a hot query with its answer, and of a million tokens prefilled and decoded."""
    ttft = summary["ttft_s_mean"]
    summary["usd_per_mtok_out"] = price.usd(_quotient(1e6, summary["decode_tok_s_mean"]))
    if summary["mode"] == "prefill":
        summary["usd_per_prefill"] = price.usd(ttft)
        summary["usd_per_mtok"] = price.usd(_quotient(ttft and ttft * 1e6, summary["length"]))
    if summary["mode"] == "reuse":
        summary["usd_per_query"] = price.usd(cost.query_s(summary))


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def check_identity(rows: Iterable[Row]) -> None:
    """Refuse rows of one mode that come from different servers or hardware: DataError names field, values and points.

    A row that is not ok may not know a fact and contradicts nothing then; an ok row without it differs from one with.
    """
    first: dict[tuple[str, str], tuple[Any, Row]] = {}
    for row in rows:
        for field in schemas.IDENTITY:
            known = row.get(field)
            if known is None and row["status"] != "ok":
                continue
            before, example = first.setdefault((row["mode"], field), (known, row))
            if before != known:
                raise DataError(
                    f"measurements of mode {row['mode']} differ in {field}: {_said(before)} in {_where(example)},"
                    f" {_said(known)} in {_where(row)}; different systems never merge, so give each its own results"
                    " folder (name: in the configuration)"
                )


def _said(fact: Any) -> str:
    return "not known" if fact is None else str(fact)


def _where(row: Row) -> str:
    return row.get("source") or f"{format_length(row['length'])} pass {row.get('pass_index')}"


def per_host(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return mode, length, host, n and mean and std of TTFT (s) and decode (tok/s) for lengths with several hosts.

    The std is run to run on one host; how the means differ is node to node. The two are never pooled here.
    """
    groups: dict[tuple[str, int, str], list[Row]] = defaultdict(list)
    for row in observations(rows):
        if row["status"] == "ok":
            groups[row["mode"], row["length"], row.get("host") or "unknown"].append(row)
    hosts: dict[Key, set[str]] = defaultdict(set)
    for mode, length, host in groups:
        hosts[mode, length].add(host)
    found = []
    for (mode, length, host), group in sorted(groups.items()):
        if len(hosts[mode, length]) > 1:
            ttft = statistics.describe(value(row, "ttft_s") for row in group)
            decode = statistics.describe(value(row, "decode_tok_s") for row in group)
            found.append(
                {
                    "mode": mode,
                    "length": length,
                    "host": host,
                    "n": len(group),
                    "ttft_s_mean": ttft.mean,
                    "ttft_s_std": ttft.std,
                    "decode_tok_s_mean": decode.mean,
                    "decode_tok_s_std": decode.std,
                }
            )
    return found


def write_csv(path: Path | str, summary: Sequence[Row]) -> None:
    """Write tables.SUMMARY rows as CSV for spreadsheets: an empty cell is a missing value, lists are joined by ';'."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(schemas.SUMMARY.names)
    for row in summary:
        cells = (row.get(name) for name in schemas.SUMMARY.names)
        writer.writerow(";".join(cell) if isinstance(cell, list) else cell for cell in cells)
    atomic.write_atomic(path, text.getvalue().encode())
