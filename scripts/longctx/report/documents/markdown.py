"""The Markdown report, for pull requests: Table 1 first, then figures, evidence, failures and how to reproduce it."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from longctx.redaction import printable
from longctx.report import faults, narrative, sections
from longctx.report.sections import ReportInput
from longctx.report.table_cells import NONE, Cell, Table


def to_markdown(report: ReportInput, folder: Path) -> str:
    """Return the whole report; links are relative to `folder`, where the file will lie."""
    results, banner = report.results, narrative.partial(report.results)
    parts = [
        f"# {_escape(results.name)}: long-context serving\n",
        f"{_escape(results.subtitle)}\n" if results.subtitle else "",
        *(f"> **{_escape(label)}**\n" for label in results.synthetic_labels()),
        f"> **{_escape(banner)}**\n" if banner else "",
        *(f"> **Attention:** {_escape(text)}\n" for text in narrative.alerts(results)),
        "".join(f"- {_escape(sentence)}\n" for sentence in narrative.narrative(results)),
        *(_table(table, report, folder) for table in sections.mode_tables(results)),
        *_figures(report, folder),
        *(_table(table, report, folder) for table in sections.evidence_tables(report) if table.rows),
        _failures(report, folder),
        *(_table(table, report, folder) for table in sections.system_tables(results) if table.rows),
        _reproduce(report),
    ]
    return "\n".join(part for part in parts if part)


def _table(table: Table, report: ReportInput, folder: Path) -> str:
    lines = [f"## {_escape(table.title)}\n", "| " + " | ".join(map(_escape, table.columns)) + " |"]
    lines.append("|" + "|".join("---:" if i in table.numeric else "---" for i in range(len(table.columns))) + "|")
    lines += ["| " + " | ".join(_cell(cell, report, folder) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n" + (f"\n{_escape(table.note)}\n" if table.note else "")


def _cell(cell: Cell, report: ReportInput, folder: Path) -> str:
    text = _escape(cell.text)
    if cell.point and cell.text != NONE:
        rows = [row for row in report.results.rows if (row["mode"], row["length"]) == cell.point]
        if sources := sorted({row["source"] for row in rows if row.get("source")}):
            text = f"[{text}](<{os.path.relpath(Path(sources[0]).parent, folder)}>)"
    return text + (f" ({_escape(cell.small)})" if cell.small else "")


def _figures(report: ReportInput, folder: Path) -> Iterable[str]:
    drawn = [(figure, stem.with_suffix(".png")) for figure, stem in report.figures]
    existing = [(figure, path) for figure, path in drawn if path.exists()]
    if existing:
        yield "## Figures\n"
    for figure, path in existing:
        caption = ". ".join([figure.caption, *sections.figure_labels(report.results, figure)])
        yield f"![{_escape(caption)}](<{os.path.relpath(path, folder)}>)\n"


def _failures(report: ReportInput, folder: Path) -> str:
    failures, *others = sections.fault_tables(report.results)
    note = faults.corpus_note(report.results)
    text = "\n".join(_table(table, report, folder) for table in (failures, *others) if table.rows)
    none = "" if failures.rows else "## Failures and doubts\n\nNone.\n\n"
    return (none + text).rstrip("\n") + "\n" + (f"\n{_escape(note)}\n" if note else "")


def _reproduce(report: ReportInput) -> str:
    revision = f"longctx at commit {_escape(report.revision)}.\n\n" if report.revision else ""
    recipe = f"```yaml\n{sections.recipe_text(report.results.recipe)}```"
    details = f"<details><summary>Recipe</summary>\n\n{recipe}\n\n</details>\n"
    return f"## Reproduce\n\n```sh\n{report.command}\n```\n\n{revision}{details}"


def _escape(text: str) -> str:
    """Make text safe inside a Markdown table cell, also against what a server's message may contain."""
    text = " ".join(printable(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|$~]|^#)", r"\\\1", text)
