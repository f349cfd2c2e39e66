"""The HTML report: one file that needs no network, from the same views as the Markdown report.

Figures are inlined as SVG whose colours become CSS variables, so that they are readable in light and dark. The page's
own policy forbids every request and every script but its one, so nothing that a server or a file name says can run.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from longctx.campaign.point import Point
from longctx.lengths import format_length
from longctx.report import faults, inputs, markdown, narrative, style, tables
from longctx.report.cells import NONE, Cell, Row, Table, make
from longctx.report.inputs import ReportInput

TEMPLATES = Path(__file__).parent / "templates"
FIGURE_COLOURS = {
    style.INK: "--ink", style.MUTED: "--muted", style.GRID: "--grid", style.PAPER: "--paper", style.BLUE: "--blue",
    style.VERMILLION: "--vermillion", style.GREEN: "--green", style.ORANGE: "--orange", style.PURPLE: "--purple",
    style.SKY: "--sky", style.YELLOW: "--yellow",
}  # fmt: skip
# Longer texts of a row (counters of a whole server, say) are cut in the page; the Parquet has all of it.
LONGEST_TEXT = 6000
FIRST_FIELDS = ("detail", "log_lines", "server_counters")


def to_html(given: ReportInput, folder: Path) -> str:
    """Return the page; its links are relative to `folder`, where the file will lie."""
    sentences = narrative.narrative(given)
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page: str = _template().render(
        given=given,
        labels=inputs.labels(given),
        banner=narrative.partial(given),
        alerts=narrative.alerts(given),
        lede=sentences[0],
        sentences=sentences[1:],
        table_1=tables.table_1(given),
        other_tables=tables.other_mode_tables(given),
        figures=figures(given),
        evidence=markdown.evidence_tables(given),
        failures=faults.failures(given),
        marks=faults.marks(given),
        outliers=faults.outliers(given),
        resumed=faults.resumed(given),
        corpus_note=faults.corpus_note(given),
        system=markdown.system(given),
        raw=raw_rows(given),
        raw_data=raw_data(given, folder),
        summary_table=summary_rows(given),
        recipe=markdown.recipe_text(given.recipe),
        dash=NONE,
        anchor=anchor,
        script=Markup(script),
        digest=digest,
    )
    return page


@cache
def _template() -> Any:
    loader = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2")


def anchor(point: tuple[str, int]) -> str:
    """Return the id under which the raw rows of a (mode, length) are found: 'rows-prefill-64Ki'."""
    return f"rows-{point[0]}-{format_length(point[1])}"


def figures(given: ReportInput) -> list[dict[str, Any]]:
    """Return name, caption and inline SVG of each figure that exists."""
    found = []
    for name, stem in given.figures.items():
        path = stem.with_suffix(".svg")
        if path.exists():
            caption = markdown.FIGURE_CAPTIONS.get(name, name)
            svg = inline_svg(path.read_text(encoding="utf-8"), name, caption)
            labels = markdown.figure_labels(given, name)
            found.append({"name": name, "caption": caption, "svg": Markup(svg), "labels": labels})
    return found


def inline_svg(svg: str, name: str, caption: str) -> str:
    """Return matplotlib's SVG fit for a page: no prolog or metadata, ids of its own, CSS variables for colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    for colour, variable in FIGURE_COLOURS.items():
        svg = re.sub(rf"{colour}\b", f"var({variable})", svg, flags=re.IGNORECASE)
    label = str(Markup.escape(caption))
    return re.sub(r'<svg ([^>]*?)width="[^"]*"', rf'<svg role="img" aria-label="{label}" \1', svg, count=1).replace(
        'height="', 'data-height="', 1
    )


