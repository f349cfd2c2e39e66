"""Reports: the story, Table 1 in the published form, and nothing that a reader must know left out."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import makereport
import makerows
import pytest
from longctx.campaign import campaign
from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.report import evidence, faults, narrative, provenance, sections, table_cells
from longctx.report.documents import pages
from longctx.report.documents.html import to_html
from longctx.report.documents.markdown import to_markdown
from longctx.report.mode import report_facet
from longctx.report.sections import ReportInput
from longctx.results import summary
from longctx.results.campaign_results import CampaignResults
from longctx.results.compare import comparison, curves
from longctx.storage import parquet, schemas
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
PUBLISHED = makereport.PUBLISHED


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ReportInput:
    return makereport.report_input(tmp_path_factory.mktemp("campaign"))


@pytest.fixture
def results(report: ReportInput) -> CampaignResults:
    return report.results


of = makereport.small


def texts(table: table_cells.Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def markdown(source: ReportInput | CampaignResults) -> str:
    report = source if isinstance(source, ReportInput) else ReportInput(source)
    return to_markdown(report, report.results_folder)


def test_table_1_has_the_published_form(results: CampaignResults) -> None:
    table = evidence.table_1(results)
    assert table.columns[:4] == ("Prompt", "Tokens", "TTFT s", "Decode tok/s")
    rows = {row[0]: row for row in texts(table)}
    assert rows["64Ki"][1] == "65,536"
    assert re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", rows["64Ki"][2])
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d", rows["64Ki"][3])
    assert rows["2Mi"][2:] == ["—", "—", "0", "not measured"]
    assert rows["1Mi"][4:] == ["2", "1 failed (server_died)"]
    assert rows["512Ki"][5] == "resumed"


def test_one_run_has_no_plus_minus() -> None:
    row = texts(evidence.table_1(of([makerows.row(ttft_s=18.4412, decode_tok_s=211.53)])))[0]
    assert row[:5] == ["4Ki", "4,096", "18.44", "211.5", "1"]


def test_published_numbers_are_written_as_published() -> None:
    found = {"ttft_s_mean": 40171.67, "ttft_s_std": 115.49, "decode_tok_s_mean": 16.6, "decode_tok_s_std": 0.0}
    row = summary.summarise([makerows.row(length=1 << 26)], {})[0] | found
    assert table_cells.ttft_cell(row).text == "40171.67 ± 115.49"
    assert table_cells.ttft_cell(row).small == "11.2 h"
    assert table_cells.decode_cell(row).text == "16.6 ± 0.0"


def test_filled_caches_have_their_own_table_without_ttft(results: CampaignResults) -> None:
    tables_of_modes = evidence.other_mode_tables(results)
    filled = tables_of_modes[-1]
    assert "TTFT s" not in filled.columns
    assert "filled, not prefilled" in filled.note
    assert texts(filled)[-1] == ["16Mi", "16,777,216", "—", "0", "1 failed (kv_too_small); 2 missing"]


def test_partial_campaigns_say_so(results: CampaignResults) -> None:
    said = narrative.partial(results)
    assert said.startswith("Partial: 5 requests not measured yet, 2 failed")
    assert "cold prompt 2Mi" in said
    assert said in markdown(results)
    assert narrative.partial(of([makerows.row()], {("prefill", 4096): 1})) == ""


LATE = {"reasons": ["first_token_late"]}


def test_the_story_and_table_1_say_how_many_ttfts_are_left() -> None:
    found = of([makerows.row(ttft_s=2.0), makerows.row(pass_index=2, ttft_s=9.0, **LATE)])
    assert any("first token after 2.00 s (n = 1: 1 late one left out)" in text for text in narrative.narrative(found))
    assert "TTFT of n = 1: 1 late, in no mean" in markdown(found)


def test_the_story_takes_the_servers_clock_where_every_ttft_is_late() -> None:
    found = of([makerows.row(ttft_s=9.0, prefill_s=2.0, **LATE)])
    assert any(
        "cold: first token after 2.00 s (prefill by the server's clock, n = 1" in t for t in narrative.narrative(found)
    )


def test_a_collected_stream_without_a_servers_clock_has_a_bound() -> None:
    lost = {"ttft_s": 9.0, "prefill_s": None, "overhead_s": None, "decode_tok_s": None} | LATE
    found = of([makerows.row(**lost), makerows.row(pass_index=2, **lost | {"ttft_s": 9.5})])
    text = narrative.narrative(found)[0]
    assert "first token after 9.50 s at most; the client read every one late, so only a bound is known" in text
    assert "Nothing has been measured" not in markdown(found)


def test_requests_without_a_proven_value_are_not_called_unmeasured() -> None:
    nothing = dict.fromkeys(("ttft_s", "prefill_s", "overhead_s", "decode_tok_s"))
    (text,) = narrative.narrative(of([makerows.row(**nothing, reasons=["first_token_unseen"])]))
    assert text == "Requests were answered, but none has a value that is proven: see the marks."


def test_story_tells_how_far_it_got(results: CampaignResults) -> None:
    said = " ".join(narrative.narrative(results))
    assert "1Mi tokens, cold: first token after 2.02 min" in said
    assert "Decode at 8Mi with a filled KV cache: 64." in said
    assert "Behind a resident prefix of 1Mi" in said
    assert "TTFT grows as L^1.66 over 128Ki to 1Mi" in said
    assert "8Mi fits and 16Mi does not" in said
    assert re.search(r"prefill at 1Mi 70% of peak", said)
    assert narrative.narrative(of([], {("prefill", 1024): 1})) == ["Nothing has been measured yet."]


def test_the_story_tells_a_continued_prefill_s_time() -> None:
    continued = {"resumed_from": 256_768, "stitched_prefill_s": 34.25, "stitched_error_s": 1.01, "ttft_s": None}
    unknown = {"resumed_from": 64, "stitched_prefill_s": None, "stitched_error_s": None, "ttft_s": None}
    rows = [makerows.row(length=n, reasons=["resumed"], **more) for n, more in ((2**19, continued), (2**20, unknown))]
    told = [sentence for sentence in narrative.narrative(of(rows)) if "continued" in sentence]
    assert told == [
        "512Ki, cold: interrupted, and continued from token 256,768 of a checkpoint; the prefill put together takes"
        " 34.2 s ± 1.01 s."
    ]


def test_synthetic_labels_stand_wherever_numbers_do(report: ReportInput) -> None:
    text = markdown(report)
    assert text.count("random weights") >= 3 + len(report.figures)
    real = of([makerows.row(synthetic_weights=False)])
    assert "random weights" not in markdown(real)
    assert "filled" not in markdown(real)


def test_every_table_of_numbers_says_what_is_not_real(report: ReportInput) -> None:
    shown = [table for table in sections.evidence_tables(report) if table.rows]
    assert len(shown) == 10
    assert [table.title for table in shown if "andom weights" not in table.note] == []
    assert "decode at 8Mi with a filled KV cache 50% of memory bandwidth" in " ".join(
        narrative.narrative(report.results)
    )


def test_a_comparison_names_both_systems_and_what_is_lost(results: CampaignResults) -> None:
    published = curves.read_curve(PUBLISHED)
    rows = [makerows.row(length=1024), makerows.bad_row("server_died", length=1 << 20)]
    found = comparison.compare(curves.curve_from_summary(summary.summarise(rows, {})), published)
    table = evidence.comparison_table(found)
    assert texts(table)[1] == ["1Mi", "cold prompt", "TTFT", "—", "18.44 ± 0.24", "—", "—", "no value here"]
    assert "this run 1 × NVIDIA H200, random weights; the other 8 × AMD Instinct MI355X" in table.note


def test_failures_and_doubts_have_reason_and_detail(results: CampaignResults) -> None:
    rows = texts(faults.failures(results))
    assert ["prefill 1Mi pass 3", "cold 0", "failed", "server_died", "the server process ended"] in [
        r[:5] for r in rows
    ]
    assert {row[2] for row in rows} == {"failed", "doubtful"}
    assert texts(faults.marks(results)) == [
        ["resumed", "prefill continued from a checkpoint, so TTFT is not a cold TTFT", "1", "512Ki"]
    ]


def test_all_failed_still_builds() -> None:
    rows = [makerows.bad_row("error_event", detail="400 Bad Request", pass_index=p) for p in (1, 2, 3)]
    text = markdown(of(rows, {("prefill", 4096): 3}))
    assert "3 failed (error_event)" in text
    assert "400 Bad Request" in text
    assert not re.search(r"\b(nan|inf|0\.0)\b", text, re.IGNORECASE)


def test_nothing_at_all_still_builds() -> None:
    assert "Nothing has been measured yet." in markdown(CampaignResults("empty"))


def test_lost_checkpoints_are_an_alert() -> None:
    row = makerows.row(reasons=["no_external_hits"], reason="no_external_hits", ttft_s=None)
    assert any("not one token was taken back" in text for text in narrative.alerts(of([row])))


def test_plan_and_server_stand_side_by_side() -> None:
    rows = [makerows.row("prefill", length, 1) for length in (1024, 2048, 4096)]
    for row in rows:
        row |= {"weights_bytes": round(91.56 * 2**30), "kv_cache_bytes": None}
    rows[2]["kv_capacity_tokens"] = 9_000_000
    found = texts(provenance.plan_against_server(replace(of(rows), plan=makerows.plan())))
    weights = f"{98_357_000_000 / 2**30:.1f} GiB"
    assert found == [
        ["KV capacity, tokens", "1Ki to 2Ki", "9,830,000", "9,798,743", "+0.3%"],
        ["KV capacity, tokens", "4Ki", "9,830,000", "9,000,000", "+9.2%"],
        ["Weights per GPU", "1Ki to 4Ki", weights, "91.6 GiB", "0.0%"],
    ]
    silent = [row | {"weights_bytes": None, "kv_capacity_tokens": None} for row in rows]
    assert texts(provenance.plan_against_server(of(silent))) == []


def test_broken_contract_is_an_alert(results: CampaignResults) -> None:
    assert "1 setting differs from what was asked for: see Contract" in narrative.alerts(results)
    kept = {row[0]: row[-1] for row in texts(provenance.contract(results))}
    assert kept == {
        "cudagraph_mode": "no, differs",
        "aiter_version": "not proven",
        "attention_backend": "yes",
        "kv_cache_dtype": "yes",
    }


@pytest.mark.parametrize("asked", [1, None])
def test_a_setting_that_was_asked_for_and_not_verified_is_an_alert(results: CampaignResults, asked: int | None) -> None:
    entry = {"setting": "max_num_seqs", "asked": asked, "actual": None, "source": "unproven", "ok": None}
    found = narrative.alerts(replace(results, servers=[{"contract": json.dumps([entry])}]))
    assert found == (["Not proven by what the servers say: max_num_seqs: see Contract"] if asked else [])


def test_damaged_files_are_an_alert(results: CampaignResults) -> None:
    assert "Left out: x.parquet" in markdown(replace(results, damaged=["x.parquet"]))
    text = markdown(replace(results, damaged=[f"{number}.parquet" for number in range(43)]))
    assert text.count("Left out:") == 6
    assert "Left out: 38 more files" in text


def test_plan_against_measured(results: CampaignResults) -> None:
    row = next(row for row in texts(evidence.prefill_limits(results)) if row[0] == "64Ki")
    assert row[3] == f"{results.of_mode('prefill')[6]['ttft_s_mean'] / (1.04 * makerows.ttft_s(65536)) - 1:+.1%}"
    assert row[5].endswith("%")


def test_filled_against_prefilled(results: CampaignResults) -> None:
    rows = texts(report_facet("decode_only").checks(results)[0])
    assert [row[0] for row in rows][-1] == "1Mi"
    assert all(abs(float(row[3].rstrip("%"))) < 5 for row in rows)


def test_hosts_are_kept_apart() -> None:
    rows = [makerows.row(pass_index=i, host=f"node-{i % 2}") for i in range(4)]
    assert [row[2] for row in texts(provenance.hosts(of(rows)))] == ["node-0", "node-1"]
    assert "± over 2 nodes, see Node to node" in texts(evidence.table_1(of(rows)))[0]
    assert not provenance.hosts(of([makerows.row()])).rows
    assert "Notes" not in evidence.table_1(of([makerows.row()])).columns


def test_environment_lists_what_differs() -> None:
    rows = [makerows.row(), makerows.row(pass_index=2, kernel="6.9")]
    found = dict(texts(provenance.environment(of(rows))))
    assert found["kernel"] == "6.8.0 (1 servers); 6.9 (1 servers)"
    assert found["memory_bytes"] == "128 GiB"


def test_cycled_corpus_is_said(results: CampaignResults) -> None:
    assert "read up to 2 times" in markdown(results)
    assert faults.corpus_note(replace(results, validation=makerows.validation(1 << 30))) == ""


def test_how_to_reproduce(report: ReportInput) -> None:
    text = markdown(report)
    assert "snakemake --cores 1 --configfile workflow/campaigns/h200.yaml" in text
    assert "max_new_tokens: 128" in text
    assert evidence.OVERHEAD in text.replace("\\", "")


def test_every_table_is_well_formed_markdown(report: ReportInput) -> None:
    """As many cells in every row as in its head, after a real Markdown parser has read it."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown(report))
    counts: list[set[int]] = []
    for token in tokens:
        if token.type == "table_open":
            counts.append(set())
        if token.type == "tr_open":
            cells = 0
        elif token.type in ("td_open", "th_open"):
            cells += 1
        elif token.type == "tr_close":
            counts[-1].add(cells)
    assert len(counts) > 12
    assert all(len(one) == 1 for one in counts)


