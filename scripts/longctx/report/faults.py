"""What failed, is doubtful or marked, and what lies far from the rest."""

from collections.abc import Iterable, Sequence

from longctx.lengths import format_length
from longctx.measure import reasons
from longctx.report.cells import NONE, Cell, Row, Table, count, make, number
from longctx.report.inputs import ReportInput
from longctx.results import statistics, summary


def point_name(row: Row) -> str:
    return f"{row['mode']} {format_length(row['length'])} pass {row.get('pass_index')}"


def failures(given: ReportInput) -> Table:
    """Every failed or doubtful request and every server that did not serve, with its reason."""
    columns = ("Point", "Request", "Status", "Reason", "What it means", "Detail")
    rows = [
        _failure(row, f"{row['role']} {row['request_index']}", summary.reasons_of(row))
        for row in given.rows
        if row["status"] != "ok"
    ]
    rows += [
        _failure(row, "server start", [row["reason"]] if row.get("reason") else [])
        for row in given.servers
        if row.get("status") not in (None, "ok")
    ]
    return make("Failures and doubts", columns, rows, "No value of these requests is in any mean.")


def _failure(row: Row, request: str, why: Sequence[str]) -> list[Cell | str]:
    meaning = "; ".join(reasons.REASONS.get(reason, reason) for reason in why)
    point = Cell(point_name(row), row["length"], "", (row["mode"], row["length"]))
    return [point, request, row["status"], ", ".join(why) or NONE, meaning, row.get("detail") or ""]


def marks(given: ReportInput) -> Table:
    """What ok requests could not prove, counted by reason."""
    found: dict[str, list[Row]] = {}
    for row in given.rows:
        for reason in summary.reasons_of(row) if row["status"] == "ok" and row["role"] != summary.WARMUP else ():
            found.setdefault(reason, []).append(row)
    rows: list[list[Cell | str]] = []
    for reason, group in sorted(found.items()):
        rows.append(
            [reason, reasons.REASONS.get(reason, reason), count(len(group)), ", ".join(_distinct_lengths(group))]
        )
    return make("Marked as not fully proven", ("Mark", "What it means", "Requests", "Lengths"), rows)


def _distinct_lengths(rows: Iterable[Row]) -> list[str]:
    return [format_length(length) for length in sorted({row["length"] for row in rows})]


def outliers(given: ReportInput) -> Table:
    """Requests far from the others of their length; they stay in every mean."""
    rows: list[list[Cell | str]] = [
        [
            Cell(point_name(row), row["length"]),
            f"{row['role']} {row['request_index']}",
            number(row.get("ttft_s"), 4),
            number(row.get("decode_tok_s"), 4),
        ]
        for row in summary.outlier_rows(given.rows)
    ]
    note = (
        f"Kept in every mean. Rule: modified z-score 0.6745 |x - median| / MAD over {statistics.OUTLIER_Z}, with"
        f" {statistics.OUTLIER_MIN_N} requests or more."
    )
    return make("Outliers", ("Point", "Request", "TTFT s", "Decode tok/s"), rows, note)


def resumed(given: ReportInput) -> Table:
    """Prefills that continued from a checkpoint: not cold, stitched from both attempts' progress."""
    rows = [
        [
            Cell(point_name(row), row["length"]),
            count(row.get("resumed_from")),
            number(row.get("resumed_ttft_s"), 4),
            number(row.get("stitched_prefill_s"), 4),
            number(row.get("stitched_error_s"), 2),
        ]
        for row in given.rows
        if row.get("resumed_from") or row.get("stitched_prefill_s") is not None
    ]
    note = (
        "These prefills were interrupted and went on from a checkpoint. Their TTFT is not a cold TTFT and is in no"
        " mean; the stitched prefill adds up the progress of both attempts, with its error bound."
    )
    return make(
        "Resumed prefills", ("Point", "From token", "TTFT after resuming s", "Stitched prefill s", "± s"), rows, note
    )


def corpus_note(given: ReportInput) -> str:
    """Say so where the corpus was shorter than a prompt and was read again; '' otherwise."""
    cycled = [row for row in given.validation if (row.get("cycles") or 1) > 1]
    if not cycled:
        return ""
    most = max(row["cycles"] for row in cycled)
    return (
        f"The corpus is shorter than the longest prompts: it was read up to {most} times, each time after a marker of"
        f" its own ({', '.join(_distinct_lengths(cycled))})."
    )