RAW_COLUMNS = (
    ("Mode", "mode"), ("Role", "role"), ("Prompt", "length"), ("Pass", "pass_index"), ("Request", "request_index"),
    ("Status", "status"), ("Reasons", "reasons"), ("TTFT s", "ttft_s"), ("Prefill s", "prefill_s"),
    ("Queue s", "queue_s"), ("Overhead s", "overhead_s"), ("Decode tok/s", "decode_tok_s"),
    ("Client tok/s", "decode_client_tok_s"), ("From", "decode_source"), ("Prompt tokens", "prompt_tokens"),
    ("Output", "completion_tokens"), ("Cached", "cached_tokens"), ("ITL p50 s", "itl_p50_s"),
    ("ITL p99 s", "itl_p99_s"), ("Chunks", "chunks"), ("Coalesced", "coalesced"), ("JIT", "jit_events"),
    ("Energy J", "energy_j"), ("Started (UTC)", "started_at"), ("Host", "host"),
)  # fmt: skip


def raw_rows(given: ReportInput) -> Table:
    """Return every row that was measured, warm-ups included."""
    rows = [[raw_cell(row, field) for _, field in RAW_COLUMNS] for row in given.rows]
    return make("Raw rows", [name for name, _ in RAW_COLUMNS], rows)


def raw_cell(row: Row, field: str) -> Cell:
    """Return one field of a row as a cell; a length links to the point's rows."""
    value = row.get(field)
    if field == "length":
        return Cell(format_length(row["length"]), row["length"], "", (row["mode"], row["length"]))
    if isinstance(value, float):
        return Cell(f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}", value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Cell(f"{value:,}", value)
    return Cell(plain(value))


def plain(value: Any) -> str:
    """Return any field as text: lists joined, times in UTC to the second, missing as a dash."""
    if value is None or value == []:
        return NONE
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.strftime("%Y-%m-%d %H:%M:%S") if hasattr(value, "strftime") else str(value)


def raw_data(given: ReportInput, folder: Path) -> Markup:
    """Return, as JSON for the page's script, each row's remaining fields and its files: what a number came from."""
    logs = {(row["mode"], row["length"], row["pass_index"]): row.get("log_path") for row in given.servers}
    shown = {field for _, field in RAW_COLUMNS}
    found = []
    for row in given.rows:
        rest = [name for name in row if name not in shown and row[name] not in (None, [])]
        rest.sort(key=lambda name: FIRST_FIELDS.index(name) if name in FIRST_FIELDS else len(FIRST_FIELDS))
        fields = {name: _cut(_indented(row[name]) if name == "server_counters" else row[name]) for name in rest}
        found.append({"files": _files(given, row, logs, folder), "fields": fields})
    return Markup(json.dumps(found, ensure_ascii=False).replace("<", "\\u003c"))


def _indented(text: str) -> str:
    try:
        return "\n".join(f"{name}: {json.dumps(value)}" for name, value in json.loads(text).items())
    except (ValueError, AttributeError):
        return text


def _cut(value: Any) -> str:
    text = "\n".join(value) if isinstance(value, list) else plain(value)
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " … (cut; the Parquet has all of it)"


def _files(given: ReportInput, row: Row, logs: Mapping[tuple[Any, ...], str | None], folder: Path) -> dict[str, str]:
    """Return label -> relative link of the files behind a row."""
    point = Point(row["length"], row["pass_index"], row["mode"]).name
    log = logs.get((row["mode"], row["length"], row["pass_index"]))
    paths = {
        "rows": row.get("source"),
        "chunk trace": given.results / "traces" / f"{point}.parquet",
        "progress": given.results / "progress" / f"{point}.parquet",
        "server facts": given.results / "servers" / f"{point}.parquet",
        "server log": log,
    }
    return {name: quote(Path(os.path.relpath(path, folder)).as_posix()) for name, path in paths.items() if path}


def summary_rows(given: ReportInput) -> Table:
    """Return every column of the summary that has a value anywhere."""
    used = (
        [name for name in given.summary[0] if any(row.get(name) not in (None, []) for row in given.summary)]
        if (given.summary)
        else []
    )
    return make("Summary rows", used, [[raw_cell(row, name) for name in used] for row in given.summary])