def test_every_heading_stands_apart(report: ReportInput) -> None:
    marked = [
        row | ({"reason": "client_starved", "reasons": ["client_starved"]} if row["status"] == "ok" else {})
        for row in report.results.rows
        if row["status"] == "ok"
    ]
    lines = markdown(replace(report, results=replace(report.results, rows=marked))).splitlines()
    assert "None." in lines
    assert all(lines[i - 1] == "" for i, line in enumerate(lines) if i and line.startswith("#"))


HOSTILE = "a | b <script>alert(1)</script> `x` [y](http://z) ![i](q) $1 *b*\n# head"


def test_a_servers_words_cannot_break_the_markdown() -> None:
    text = markdown(of([makerows.bad_row("error_event", detail=HOSTILE)]))
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script>" not in html
    assert "href" not in html
    assert "<img" not in html
    assert "<h1>head" not in html
    cell = re.search(r"<td>(a \| b .*?)</td>", html)
    assert cell is not None


def test_a_servers_control_characters_stay_out_of_the_reports(tmp_path: Path) -> None:
    """Of rows that an earlier version wrote, too: report.md would be a binary file to many programs."""
    unfit = "\x1b[31mred\x1b[0m \x07\x00 \u202e"
    rows = [makerows.bad_row("error_event", detail=unfit), makerows.bad_row("cached", "doubtful", detail=unfit)]
    rows = [row | {"log_lines": [unfit], "vllm_version": unfit, "model": unfit} for row in rows]
    source = replace(makereport.report_input(tmp_path), results=makereport.small(rows))
    for text in (to_markdown(source, tmp_path), to_html(source, tmp_path)):
        assert "red" in text
        assert not set(text) & set("\x1b\x07\x00\u202e")


