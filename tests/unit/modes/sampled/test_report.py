"""Sampled prefill in the report: always named so, beside real prefills where there are any."""

from pathlib import Path
from typing import Any

import makereport
import makesamples
import pytest
from longctx.lengths import ladder
from longctx.modes.sampled.estimates import chunk_curve, estimates
from longctx.report import narrative, sections
from longctx.report.figures import draw
from longctx.report.mode import report_facet
from longctx.results import summary
from longctx.results.campaign_results import CampaignResults
from longctx.results.ttft import chunks
from longctx.results.ttft.estimates import with_estimates

MI = 2**20


def sampled_results(rows: list[dict[str, Any]], **changes: Any) -> CampaignResults:
    """Return results as the summary stage makes them from these rows."""
    estimated = estimates(rows, ladder("1Ki", "8Mi"), bound=lambda tokens: 0.6 * makesamples.prefill_s(tokens))
    found = chunks.chunk_rows(rows, [], chunk_curve(rows))
    summarised = with_estimates(summary.summarise(rows, {}), estimated)
    tables = {
        "summary": summarised,
        "estimates": estimated,
        "chunks": found,
        "recipe": {"modes": ["prefill", "sampled"]},
    }
    return CampaignResults("h200", rows, **(tables | changes))


def cold(*names: str, scale: float = 1.0) -> list[dict[str, Any]]:
    return [makesamples.real(ladder(name, name)[0], scale=scale, role="cold") for name in names]


def test_estimates_stand_in_their_own_table_and_never_among_measured_ttft() -> None:
    results = sampled_results([*makesamples.campaign(), *cold("64Ki", "1Mi")])
    table_1, sampled = sections.mode_tables(results)
    assert "Sampled TTFT s" not in table_1.columns
    assert [row[0].text for row in table_1.rows] == ["64Ki", "1Mi"]
    assert sampled.columns[2:5] == ("Sampled TTFT s", "Real TTFT s", "Sampled / real")
    last = sampled.rows[-1]
    assert (last[0].text, last[2].small, last[3].text) == ("8Mi", "112 min", "—")
    assert "Sampled, not measured" in sampled.note
    assert all(row["ttft_s_mean"] is None for row in results.of_mode("sampled"))
    assert [row["ttft_estimate_samples"] for row in results.of_mode("prefill")] == [None, None]
    assert narrative.narrative(results)[1] == (
        "8Mi tokens, sampled, not measured: first token after 112 min ± 0.6%, from 56 samples."
    )


def test_the_deviation_from_real_prefills_is_a_table_and_beyond_the_interval_an_alert() -> None:
    agreeing = sampled_results([*makesamples.campaign(), *cold("64Ki", "1Mi")])
    check, depths, marked = report_facet("sampled").checks(agreeing)
    assert [row[0].text for row in check.rows] == ["64Ki", "1Mi"]
    assert {row[6].text for row in check.rows} == {"yes"}
    assert sum(cell.sort for cell in (row[2] for row in depths.rows)) == MI // makesamples.CHUNK
    assert marked.rows == ()
    assert narrative.alerts(agreeing) == []
    far = sampled_results([*makesamples.campaign(), *cold("1Mi", scale=1.1)])
    check, *_ = report_facet("sampled").checks(far)
    assert check.rows[0][6].text == "NO"
    assert narrative.alerts(far) == [
        "Sampled TTFT of 1Mi: real prefills are outside the interval that the samples alone give"
    ]


def test_the_ttft_figure_has_the_samples_as_a_series_of_its_own(tmp_path: Path) -> None:
    from longctx.report.figures.metric import metric_figure

    results = sampled_results([*makesamples.campaign(), *cold("64Ki", "1Mi")])
    axes = metric_figure(results, [], "ttft_s").axes[0]
    series = {container.get_label(): container[0].get_xdata() for container in axes.containers}
    assert max(series["cold prompt"]) == MI
    assert max(series["sampled, not measured (estimate)"]) == 8 * MI
    decode = metric_figure(results, [], "decode_tok_s").axes[0]
    assert "sampled, not measured (estimate)" not in [text.get_text() for text in decode.get_legend().get_texts()]


def test_the_cost_of_a_chunk_is_drawn_with_real_chunks_and_the_limit(tmp_path: Path) -> None:
    rows = [*makesamples.campaign(), *cold("1Mi")]
    spec = next(figure for figure in report_facet("sampled").figures if figure.name == "chunks")
    axes = spec.draw(sampled_results(rows), []).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["real prefills", "least time the hardware allows", "sampled, 56 requests"]
    real = next(line for line in axes.lines if line.get_label() == "real prefills")
    assert real.get_ydata()[-1] == pytest.approx(makesamples.chunk_s(MI - makesamples.CHUNK))
    nothing = CampaignResults("h200", recipe={"modes": ["sampled"]})
    assert not spec.shows(nothing, [])
    assert "chunks.png" in {Path(path).name for path in draw.draw_all(nothing, [], tmp_path)}


def test_a_length_without_estimate_says_why() -> None:
    rows = [row | {"max_num_batched_tokens": None} for row in makesamples.campaign(passes=1)]
    estimated = estimates(rows, [1024])
    results = makereport.small([row for row in rows if row["length"] == 1024], estimates=estimated)
    (table,) = sections.mode_tables(results)
    assert table.rows[0][2].text == "—"
    assert "max_num_batched_tokens" in table.rows[0][2].small
    assert report_facet("sampled").reach(results) == []
