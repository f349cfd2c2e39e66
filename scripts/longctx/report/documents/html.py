"""The HTML report: one file that needs no network, with the sections of the Markdown report.

Figures are inlined as SVG whose colours become CSS variables, so that they are readable in light and dark. The page's
own policy forbids every request and every script but its one, so nothing that a server or a file name says can run.
"""

import base64
import hashlib
import json
import logging
import os
import re
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from longctx.campaign.point import Point
from longctx.lengths import format_length
from longctx.redaction import printable
from longctx.report import faults, narrative, palette, sections
from longctx.report.mode import FigureSpec
from longctx.report.sections import ReportInput
from longctx.report.table_cells import NONE, Cell, Row, tabulate

_log = logging.getLogger(__name__)
TEMPLATES = Path(__file__).parent / "templates"


def _shown(value: Any) -> Any:
    """Return what a template prints, without control characters; markup of our own stays."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value, keep="\n")


ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, finalize=_shown,
)  # fmt: skip
# The page's CSS has a variable for each colour of the figures.
COLOUR_NAMES = ["INK", "MUTED", "GRID", "PAPER", "BLUE", "VERMILLION", "GREEN", "ORANGE", "PURPLE", "SKY", "YELLOW"]
FIGURE_COLOURS: dict[str, str] = {getattr(palette, name): f"--{name.lower()}" for name in COLOUR_NAMES}
# Longer texts of a row (counters of a whole server, say) are cut in the page; the Parquet has all of it.
LONGEST_TEXT = 6000
FIRST_FIELDS = ("detail", "log_lines", "server_counters")


def to_html(report: ReportInput, folder: Path) -> str:
    """Return the page; its links are relative to `folder`, where the file will lie."""
    results, script = report.results, (TEMPLATES / "report.js").read_text(encoding="utf-8")
    raw = tabulate("Raw rows", [(head, partial(raw_cell, name)) for head, name in RAW_COLUMNS], results.rows)
    columns = [(name, partial(raw_cell, name)) for name in next(iter(results.summary), ())]
    summary = tabulate("Summary rows", columns, results.summary, drop_empty=True)
    names = {"report": report, "results": results, "narrative": narrative, "sections": sections, "faults": faults}
    names |= {"figures": figures(report), "summary_table": summary, "raw": raw, "raw_data": raw_data(report, folder)}
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = ENVIRONMENT.get_template("report.html.j2")
    page: str = template.render(names, dash=NONE, anchor=anchor, script=Markup(script), digest=digest)
    return page


def anchor(point: tuple[str, int]) -> str:
    """Return the id under which the raw rows of a (mode, length) are found: 'rows-prefill-64Ki'."""
    return f"rows-{point[0]}-{format_length(point[1])}"


def figures(report: ReportInput) -> list[tuple[FigureSpec, Markup]]:
    """Return each figure that exists, with its inline SVG."""
    paths = [(figure, stem.with_suffix(".svg")) for figure, stem in report.figures]
    return [(figure, _figure(figure, path)) for figure, path in paths if path.exists()]


def _figure(figure: FigureSpec, path: Path) -> Markup:
    try:
        return Markup(inline_svg(path.read_text(encoding="utf-8"), figure.name, figure.caption))
    except Exception as error:
        _log.warning("figure %s is not in the page: %r", figure.name, error)
        return Markup("<p>{}</p>").format(f"{path} cannot be shown: {error!r}")


def inline_svg(svg: str, name: str, caption: str) -> str:
    """Return matplotlib's SVG fit for a page: no prolog or metadata, ids of its own, CSS variables for colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    for colour, variable in FIGURE_COLOURS.items():
        svg = re.sub(rf"{colour}\b", f"var({variable})", svg, flags=re.IGNORECASE)
    role = rf'<svg role="img" aria-label="{Markup.escape(caption)}" \1'
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', role, svg, count=1)
    return svg.replace('height="', 'data-height="', 1)


RAW_COLUMNS = (
    ("Mode", "mode"), ("Role", "role"), ("Prompt", "length"), ("Pass", "pass_index"), ("Request", "request_index"),
    ("Status", "status"), ("Reasons", "reasons"), ("TTFT s", "ttft_s"), ("Prefill s", "prefill_s"),
    ("Queue s", "queue_s"), ("Overhead s", "overhead_s"), ("Decode tok/s", "decode_tok_s"),
    ("Client tok/s", "decode_client_tok_s"), ("From", "decode_source"), ("Prompt tokens", "prompt_tokens"),
    ("Output", "completion_tokens"), ("Cached", "cached_tokens"), ("ITL p50 s", "itl_p50_s"),
    ("ITL p99 s", "itl_p99_s"), ("Chunks", "chunks"), ("Coalesced", "coalesced"), ("JIT", "jit_events"),
    ("Energy J", "energy_j"), ("Started (UTC)", "started_at"), ("Host", "host"),
)  # fmt: skip


def raw_cell(name: str, row: Row) -> Cell:
    """Return one field of a row as a cell; a length links to the point's rows."""
    value = row.get(name)
    if name == "length":
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


def raw_data(report: ReportInput, folder: Path) -> Markup:
    """Return, as JSON for the page's script, each row's remaining fields and its files."""
    point = itemgetter("length", "pass_index", "mode")
    logs = {point(row): row.get("log_path") for row in report.results.servers}
    hidden = [name for _, name in RAW_COLUMNS]
    details = []
    for row in report.results.rows:
        stem = Path(Point(*point(row)).name + ".parquet")
        tables = {"chunk trace": "traces", "progress": "progress", "server facts": "servers"}
        paths: dict[str, Any] = {name: report.results_folder / table / stem for name, table in tables.items()}
        paths = {"rows": row.get("source"), **paths, "server log": logs.get(point(row))}
        files = {name: quote(os.path.relpath(path, folder)) for name, path in paths.items() if path}
        rest = {name: value for name, value in row.items() if name not in hidden and value not in (None, [])}
        first = {name: rest[name] for name in FIRST_FIELDS if name in rest}
        fields = {name: _full(name, value) for name, value in (first | rest).items()}
        details.append({"files": files, "fields": fields})
    return Markup(json.dumps(details, ensure_ascii=False).replace("<", "\\u003c"))


def _full(name: str, value: Any) -> str:
    text = printable("\n".join(value) if isinstance(value, list) else plain(value), keep="\n")
    if name == "server_counters":
        with suppress(ValueError, AttributeError):  # shown as it is
            text = "\n".join(f"{counter}: {json.dumps(values)}" for counter, values in json.loads(text).items())
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " … (cut; the Parquet has all of it)"
