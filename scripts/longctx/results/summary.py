"""From rows to one summary row per mode and length.

Which rows count: the roles that the mode's campaign facet names (a resumed cold prompt has no TTFT but a decode rate).
Warm-ups never count. A point's record keeps the last attempt of each request, so a request is one row. Only ok rows
give values; `n` counts them and `<metric>_n` the values behind each mean.
Nothing is dropped for being far off: outliers are counted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, product
from typing import Any

from longctx.campaign.mode import MODES, campaign_facet
from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.results import statistics
from longctx.results.cost import Price
from longctx.results.mode import METRICS, Row, results_facet
from longctx.storage import schemas
from longctx.storage.schemas import Role, Status

Key = tuple[str, int]


def summarise(
    rows: Iterable[Row], expected: Mapping[Key, int], plan_rows: Iterable[Row] = (), price: Price | None = None
) -> list[dict[str, Any]]:
    """Return schemas.SUMMARY rows for every (mode, length) that was measured or expected, by mode, then length.

    rows: schemas.MEASUREMENTS rows (an extra key `source`, the file, is used in messages). expected: requests that each
    (mode, length) should have; fewer are `n_missing`. plan_rows: schemas.PLAN rows, for the bounds. DataError if ok
    rows of a mode come from servers that differ in a field of schemas.IDENTITY.
    """
    rows = [row for row in rows if row["role"] != Role.WARMUP]
    check_identity(rows)
    keys = {*((row["mode"], row["length"]) for row in rows), *expected}
    points = sorted(keys, key=lambda key: (MODES.index(key[0]), key[1]))
    groups, plan_rows, summarised = _by_point(rows), list(plan_rows), []
    for mode, length in points:
        group, facet = groups[mode, length], results_facet(mode)
        row = dict.fromkeys(schemas.SUMMARY.names) | {"mode": mode, "length": length}
        row |= _aggregates(group, expected.get((mode, length), 0))
        row |= _bounds(row, plan_rows) | facet.columns(group)
        if price:
            decode_s_per_mtok = 1e6 / row["decode_tok_s_mean"] if row["decode_tok_s_mean"] else None
            row |= {"usd_per_mtok_out": price.usd(decode_s_per_mtok), **facet.costs(row, price)}
        summarised.append(row)
    return summarised


def _by_point(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["mode"], row["length"]].append(row)
    return groups


def _aggregates(rows: Sequence[Row], expected: int) -> dict[str, Any]:
    """Return the columns of the summary that are made from the rows of one mode and length alone."""
    counted = list(filter(_counts, rows))
    ok = [row for row in counted if row["status"] == Status.OK]
    status = Counter(row["status"] for row in rows)
    summary: dict[str, Any] = {"n": len(ok), "n_missing": max(0, expected - len(counted))}
    summary |= {"n_failed": status[Status.FAILED], "n_doubtful": status[Status.DOUBTFUL]}
    summary |= {"n_outliers": len(outlier_rows(rows)), "hosts": sorted(set(_known(ok, "host")))}
    summary["reasons"] = sorted({reason for row in rows for reason in reasons_of(row)})
    summary["cached_tokens_min"] = min(_known(ok, "cached_tokens"), default=None)
    for name in ("synthetic_weights", "filled_kv"):
        summary[name] = any(_known(rows, name)) or None
    for name in ("campaign", "recipe_hash", "gpu", "gpu_count", "max_new_tokens"):
        summary[name] = next(iter(_known([*ok, *rows], name)), None)
    for metric in METRICS:
        described = asdict(statistics.describe(_values(ok, metric)))
        summary |= {f"{metric}_{name}": value for name, value in described.items()}
    energy = [_energy(row) for row in ok]
    return summary | {name: statistics.describe(row[name] for row in energy).mean for name in chain(*energy[:1])}


def _counts(row: Row) -> bool:
    return row["role"] in campaign_facet(row["mode"]).counted_roles


def _known(rows: Iterable[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row.get(name) is not None]


def _values(rows: Sequence[Row], metric: str) -> list[float | None]:
    """Return a metric of each row, None where it is no value of the row's mode."""
    ok = (row["status"] == Status.OK and metric in results_facet(row["mode"]).metrics for row in rows)
    return [row.get(metric) if valid else None for row, valid in zip(rows, ok, strict=True)]


