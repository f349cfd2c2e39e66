"""From rows to one summary row per mode and length.

Which rows count: the roles that the mode's campaign facet names (a resumed cold prompt has no TTFT but a decode rate).
Warm-ups never count. A point's record keeps the last attempt of each request, so a request is one row. Only ok rows
give values; `n` counts them and `<metric>_n` the values behind each mean. A value that is only a bound, as a late TTFT,
is in no mean: `n_late` counts the rows whose TTFT is one.
Nothing is dropped for being far off: outliers are counted.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from longctx.campaign.mode import MODES, campaign_facet
from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.measure.row import reasons
from longctx.results import statistics
from longctx.results.cost import Price
from longctx.results.frames import to_frame, to_rows
from longctx.results.mode import METRICS, Row, results_facet
from longctx.storage import schemas
from longctx.storage.schemas import Role, Status

Key = tuple[str, int]

KEY = ["mode", "length"]


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
    if not points:
        return []
    summary = pd.DataFrame(points, columns=KEY, dtype=object).assign(**_aggregates(rows, points, expected))
    summary = _with_bounds(to_frame(to_rows(summary, schemas.SUMMARY), schemas.SUMMARY), plan_rows)
    summarised = to_rows(summary, schemas.SUMMARY)
    for row in summarised:
        try:
            row |= _further_columns(row, [one for one in rows if all(one[name] == row[name] for name in KEY)], price)
        except Exception as error:
            point = f"{row['mode']} {format_length(row['length'])}"
            logging.getLogger(__name__).warning("%s: the mode's columns and costs stay empty: %r", point, error)
    return summarised


def _further_columns(row: Row, rows: Sequence[Row], price: Price | None) -> dict[str, Any]:
    """Return the columns of a summary row that its mode brings, and its costs; `rows`: those behind it."""
    facet = results_facet(row["mode"])
    columns = dict(facet.columns(rows))
    if price:
        decode_s_per_mtok = 1e6 / row["decode_tok_s_mean"] if row["decode_tok_s_mean"] else None
        columns |= {"usd_per_mtok_out": price.usd(decode_s_per_mtok), **facet.costs({**row, **columns}, price)}
    return columns


def _aggregates(rows: Sequence[Row], points: Sequence[Key], expected: Mapping[Key, int]) -> dict[str, list[Any]]:
    """Return the columns of the summary that are made from rows alone, each with one value per point."""
    frame = _value_frame(rows)
    ok = frame[frame["counted"] & (frame["status"] == str(Status.OK))]
    far = Counter((row["mode"], row["length"]) for row in outlier_rows(rows))

    def aggregate(part: pd.DataFrame, column: str, function: Callable[[list[Any]], Any]) -> list[Any]:
        """Return `function` of a column's values at each point; it gets none where `part` lacks the point."""
        groups = dict(iter(part.groupby(KEY)[column]))
        return [function(groups[key].dropna().tolist() if key in groups else []) for key in points]

    counted = aggregate(frame[frame["counted"]], "status", len)
    columns = {
        "n": aggregate(ok, "status", len),
        "n_failed": aggregate(frame[frame["status"] == str(Status.FAILED)], "status", len),
        "n_doubtful": aggregate(frame[frame["status"] == str(Status.DOUBTFUL)], "status", len),
        "n_missing": [max(0, expected.get(key, 0) - n) for key, n in zip(points, counted, strict=True)],
        "n_late": aggregate(ok[ok["late"]], "status", len),
        "n_outliers": [far[key] for key in points],
        "reasons": aggregate(frame.explode("reasons"), "reasons", lambda values: sorted(set(values))),
        "hosts": aggregate(ok, "host", lambda values: sorted(set(values))),
        "cached_tokens_min": aggregate(ok, "cached_tokens", lambda values: min(values, default=None)),
    }
    for name in schemas.MEMORY_FACTS:  # of several servers, the one with the least room
        least_room = min if name in ("kv_capacity_tokens", "kv_cache_bytes") else max
        columns[name] = aggregate(ok, name, partial(least_room, default=None))
    for name in ("synthetic_weights", "filled_kv"):
        columns[name] = aggregate(frame, name, lambda values: any(values) or None)
    for name in ("campaign", "recipe_hash", "gpu", "gpu_count", "max_new_tokens"):
        columns[name] = aggregate(pd.concat([ok, frame]), name, lambda values: next(iter(values), None))
    for metric in METRICS:
        described = pd.DataFrame([asdict(one) for one in aggregate(ok, metric, statistics.describe)], dtype=object)
        columns |= {f"{metric}_{name}": described[name].tolist() for name in described}
    energy = _energy(ok)
    for name in energy:
        columns[name] = aggregate(ok.assign(**energy), name, lambda values: statistics.describe(values).mean)
    return columns


