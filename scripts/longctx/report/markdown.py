"""The Markdown report, for pull requests: Table 1 first, then figures, evidence, failures and how to reproduce it."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from longctx.report import faults, inputs, narrative, provenance, style, tables
from longctx.report.cells import NONE, Cell, Table
from longctx.report.evidence import (
    amortisation,
    comparison,
    costs,
    decode_check,
    decode_limits,
    energy,
    fits,
    prefill_limits,
    two_clocks,
)
from longctx.report.inputs import ReportInput

FIGURE_CAPTIONS = {
    "ttft": "Time to first token against prompt length",
    "decode": "Decode throughput against prompt length",
    "kv_footprint": "KV footprint against context length (the plan)",
    "limits": "Distance to the hardware's limit",
    "amortisation": "What a resident prefix buys",
    "ttft_per_gpu": "Time to first token × GPUs, normalised per GPU",
    "decode_per_gpu": "Decode throughput per GPU",
}

SHOW_FILLED_KV = ("decode", "limits", "decode_per_gpu")


def to_markdown(given: ReportInput, folder: Path) -> str:
    """Return the whole report; links are relative to `folder`, where the file will lie."""
    banner = narrative.partial(given)
    parts = [
        f"# {_escape(given.name)}: long-context serving\n",
        f"{_escape(given.subtitle)}\n" if given.subtitle else "",
        *(f"> **{_escape(label)}**\n" for label in inputs.labels(given)),
        f"> **{_escape(banner)}**\n" if banner else "",
        *(f"> **Attention:** {_escape(text)}\n" for text in narrative.alerts(given)),
        "".join(f"- {_escape(sentence)}\n" for sentence in narrative.narrative(given)),
        *(_table(table, given, folder) for table in [tables.table_1(given), *tables.other_mode_tables(given)]),
        *_figures(given, folder),
        *(_table(table, given, folder) for table in evidence_tables(given) if table.rows),
        _failures(given, folder),
        *(_table(table, given, folder) for table in system(given) if table.rows),
        _reproduce(given),
    ]
    return "\n".join(part for part in parts if part)


def evidence_tables(given: ReportInput) -> list[Table]:
    """Return the tables between the figures and the failures, in order; empty ones have nothing to say."""
    ours = [
        two_clocks(given),
        prefill_limits(given),
        decode_limits(given),
        decode_check(given),
        fits(given),
        amortisation(given),
        costs(given),
        energy(given),
    ]
    others = [comparison(found) for found in given.comparisons]
    return [
        *(inputs.labelled(table, given) for table in ours),
        *others,
        inputs.labelled(provenance.hosts(given), given),
    ]


def system(given: ReportInput) -> list[Table]:
    """Return what ran and where: the contract and the environment."""
    return [provenance.contract(given), provenance.environment(given)]


def _table(table: Table, given: ReportInput, folder: Path) -> str:
    lines = [f"## {_escape(table.title)}\n", "| " + " | ".join(map(_escape, table.columns)) + " |"]
    lines.append("|" + "|".join("---:" if i in table.numeric else "---" for i in range(len(table.columns))) + "|")
    lines += ["| " + " | ".join(_cell(cell, given, folder) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n" + (f"\n{_escape(table.note)}\n" if table.note else "")


def _cell(cell: Cell, given: ReportInput, folder: Path) -> str:
    text = _escape(cell.text)
    if cell.point and cell.text != NONE:
        sources = sorted(
            {row["source"] for row in given.rows if (row["mode"], row["length"]) == cell.point and row.get("source")}
        )
        if sources:
            text = f"[{text}](<{_relative(Path(sources[0]).parent, folder)}>)"
    return text + (f" ({_escape(cell.small)})" if cell.small else "")


def _figures(given: ReportInput, folder: Path) -> Iterable[str]:
    shown = [(name, stem) for name, stem in given.figures.items() if stem.with_suffix(".png").exists()]
    if shown:
        yield "## Figures\n"
    for name, stem in shown:
        caption = ". ".join([FIGURE_CAPTIONS.get(name, name), *figure_labels(given, name)])
        yield f"![{_escape(caption)}](<{_relative(stem.with_suffix('.png'), folder)}>)\n"


def figure_labels(given: ReportInput, name: str) -> list[str]:
    """Return what is not real about a figure's numbers; the plan's figure is reckoned, so nothing in it is measured."""
    if name == "kv_footprint":
        return []
    return [label for label in inputs.labels(given) if label != style.FILLED_KV or name in SHOW_FILLED_KV]


def _failures(given: ReportInput, folder: Path) -> str:
    found = [faults.failures(given), faults.marks(given), faults.outliers(given), faults.resumed(given)]
    note = faults.corpus_note(given)
    text = "\n".join(_table(table, given, folder) for table in found if table.rows)
    none = "" if found[0].rows else "## Failures and doubts\n\nNone.\n\n"
    return (none + text).rstrip("\n") + "\n" + (f"\n{_escape(note)}\n" if note else "")


def _reproduce(given: ReportInput) -> str:
    return (
        f"## Reproduce\n\n```sh\n{given.command}\n```\n\n"
        + (f"longctx at commit {_escape(given.revision)}.\n\n" if given.revision else "")
        + f"<details><summary>Recipe</summary>\n\n```yaml\n{recipe_text(given.recipe)}```\n\n</details>\n"
    )


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """Return the configuration as YAML in its own order."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=100)


def _escape(text: str) -> str:
    """Make text safe inside a Markdown table cell, also against what a server's message may contain."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*\[\]|$~]|^#)", r"\\\1", text)


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