def outlier_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows whose TTFT or decode throughput stands out among the others of their mode and length."""
    far: list[Row] = []
    for group in _by_point(filter(_counts, rows)).values():
        marks = [statistics.outliers(_values(group, metric)) for metric in ("ttft_s", "decode_tok_s")]
        far += [row for row, *found in zip(group, *marks, strict=True) if any(found)]
    return far


def reasons_of(row: Row) -> list[str]:
    """Return everything that a row says against itself: failures, doubts, and marks of an ok row."""
    return list(row.get("reasons") or ([row["reason"]] if row.get("reason") else []))


def _bounds(row: Row, plan_rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the plan's bounds and measured / bound, those that are known."""
    bounds: dict[str, float | None] = {}
    # Decode is bounded alike in every mode, so any mode's plan row of the length serves.
    of_length = [one for one in plan_rows if one["length"] == row["length"]]
    for metric, bound in (("ttft", "ttft_bound_s"), ("decode", "decode_bound_tok_s")):
        planned = _known(of_length, bound)
        if planned and (metric == "decode" or results_facet(row["mode"]).ttft_is_cold):
            measured = row[bound.replace("_bound", "") + "_mean"]
            bounds |= {bound: planned[0], f"{metric}_over_bound": measured and measured / planned[0]}
    return bounds


def _energy(row: Row) -> dict[str, float | None]:
    """Return J of a request; J per token that it computed (prompt - cached + output); and, apart, J per such prompt
    token until the first token and J per output token after it."""
    energy, decode, output = row.get("energy_j"), row.get("energy_decode_j"), row.get("completion_tokens") or 0
    computed = (row.get("prompt_tokens") or 0) - (row.get("cached_tokens") or 0)
    # A filled cache computed none of its prompt: the energy until its first token belongs to no token.
    computed, tokens = (computed, computed + output) if campaign_facet(row["mode"]).measures_ttft else (0, 0)
    # One that compiled a kernel perhaps did so while decoding.
    decoded = 0 if "compiled" in reasons_of(row) else output - 1
    prefill = None if energy is None or decode is None else energy - decode
    shares = {"token": (energy, tokens), "prompt_token": (prefill, computed), "output_token": (decode, decoded)}
    columns = {"energy_j_mean": energy, "power_gap_s_mean": row.get("power_gap_s")}
    for name, (joules, count) in shares.items():
        columns[f"energy_j_per_{name}"] = joules / count if joules is not None and count > 0 else None
    return columns


def check_identity(rows: Iterable[Row]) -> None:
    """Refuse rows of one mode that come from different servers or hardware: DataError names field, values and points.

    A row that is not ok may not know a fact and contradicts nothing then; an ok row without it differs from one with.
    """
    first: dict[tuple[str, str], tuple[Any, Row]] = {}
    for row, field in product(rows, schemas.IDENTITY):
        fact = row.get(field)
        if fact is None and row["status"] != Status.OK:
            continue
        before, example = first.setdefault((row["mode"], field), (fact, row))
        if before != fact:
            raise DataError(
                f"measurements of mode {row['mode']} differ in {field}: {_told(before, example)}, {_told(fact, row)};"
                " different systems never merge, so give each its own results folder (name: in the configuration)"
            )


def _told(fact: Any, row: Row) -> str:
    where = row.get("source") or f"{format_length(row['length'])} pass {row.get('pass_index')}"
    return f"{'not known' if fact is None else fact} in {where}"


def per_host(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return mode, length, host, n and mean and std of TTFT (s) and decode (tok/s) for lengths with several hosts.

    The std is run to run on one host; how the means differ is node to node. The two are never pooled here.
    """
    found, names = [], ("n", "ttft_s_mean", "ttft_s_std", "decode_tok_s_mean", "decode_tok_s_std")
    for (mode, length), group in sorted(_by_point(filter(_counts, rows)).items()):
        hosts = sorted({row.get("host") or "unknown" for row in group if row["status"] == Status.OK})
        for host in hosts if len(hosts) > 1 else ():
            described = _aggregates([row for row in group if (row.get("host") or "unknown") == host], 0)
            found.append({"mode": mode, "length": length, "host": host} | {name: described[name] for name in names})
    return found
