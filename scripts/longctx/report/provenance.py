"""Where the numbers come from: hosts, software, and the contract with the server."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from longctx.report.cells import NONE, Cell, Table, count, make, spread
from longctx.report.evidence import point
from longctx.report.inputs import ReportInput
from longctx.results import statistics, summary
from longctx.storage import schemas


def hosts(given: ReportInput) -> Table:
    """Means per node where one length ran on several: node to node kept apart from run to run."""
    rows = [
        [
            *point(row),
            Cell(row["host"]),
            count(row["n"]),
            Cell(spread(row, "ttft_s", 3), row["ttft_s_mean"]),
            Cell(spread(row, "decode_tok_s", 1), row["decode_tok_s_mean"]),
        ]
        for row in summary.per_host(given.rows)
    ]
    note = "± is the spread from run to run on one node; the difference between rows of a length is node to node."
    return make("Node to node", ("Prompt", "Mode", "Node", "n", "TTFT s", "Decode tok/s"), rows, note)


def contract_entries(given: ReportInput) -> list[dict[str, Any]]:
    """Return each distinct {setting, asked, actual, source, ok} with `servers`, how many said so; broken ones first."""
    counted: Counter[str] = Counter()
    for server in given.servers:
        for entry in _json_list(server.get("contract")):
            counted[json.dumps({key: entry.get(key) for key in ("setting", "asked", "actual", "source", "ok")})] += 1
    found = [json.loads(text) | {"servers": count} for text, count in counted.items()]
    return sorted(found, key=lambda entry: ({False: 0, None: 1, True: 2}[entry["ok"]], entry["setting"]))


def _json_list(text: str | None) -> list[dict[str, Any]]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def contract(given: ReportInput) -> Table:
    """Each setting that was asked of the servers, what they said, and whether the two agree."""
    words = {True: "yes", False: "no, differs", None: "not proven"}
    rows: list[list[Cell | str]] = [
        [
            entry["setting"],
            *(_said(entry[key]) for key in ("asked", "actual", "source")),
            count(entry["servers"]),
            words[entry["ok"]],
        ]
        for entry in contract_entries(given)
    ]
    columns = ("Setting", "Asked for", "In fact", "Seen in", "Servers", "Kept")
    return make("Contract", columns, rows, "What was asked of each server, against what it said that it did.")


def _said(value: Any) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)


def environment(given: ReportInput) -> Table:
    """Every fact of servers and hosts with its values: one where all agree, else each with its count."""
    sources: Sequence[Mapping[str, Any]] = given.servers or given.rows
    rows = []
    for fact in (*schemas.SERVER_FACTS, *schemas.HOST_FACTS):
        values = Counter(_fact(fact, row[fact]) for row in sources if row.get(fact) is not None)
        if values and fact not in ("startup_s", "max_model_len"):
            shown = [text if len(values) == 1 else f"{text} ({count} servers)" for text, count in values.most_common(8)]
            rows.append([fact, "; ".join(shown)])
    starts = statistics.describe(row.get("startup_s") for row in sources)
    if starts.mean is not None:
        rows.append(["startup_s", f"{starts.mean:.1f} on average, {starts.max:.1f} at most"])
    return make("Environment", ("Fact", "Value"), rows)


def _fact(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"{value / 2**30:.0f} GiB"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
