"""The HTML report in a real Chromium: no error, no request, first screen, sorting, filtering, dark mode and print."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import makereport
import pytest
from longctx.report.documents import html

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.process,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium, or set CHROMIUM"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("campaign")
    path = folder / "report.html"
    path.write_text(html.to_html(makereport.report_input(folder), folder), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page and everything that it complained about or asked for."""

    def __init__(self, browser: "playwright.Browser", url: str, **options: object) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def column(self, table: str, name: str) -> list[str]:
        """Return the shown texts of a column."""
        heads = self.page.locator(f"{table} thead th").all_inner_texts()
        index = next(i for i, head in enumerate(heads) if head.strip().startswith(name))
        cells = self.page.locator(f"{table} tbody tr:not([hidden]) td:nth-child({index + 1})")
        return [text.strip() for text in cells.all_inner_texts()]


def test_no_complaint_and_no_request(browser: "playwright.Browser", url: str) -> None:
    with Watched(browser, url, viewport=DESKTOP) as watched:
        watched.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        watched.page.locator("#raw tbody button").first.click()
        assert watched.said == []
        assert watched.asked == [url]


@pytest.mark.parametrize(("viewport", "rows"), [(DESKTOP, 12), (PHONE, 8)], ids=["desktop", "phone"])
def test_table_1_and_the_story_are_on_the_first_screen(
    browser: "playwright.Browser", url: str, viewport: dict[str, int], rows: int
) -> None:
    with Watched(browser, url, viewport=viewport) as watched:
        lede = watched.page.locator(".lede").bounding_box()
        last = watched.page.locator("#table-1 tbody tr").nth(rows - 1).bounding_box()
        assert lede is not None
        assert last is not None
        assert lede["y"] + lede["height"] < viewport["height"]
        assert last["y"] + last["height"] <= viewport["height"]
        shown = watched.page.locator("#table-1 tbody td:nth-child(4)").first.bounding_box()
        assert shown is not None
        assert shown["x"] + shown["width"] <= viewport["width"]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, {"width": 768, "height": 1024}])
def test_the_page_never_scrolls_sideways(browser: "playwright.Browser", url: str, viewport: dict[str, int]) -> None:
    with Watched(browser, url, viewport=viewport) as watched:
        assert watched.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


def test_columns_sort_by_value_with_missing_last(browser: "playwright.Browser", url: str) -> None:
    with Watched(browser, url, viewport=DESKTOP) as watched:
        head = watched.page.locator("#raw th", has_text="TTFT s")
        for direction in ("ascending", "descending"):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == direction
            texts = watched.column("#raw", "TTFT s")
            known = [float(text.replace(",", "")) for text in texts if text != "—"]
            assert known == sorted(known, reverse=direction == "descending")
            assert texts[len(known) :] == ["—"] * (len(texts) - len(known))
            assert 0 < len(known) < len(texts)


def test_lengths_sort_as_numbers(browser: "playwright.Browser", url: str) -> None:
    with Watched(browser, url, viewport=DESKTOP) as watched:
        watched.page.locator("#raw th button", has_text="Prompt").first.click()
        texts = watched.column("#raw", "Prompt")
        assert (texts[0], texts[-1]) == ("1Ki", "16Mi")


def test_rows_filter_by_words(browser: "playwright.Browser", url: str) -> None:
    with Watched(browser, url, viewport=DESKTOP) as watched:
        watched.page.locator("#raw input").fill("failed decode_only")
        assert watched.column("#raw", "Reasons") == ["kv_too_small"]
        assert watched.page.locator("#raw .count").inner_text().startswith("1 of ")
        watched.page.locator("#raw input").fill("=1Ki =prefill")
        assert set(watched.column("#raw", "Prompt")) == {"1Ki"}
        watched.page.locator("#raw input").fill("")
        assert len(watched.column("#raw", "Prompt")) > 100


def test_a_number_leads_to_its_rows_their_trace_counters_and_log(browser: "playwright.Browser", url: str) -> None:
    with Watched(browser, url, viewport=DESKTOP) as watched:
        watched.page.locator("#table-1 a", has_text="121").click()
        assert set(watched.column("#raw", "Mode")) == {"prefill"}
        assert set(watched.column("#raw", "Prompt")) == {"1Mi"}
        # After sorting, each button still opens its own row.
        watched.page.locator("#raw th button", has_text="Pass").click()
        watched.page.locator("#raw th button", has_text="Pass").click()
        row = watched.page.locator("#raw tbody tr:not([hidden])").first
        assert "server_died" in row.inner_text()
        row.locator("button").click()
        dialog = watched.page.locator("dialog[open]")
        assert "OutOfMemoryError" in dialog.inner_text()
        links = {link.inner_text(): link.get_attribute("href") for link in dialog.locator("a").all()}
        assert links["chunk trace"] == "traces/1Mi/pass3.parquet"
        assert links["server log"] == "logs/1Mi/pass3.server.log"
        dialog.locator("button").click()
        assert watched.page.locator("dialog[open]").count() == 0
        assert watched.said == []


def luminance(colour: str) -> float:
    """Return WCAG's relative luminance of 'rgb(r, g, b)'."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


STYLE_OF = "([selector, property]) => getComputedStyle(document.querySelector(selector))[property]"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_are_readable_in_light_and_dark(browser: "playwright.Browser", url: str, scheme: str) -> None:
    with Watched(browser, url, viewport=DESKTOP, color_scheme=scheme) as watched:

        def of(selector: str, name: str) -> str:
            return str(watched.page.evaluate(STYLE_OF, [selector, name]))

        page, paper = of("body", "backgroundColor"), of("#table-1", "backgroundColor")
        assert (luminance(page) < 0.1) == (scheme == "dark")
        for colour in (of("#table-1 td", "color"), of("#table-1 td a", "color"), of("#table-1 th", "color")):
            assert contrast(colour, paper) >= 4.5
        assert contrast(of("header .subtitle", "color"), page) >= 4.5
        drawn = of("#figure-ttft svg #ttft-patch_1 path", "fill")
        assert drawn == paper
        for variable, least in (("--ink", 7), ("--blue", 3), ("--vermillion", 3), ("--green", 3), ("--muted", 4.5)):
            colour = watched.page.evaluate(
                "name => { const e = document.createElement('i'); e.style.color = `var(${name})`;"
                " document.body.append(e); return getComputedStyle(e).color }",
                variable,
            )
            assert contrast(colour, paper) >= least, variable


def test_it_prints(browser: "playwright.Browser", url: str, tmp_path: Path) -> None:
    with Watched(browser, url, viewport=DESKTOP, color_scheme="dark") as watched:
        pdf = watched.page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert 4 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 20
        watched.page.emulate_media(media="print")
        assert not watched.page.locator("#raw").is_visible()
        assert watched.page.locator("#table-1").is_visible()
        assert luminance(watched.page.evaluate(STYLE_OF, ["#table-1", "color"])) < 0.1


def test_the_keyboard_reaches_sorting(browser: "playwright.Browser", url: str) -> None:
    with Watched(browser, url, viewport=DESKTOP) as watched:
        button = watched.page.locator("#raw th button", has_text="Status")
        button.focus()
        watched.page.keyboard.press("Enter")
        assert watched.page.locator("#raw th", has_text="Status").get_attribute("aria-sort") == "ascending"
