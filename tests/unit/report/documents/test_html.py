"""The HTML report as text: self-contained, escaped, linked from every number to its rows, files and logs."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import makereport
import makerows
import pytest
from longctx.report import palette
from longctx.report.documents import html
from longctx.report.sections import ReportInput
from longctx.results.campaign_results import RANDOM_WEIGHTS

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Collects tags with their attributes and checks that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportInput:
    return makereport.report_input(tmp_path_factory.mktemp("campaign"))


@pytest.fixture(scope="module")
def text(report: ReportInput) -> str:
    return html.to_html(report, report.results_folder)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def small(row: dict[str, Any], **options: Any) -> ReportInput:
    return ReportInput(makereport.small([row], **options))


def test_it_asks_for_nothing_from_anywhere(page: Page, text: str) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "poster", "data", "srcset", "xlink:href"):
            value = attributes.get(name) or ""
            assert not re.match(r"(https?:)?//", value), (tag, value)
    assert [attributes.get("href") for attributes in page.of("link")] == ["data:,"]
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_the_policy_lets_exactly_our_script_run(text: str) -> None:
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script == [(html.TEMPLATES / "report.js").read_text()]
    assert "script-src 'sha256-" in text


def test_the_story_and_table_1_come_first(text: str) -> None:
    order = ['class="lede"', "Table 1.", '<ul class="story">', 'id="figures"', 'id="evidence"', 'id="failures"']
    order += ['id="system"', 'id="reproduce"', 'id="raw"']
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_every_figure_is_inline_and_its_ids_are_its_own(page: Page, report: ReportInput) -> None:
    assert len([1 for attributes in page.of("svg") if attributes.get("role") == "img"]) == len(report.figures)
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for attributes in page.of("use") if (value := attributes.get("xlink:href"))}
    assert wanted
    assert wanted <= set(ids)


def test_figures_follow_the_pages_colours(text: str) -> None:
    figures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.search("|".join(html.FIGURE_COLOURS), figures, re.IGNORECASE)
    assert figures.count(f"var({html.FIGURE_COLOURS[palette.INK]})") > 50


def test_synthetic_labels_stand_at_the_top_and_at_every_figure(text: str, report: ReportInput) -> None:
    assert text.count(f'<span class="badge">{RANDOM_WEIGHTS}</span>') == 1 + len(report.figures)
    real = html.to_html(small(makerows.row(synthetic_weights=False)), Path("."))
    assert "random weights" not in real


def test_numbers_lead_to_rows_that_exist(page: Page, report: ReportInput) -> None:
    targets = {value for attributes in page.of("a") if (value := attributes.get("href") or "").startswith("#rows-")}
    assert "#rows-prefill-64Ki" in targets
    assert "#rows-reuse-1Mi" in targets
    measured = {html.anchor((row["mode"], row["length"])) for row in report.results.rows}
    assert {target[1:] for target in targets} <= measured


def test_missing_numbers_lead_nowhere(text: str) -> None:
    assert not re.search(r"<a [^>]*>—</a>", text)


def test_each_row_leads_to_trace_counters_and_log(text: str, report: ReportInput) -> None:
    found = re.search(r'<script type="application/json" id="raw-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    rows = json.loads(found[1])
    assert len(rows) == len(report.results.rows)
    for row, data in zip(report.results.rows, rows, strict=True):
        assert (report.results_folder / unquote(data["files"]["rows"])).resolve() == Path(row["source"]).resolve()
        assert data["files"]["chunk trace"].startswith("traces/")
        assert data["files"]["server log"].endswith(".server.log")
        if row["status"] == "ok":
            assert "request_prefill_time_seconds_sum" in data["fields"]["server_counters"]


def test_long_counters_are_cut_and_say_so(report: ReportInput) -> None:
    counters = json.dumps({f"vllm:counter_{i}": [0.0, 1.0] for i in range(2000)})
    text = html.to_html(small(makerows.row(server_counters=counters)), Path("."))
    assert "(cut; the Parquet has all of it)" in text
    assert "counter_1999" not in text


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' & </td></table>"


def test_nothing_that_a_server_says_becomes_markup() -> None:
    row = makerows.bad_row("error_event", detail=HOSTILE) | {"log_lines": [HOSTILE], "host": HOSTILE, "gpu": HOSTILE}
    server = {
        **makerows.servers([row])[0],
        "log_path": f"logs/{HOSTILE}",
        "contract": json.dumps([{"setting": HOSTILE, "asked": HOSTILE, "actual": None, "source": "log", "ok": False}]),
    }
    results = makereport.small([row], servers=[server], recipe={HOSTILE: HOSTILE}, subtitle=HOSTILE, damaged=[HOSTILE])
    report = ReportInput(replace(results, name=HOSTILE), command=HOSTILE)
    text = html.to_html(report, Path("."))
    page = Page(text)
    assert len(page.of("script")) == 2
    assert page.of("img") == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_campaigns_in_every_state_build() -> None:
    one_token = makerows.row(ttft_s=1.0, decode_tok_s=None)
    states = [[], [makerows.bad_row("timeout")], [makerows.row("decode_only")], [makerows.row("reuse")], [one_token]]
    for rows, expected in [([], {("prefill", 4096): 3}), *((state, {}) for state in states)]:
        text = html.to_html(ReportInput(makereport.small(rows, expected)), Path("."))
        Page(text)
        assert not re.search(r">\s*(nan|inf|None)\s*<", text, re.IGNORECASE)
