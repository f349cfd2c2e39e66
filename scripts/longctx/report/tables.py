"""What the reports say, as tables and sentences that the Markdown and the HTML report render alike.

A view is a pure function of ReportInput; cells are finished text. A missing value is an em dash, never 0.
"""

from longctx.measure import reasons
from longctx.report.cells import Cell, Row, Table, count, decode_cell, length_cells, make, ttft_cell
from longctx.report.inputs import ReportInput, labels_sentence


def table_1(given: ReportInput) -> Table:
    """Table 1 in the published form, of the first mode that was run: cold prompts where there are any."""
    mode = given.modes[0] if given.modes else "prefill"
    return mode_table(given, mode, f"Table 1. {_table_titles()[mode]}")


def other_mode_tables(given: ReportInput) -> list[Table]:
    return [mode_table(given, mode, _table_titles()[mode]) for mode in given.modes[1:]]


def _table_titles() -> dict[str, str]:
    return {
        "prefill": "Time to first token and decode throughput",
        "reuse": "Queries behind a resident prefix",
        "decode_only": "Decode throughput with a filled KV cache (no prefill, so no TTFT)",
    }


def mode_table(given: ReportInput, mode: str, title: str) -> Table:
    """Return Prompt | Tokens | TTFT s | Decode tok/s | n | Notes, mean ± sample standard deviation."""
    columns = ["Prompt", "Tokens", "TTFT s", "Decode tok/s", "n", "Notes"]
    rows = []
    for row in given.of_mode(mode):
        cells = [*length_cells(row["length"]), ttft_cell(row), decode_cell(row), count(row["n"])]
        rows.append([*cells, Cell("; ".join(notes(row)))])
    dropped = {2} if mode == "decode_only" else set()
    if not any(row[5].text for row in rows):
        dropped.add(5)
    keep = [i for i in range(6) if i not in dropped]
    if mode == "reuse":
        columns[2] = "Hot TTFT s"
    return make(
        title, [columns[i] for i in keep], [[row[i] for i in keep] for row in rows], labels_sentence(given, mode)
    )


def notes(row: Row) -> list[str]:
    """Say what is wrong or special about a summary row, in a few words each."""
    found = []
    if row["n"] == 0 and not row["n_failed"] and not row["n_doubtful"]:
        found.append("not measured")
    else:
        marks = [reason for reason in row.get("reasons") or () if reason in reasons.MARKED]
        bad = [reason for reason in row.get("reasons") or () if reason not in reasons.MARKED]
        for count, word in ((row["n_failed"], "failed"), (row["n_doubtful"], "doubtful")):
            if count:
                found.append(f"{count} {word}")
        if bad:
            found[-1:] = [f"{found[-1]} ({', '.join(bad)})"] if found else [", ".join(bad)]
        if row["n_missing"]:
            found.append(f"{row['n_missing']} missing")
        found += marks
    if len(row.get("hosts") or ()) > 1:
        found.append(f"± over {len(row['hosts'])} nodes, see Node to node")
    if row.get("n_outliers"):
        found.append(f"{row['n_outliers']} outlier{'s' if row['n_outliers'] > 1 else ''} kept")
    return found
