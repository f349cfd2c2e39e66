"""Table 1 and its twins: one table for each mode, a row for each prompt length."""

from longctx.campaign.mode import COLD_MODE
from longctx.measure import reasons
from longctx.report.cells import Column, Row, Table, count, decode_cell, prompt_cell, tabulate, ttft_cell
from longctx.report.mode import report_facet
from longctx.results.campaign_results import LABEL_SENTENCES, CampaignResults


def table_1(results: CampaignResults) -> Table:
    """Return Table 1 in the published form, of the first mode that was run: cold prompts where there are any."""
    mode = results.modes[0] if results.modes else COLD_MODE
    return mode_table(results, mode, f"Table 1. {report_facet(mode).table_title}")


def other_mode_tables(results: CampaignResults) -> list[Table]:
    return [mode_table(results, mode, report_facet(mode).table_title) for mode in results.modes[1:]]


def mode_table(results: CampaignResults, mode: str, title: str) -> Table:
    """Return Prompt | Tokens | TTFT s | Decode tok/s | n | Notes, mean ± sample standard deviation."""
    rows = results.of_mode(mode)
    columns: list[Column[Row]] = [
        ("Prompt", prompt_cell),
        ("Tokens", lambda row: count(row["length"])),
        ("Decode tok/s", decode_cell),
        ("n", lambda row: count(row["n"])),
    ]
    if head := report_facet(mode).ttft_column:
        columns.insert(2, (head, ttft_cell))
    if any(notes(row) for row in rows):
        columns.append(("Notes", lambda row: "; ".join(notes(row))))
    note = " ".join(LABEL_SENTENCES[label] for label in results.synthetic_labels(mode))
    return tabulate(title, columns, rows, note)


def notes(row: Row) -> list[str]:
    """Say what is wrong or special about a summary row, in a few words each."""
    tried = row["n"] or row["n_failed"] or row["n_doubtful"]
    texts = _faults(row) if tried else ["not measured"]
    if len(row.get("hosts") or ()) > 1:
        texts.append(f"± over {len(row['hosts'])} nodes, see Node to node")
    if row.get("n_outliers"):
        texts.append(f"{row['n_outliers']} outlier{'s' if row['n_outliers'] > 1 else ''} kept")
    return texts


def _faults(row: Row) -> list[str]:
    """Say how many requests failed, are doubtful or missing, with their reasons; then the marks of those that count."""
    why = list(row.get("reasons") or ())
    texts = [f"{row[name]} {word}" for name, word in (("n_failed", "failed"), ("n_doubtful", "doubtful")) if row[name]]
    if bad := ", ".join(reason for reason in why if reason not in reasons.MARKED):
        texts[-1:] = [f"{texts[-1]} ({bad})"] if texts else [bad]
    if row["n_missing"]:
        texts.append(f"{row['n_missing']} missing")
    return texts + [reason for reason in why if reason in reasons.MARKED]