def _value_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a frame that says which are `counted` and whose TTFT is `late`.

    A metric is null where it is no value of its mode, or only a bound.
    """
    frame = to_frame(rows, schemas.MEASUREMENTS)
    frame["reasons"] = pd.Series([reasons_of(row) for row in rows], dtype=object)
    frame["counted"] = pd.Series([row["role"] in campaign_facet(row["mode"]).counted_roles for row in rows], dtype=bool)
    bounds = [reasons.bounds(row) for row in rows]
    frame["late"] = pd.Series(["ttft_s" in columns for columns in bounds], dtype=bool)
    for metric in METRICS:
        valid = [
            row["status"] == Status.OK and metric in results_facet(row["mode"]).metrics and metric not in columns
            for row, columns in zip(rows, bounds, strict=True)
        ]
        frame[metric] = frame[metric].where(pd.Series(valid, dtype=bool))
    return frame


def outlier_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose TTFT or decode throughput stands out among the others of their mode and length."""
    frame = _value_frame(rows)
    far: list[Row] = []
    for _, group in frame[frame["counted"]].groupby(KEY, sort=False):
        values = group[["ttft_s", "decode_tok_s"]].to_numpy(float, na_value=math.nan)
        marks = zip(*map(statistics.outliers, values.T.tolist()), strict=True)
        far += [rows[index] for index, found in zip(group.index, marks, strict=True) if any(found)]
    return far


def reasons_of(row: Row) -> list[str]:
    """Return everything that a row says against itself: failures, doubts, and marks of an ok row."""
    return list(row.get("reasons") or ([row["reason"]] if row.get("reason") else []))


def _with_bounds(summary: pd.DataFrame, plan_rows: Iterable[Row]) -> pd.DataFrame:
    """Return the summary with the plan's bounds and measured / bound.

    Decode is bounded alike in every mode, so any mode's plan row of the length serves.
    """
    bounds = ["ttft_bound_s", "decode_bound_tok_s"]
    plan = to_frame(plan_rows, schemas.PLAN).groupby("length")[bounds].first()
    summary = summary.drop(columns=bounds).merge(plan, how="left", left_on="length", right_index=True)
    cold = pd.Series([results_facet(mode).ttft_is_cold for mode in summary["mode"]], dtype=bool)
    summary["ttft_bound_s"] = summary["ttft_bound_s"].where(cold)
    summary["ttft_over_bound"] = summary["ttft_s_mean"] / summary["ttft_bound_s"]
    summary["decode_over_bound"] = summary["decode_tok_s_mean"] / summary["decode_bound_tok_s"]
    return summary


def _energy(ok: pd.DataFrame) -> dict[str, pd.Series]:
    """Return J of each request; J per token that it computed (prompt - cached + output); and, apart, J per such prompt
    token until the first token and J per output token after it.

    A filled cache computed none of its prompt: the energy until its first token belongs to no token. Where the first
    token was late, the client does not know when the prefill's energy ends. A request that neither prefills a prompt
    nor decodes, a sample, has energy that nobody asked for.
    """
    facets = [campaign_facet(mode) for mode in ok["mode"]]
    known = pd.Series([facet.measures_ttft or facet.decodes for facet in facets], index=ok.index, dtype=bool)
    energy, decode, output = ok["energy_j"].where(known), ok["energy_decode_j"].where(known), ok["completion_tokens"]
    prefilled = pd.Series([campaign_facet(mode).measures_ttft for mode in ok["mode"]], index=ok.index, dtype=bool)
    compiled = pd.Series(["compiled" in marks for marks in ok["reasons"]], index=ok.index, dtype=bool)
    computed = (ok["prompt_tokens"].fillna(0) - ok["cached_tokens"].fillna(0)).where(prefilled)
    # One that compiled a kernel perhaps did so while decoding.
    tokens = {"token": computed + output.fillna(0), "prompt_token": computed, "output_token": (output - 1)[~compiled]}
    apart = decode[~ok["late"]].reindex(ok.index)
    joules = {"token": energy, "prompt_token": energy - apart, "output_token": apart}
    columns = {f"energy_j_per_{name}": joules[name] / count.where(count > 0) for name, count in tokens.items()}
    return columns | {"energy_j_mean": energy, "power_gap_s_mean": ok["power_gap_s"]}


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
    """Return mode, length, host, n, and n, mean and std of TTFT (s) and decode (tok/s) for lengths with several hosts.

    The std is run to run on one host; how the means differ is node to node. The two are never pooled here.
    """
    frame = _value_frame(rows)
    ok = frame[frame["counted"] & (frame["status"] == str(Status.OK))].fillna({"host": "unknown"})
    metrics = {f"{name}_{what}": (name, what) for name in ("ttft_s", "decode_tok_s") for what in ("mean", "std")}
    metrics["ttft_s_n"] = ("ttft_s", "count")
    hosts = ok.groupby([*KEY, "host"]).agg(n=("status", "size"), **metrics).reset_index()
    hosts = hosts[hosts.groupby(KEY)["host"].transform("size") > 1]
    records: list[dict[str, Any]] = hosts.astype(object).where(hosts.notna(), None).to_dict("records")
    return records