def test_links_lead_to_files(report: ReportInput) -> None:
    targets = re.findall(r"\]\(<([^>]+)>\)", markdown(report))
    assert len(targets) > 10
    for target in targets:
        assert (report.results_folder / target).exists(), target


def test_comparison_in_both_normalisations(report: ReportInput) -> None:
    text = markdown(report)
    assert "## Against 8 × MI355X (published)\n" in text
    assert "## Against 8 × MI355X (published) per GPU\n" in text


def test_only_comparable_lengths_are_in_the_ratio_table(report: ReportInput) -> None:
    rows = texts(evidence.comparison_table(report.comparisons[0]))
    assert {row[0] for row in rows} == {"1Ki", "64Ki", "1Mi"}


def test_cost_without_price_is_silent(results: CampaignResults) -> None:
    assert not evidence.costs(replace(results, price=None)).rows
    assert "$ / cold prefill" in evidence.costs(results).columns


def test_numbers_keep_their_digits() -> None:
    assert [table_cells.number(value).text for value in (36.0, 126.4, 0.131, 9798743.0, 0.0, None, 1e-5)] == [
        "36.0",
        "126",
        "0.131",
        "9,798,743",
        "0",
        "—",
        "1.00e-05",
    ]


def test_curve_of_another_run_with_random_weights_says_so(results: CampaignResults) -> None:
    probe = curves.read_curve(ROOT / "resources" / "results" / "h200-probe.csv")
    found = comparison.compare(curves.curve_from_summary(results.summary), probe)
    assert "random weights" in evidence.comparison_table(found).note


