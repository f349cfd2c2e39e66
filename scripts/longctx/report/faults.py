"""What failed, is doubtful or marked, and what lies far from the rest."""

from collections.abc import Iterable

from longctx.lengths import format_length
from longctx.measure.row import reasons
from longctx.report.table_cells import NONE, Cell, Column, Columns, Row, Table, count, field, tabulate
from longctx.results import summary
from longctx.results.campaign_results import CampaignResults
from longctx.results.statistics import OUTLIER_MIN_N, OUTLIER_Z
from longctx.storage.schemas import Role, Status

RESUMED = (
    "These prefills were interrupted and went on from a checkpoint. Their TTFT is not a cold TTFT and is in no"
    " mean; the stitched prefill adds up the progress of both attempts, with its error bound."
)
POINT: Column[Row] = ("Point", lambda row: Cell(point_name(row), row["length"]))
REQUEST: Column[Row] = ("Request", lambda row: f"{row['role']} {row['request_index']}")


def point_name(row: Row) -> str:
    return f"{row['mode']} {format_length(row['length'])} pass {row.get('pass_index')}"


def _meaning(reason: str) -> str:
    return reasons.REASONS.get(reason, reason)


def failures(results: CampaignResults) -> Table:
    """Every failed or doubtful request, with its reason."""
    columns: Columns = (
        ("Point", lambda row: Cell(point_name(row), row["length"], "", (row["mode"], row["length"]))),
        REQUEST,
        ("Status", lambda row: str(row["status"])),
        ("Reason", lambda row: ", ".join(summary.reasons_of(row)) or NONE),
        ("What it means", lambda row: "; ".join(map(_meaning, summary.reasons_of(row)))),
        ("Detail", lambda row: row.get("detail") or ""),
    )
    rows = [row for row in results.rows if row["status"] != Status.OK]
    return tabulate("Failures and doubts", columns, rows, "No value of these requests is in any mean.")


def marks(results: CampaignResults) -> Table:
    """What ok requests could not prove, counted by reason."""
    ok = [row for row in results.rows if row["status"] == Status.OK and row["role"] != Role.WARMUP]
    found = {reason for row in ok for reason in summary.reasons_of(row)}
    marked = {reason: [row for row in ok if reason in summary.reasons_of(row)] for reason in found}
    columns: tuple[Column[str], ...] = (
        ("Mark", str),
        ("What it means", _meaning),
        ("Requests", lambda reason: count(len(marked[reason]))),
        ("Lengths", lambda reason: _distinct_lengths(marked[reason])),
    )
    return tabulate("Marked as not fully proven", columns, sorted(marked))


def _distinct_lengths(rows: Iterable[Row]) -> str:
    return ", ".join(format_length(length) for length in sorted({row["length"] for row in rows}))


def outliers(results: CampaignResults) -> Table:
    """Requests far from the others of their length; they stay in every mean."""
    columns: Columns = (POINT, REQUEST, ("TTFT s", field("ttft_s", 4)), ("Decode tok/s", field("decode_tok_s", 4)))
    rule = f"modified z-score 0.6745 |x - median| / MAD over {OUTLIER_Z}, with {OUTLIER_MIN_N} requests or more"
    return tabulate("Outliers", columns, summary.outlier_rows(results.rows), f"Kept in every mean. Rule: {rule}.")


def resumed(results: CampaignResults) -> Table:
    """Prefills that continued from a checkpoint: not cold, stitched from both attempts' progress."""
    columns: Columns = (
        POINT,
        ("From token", lambda row: count(row.get("resumed_from"))),
        ("TTFT after resuming s", field("resumed_ttft_s", 4)),
        ("Stitched prefill s", field("stitched_prefill_s", 4)),
        ("± s", field("stitched_error_s", 2)),
    )
    rows = [row for row in results.rows if row.get("resumed_from") or row.get("stitched_prefill_s") is not None]
    return tabulate("Resumed prefills", columns, rows, RESUMED)


def corpus_note(results: CampaignResults) -> str:
    """Say so where the corpus was shorter than a prompt and was read again; '' otherwise."""
    cycled = [row for row in results.validation if (row.get("cycles") or 1) > 1]
    if not cycled:
        return ""
    text = f"it was read up to {max(row['cycles'] for row in cycled)} times, each time after a marker of its own"
    return f"The corpus is shorter than the longest prompts: {text} ({_distinct_lengths(cycled)})."
