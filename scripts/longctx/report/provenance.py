"""Where the numbers come from: hosts, software, and the contract with the server."""

import json
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from longctx.lengths import format_length
from longctx.report.evidence import POINT
from longctx.report.table_cells import NONE, Cell, Column, Columns, Row, Table, count, fields, spread, tabulate
from longctx.results import statistics, summary
from longctx.results.campaign_results import CampaignResults
from longctx.storage import schemas
from longctx.units import in_gib

# Facts that differ from server to server by design; start-up times have a line of their own.
NOT_ENVIRONMENT = ("startup_s", "max_model_len")
MOST_VALUES = 8


def hosts(results: CampaignResults) -> Table:
    """Means per node where one length ran on several: node to node kept apart from run to run."""
    columns: Columns = (
        *POINT,
        ("Node", itemgetter("host")),
        ("n", lambda row: count(row["n"])),
        ("TTFT n", lambda row: count(row["ttft_s_n"])),
        ("TTFT s", lambda row: spread(row, "ttft_s", 3)),
        ("Decode tok/s", lambda row: spread(row, "decode_tok_s", 1)),
    )
    note = "± is the spread from run to run on one node; the difference between rows of a length is node to node."
    return tabulate("Node to node", columns, summary.per_host(results.rows), note)


def contract_entries(results: CampaignResults) -> list[dict[str, Any]]:
    """Return each distinct {setting, asked, actual, source, ok} with `servers`, their number; violated ones first."""
    counted: Counter[str] = Counter()
    for server in results.servers:
        for entry in json.loads(server.get("contract") or "[]"):
            counted[json.dumps({key: entry.get(key) for key in ("setting", "asked", "actual", "source", "ok")})] += 1
    entries = [json.loads(text) | {"servers": servers} for text, servers in counted.items()]
    return sorted(entries, key=lambda entry: ({False: 0, None: 1, True: 2}[entry["ok"]], entry["setting"]))


def contract(results: CampaignResults) -> Table:
    """Each setting that was asked of the servers, their answer, and whether the two agree."""
    words = {True: "yes", False: "no, differs", None: "not proven"}
    values = {"Setting": "setting", "Asked for": "asked", "In fact": "actual", "Seen in": "source"}
    kept: Columns = (("Servers", lambda entry: count(entry["servers"])), ("Kept", lambda entry: words[entry["ok"]]))
    note = "What was asked of each server, against what it said that it did."
    return tabulate("Contract", (*fields(values, _format_value), *kept), contract_entries(results), note)


def _format_value(value: Any) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)


# Name, column of the plan, of the summary.
HELD = (
    ("KV capacity, tokens", "capacity_tokens", "kv_capacity_tokens"),
    ("KV cache per GPU", "kv_budget_bytes_per_rank", "kv_cache_bytes"),
    ("Weights per GPU", "weight_bytes_per_rank", "weights_bytes"),
)


def plan_against_server(results: CampaignResults) -> Table:
    """What the plan expected the servers to hold beside what they held; lengths with the same values in one row."""
    planned = {(row["mode"], row["length"]): row for row in results.plan}
    found: dict[tuple[str, int | None, int | None], list[int]] = {}
    for row in results.summary:
        plan = planned.get((row["mode"], row["length"]), {})
        for name, expected, measured in HELD:
            pair = plan.get(expected), row.get(measured)
            if any(value is not None for value in pair):
                found.setdefault((name, *pair), []).append(row["length"])
    columns: tuple[Column[tuple[tuple[str, int | None, int | None], list[int]]], ...] = (
        ("Held", lambda item: item[0][0]),
        ("Lengths", lambda item: _range(item[1])),
        ("Plan", lambda item: _held(item[0][0], item[0][1])),
        ("Server", lambda item: _held(item[0][0], item[0][2])),
        ("Plan is off by", lambda item: _deviation(item[0][1], item[0][2])),
    )
    names = [name for name, *_ in HELD]
    ordered = sorted(found.items(), key=lambda item: (names.index(item[0][0]), min(item[1])))
    note = f"Of the server with the least room at each length. {NONE}: this server does not say, or there is no plan."
    return tabulate("Plan and server", columns, ordered if any(key[2] is not None for key in found) else (), note)


def _range(lengths: list[int]) -> str:
    first, last = format_length(min(lengths)), format_length(max(lengths))
    return first if first == last else f"{first} to {last}"


def _held(name: str, value: int | None) -> Cell:
    if value is None:
        return Cell(NONE)
    return Cell(f"{value:,}" if name.endswith("tokens") else f"{in_gib(value)} GiB", value)


def _deviation(plan: int | None, server: int | None) -> Cell:
    if plan is None or not server:
        return Cell(NONE)
    share = plan / server - 1
    return Cell(f"{share:+.1%}" if abs(share) >= 0.0005 else "0.0%", share)


def environment(results: CampaignResults) -> Table:
    """Every fact of servers and hosts with its values: one where all agree, else each with its count."""
    sources: Sequence[Row] = results.servers or results.rows
    rows = []
    for fact in (*schemas.SERVER_FACTS, *schemas.HOST_FACTS):
        values = Counter(_format_fact(fact, row[fact]) for row in sources if row.get(fact) is not None)
        if values and fact not in NOT_ENVIRONMENT:
            common = values.most_common(MOST_VALUES)
            rows.append([fact, "; ".join(text if len(values) == 1 else f"{text} ({n} servers)" for text, n in common)])
    starts = statistics.describe(row.get("startup_s") for row in sources)
    if starts.mean is not None:
        rows.append(["startup_s", f"{starts.mean:.1f} on average, {starts.max:.1f} at most"])
    return tabulate("Environment", (("Fact", itemgetter(0)), ("Value", itemgetter(1))), rows)


def _format_fact(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"{value / 2**30:.0f} GiB"
    if name.endswith("_bytes"):
        return f"{in_gib(value)} GiB"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