def test_a_section_that_fails_costs_itself(report: ReportInput, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "energy", broken)
    monkeypatch.setattr(narrative, "_growth", broken)
    text = markdown(report)
    assert "KeyError: 'no such column'" in text
    assert "A sentence could not be written (broken: KeyError('no such column'))." in text
    assert "## Energy" not in text
    assert {"## Cost", "## Two clocks", "## Contract"} <= set(text.splitlines())


@pytest.mark.parametrize("fails", ["to_markdown", "to_html"])
def test_a_report_that_fails_costs_itself(
    fails: str, report: ReportInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> str:
        raise RecursionError("<deep>")

    monkeypatch.setattr(pages, fails, fail)
    pages.write_reports(report, tmp_path / "report.md", tmp_path / "report.html")
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    lost, other = (".md", ".html") if fails == "to_markdown" else (".html", ".md")
    assert "could not be made: RecursionError" in texts[lost]
    assert "<deep>" not in texts[".html"]
    assert "Contract" in texts[other]
    assert "could not be made" in caplog.text
    monkeypatch.setattr(pages, "to_markdown", fail)
    monkeypatch.setattr(pages, "to_html", fail)
    with pytest.raises(DataError, match="RecursionError"):
        pages.write_reports(report, tmp_path / "report.md", tmp_path / "report.html")


def test_an_alert_that_fails_costs_itself(results: CampaignResults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrative, "_contract", broken)
    alerts = narrative.alerts(replace(results, damaged=("one.parquet",)))
    assert "Left out: one.parquet" in alerts
    assert "A sentence could not be written (broken: KeyError('no such column'))." in alerts


def test_a_fit_without_numbers_is_shown_with_its_reason(results: CampaignResults) -> None:
    lost = {"campaign": "h200", "mode": "prefill", "name": "ttft_power", "n": 3, "length_min": 4095, "length_max": 4097}
    lost |= dict.fromkeys(("coefficient", "exponent", "exponent_std", "intercept_s", "slope_s", "slope_std_s", "r2"))
    found = replace(results, fits=[lost | {"reason": "too near"}])
    assert "none: too near" in str(texts(evidence.fits(found)))
    assert not any("grows as" in sentence for sentence in narrative.narrative(found))


def broken(results: CampaignResults) -> table_cells.Table:
    raise KeyError("no such column")


TABLES = ("summary", "fits", "estimates", "chunks", "rows", "servers", "plan")
FIGURES = "results/small/figures"
ROWS = ("--rows", *(f"results/small/measurements/{length}/pass1.parquet" for length in ("8Ki", "4Ki")))


def write_campaign(folder: Path) -> None:
    """Lay out a small campaign as the pipeline would, with one of its two passes."""
    path = folder / "config.yaml"
    path.write_text("name: small\nlengths: [4Ki, 8Ki]\npasses: 2\nmodel: {source: synthetic, weights: dummy}\n")
    recipe_hash = campaign.load(path).recipe_hash("prefill")
    for length in (4096, 8192):
        row = makerows.row(length=length, recipe_hash=recipe_hash)
        path = folder / "results" / "small" / "measurements" / format_length(length) / "pass1.parquet"
        parquet.write_rows(path, schemas.MEASUREMENTS, [row], {"recipe_hash": recipe_hash})


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), "--config-file", "config.yaml", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.process
def test_the_scripts_go_from_rows_to_reports(tmp_path: Path) -> None:
    write_campaign(tmp_path)
    tables = [word for name in TABLES for word in (f"--{name}", f"results/small/{name}.parquet")]
    reports = ("--figures", FIGURES, "--md", "results/small/report.md", "--html", "results/small/report.html")
    for script, arguments in (
        ("summary.py", ROWS),
        ("figures.py", (*tables, "--out-dir", FIGURES)),
        ("report.py", (*tables, *reports)),
    ):
        done = run(script, tmp_path, *arguments)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    results = tmp_path / "results" / "small"
    assert "2 requests not measured yet" in (results / "report.md").read_text()
    assert (results / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert parquet.read_rows(results / "summary.parquet", schemas.SUMMARY)[0]["n_missing"] == 1
    assert (results / "figures" / "ttft.svg").exists()


@pytest.mark.process
def test_a_run_to_compare_with_that_cannot_be_read_costs_its_comparison_alone(tmp_path: Path) -> None:
    write_campaign(tmp_path)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    compare = ("--compare", "torn.parquet", "other.csv", str(ROOT / "resources" / "results" / "mi355x-published.csv"))
    tables = [word for name in TABLES for word in (f"--{name}", f"results/small/{name}.parquet")]
    reports = ("--figures", FIGURES, "--md", "results/small/report.md", "--html", "results/small/report.html")
    assert run("summary.py", tmp_path, *ROWS).returncode == 0
    for script, arguments in (("figures.py", ("--out-dir", FIGURES)), ("report.py", reports)):
        done = run(script, tmp_path, *tables, *compare, *arguments)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    text = (tmp_path / "results" / "small" / "report.md").read_text(encoding="utf-8")
    assert "Left out: compare: torn.parquet is no summary" in text
    assert "Left out: other.csv: columns missing for a comparison" in text


@pytest.mark.process
def test_one_length_alone(tmp_path: Path) -> None:
    write_campaign(tmp_path)
    assert run("summary.py", tmp_path, *ROWS[:2], "--length", "8Ki", "--out", "8Ki.parquet").returncode == 0
    assert [row["length"] for row in parquet.read_rows(tmp_path / "8Ki.parquet")] == [8192]


@pytest.mark.process
def test_a_corrupt_measurement_stops_the_summary_in_one_sentence(tmp_path: Path) -> None:
    write_campaign(tmp_path)
    broken = tmp_path / "results" / "small" / "measurements" / "4Ki" / "pass1.parquet"
    broken.write_bytes(broken.read_bytes()[:100])
    done = run("summary.py", tmp_path, *ROWS)
    assert done.returncode == 1
    assert done.stderr.startswith("error: results/small/measurements/4Ki/pass1.parquet: not a readable Parquet file")
    assert "Traceback" not in done.stderr
