"""What a resident prefix saves: the pairs of queries, their table, sentence and figure."""

from typing import Any

import makereport
import makerows
import pytest
from longctx.modes.reuse.report import QueryPair, amortisation_figure, amortisation_table, query_pairs
from longctx.report import narrative
from longctx.report.figures import draw
from longctx.results import summary
from longctx.results.cost import Price


def test_amortisation_falls_from_cold_to_hot() -> None:
    summarised = summary.summarise(makerows.campaign(), makerows.expected(), makerows.plan())
    results = makereport.of_summary(summarised, price=Price(3.6, 1))
    axes = amortisation_figure(results).axes[0]
    counts, times = next(line.get_data() for line in axes.lines if str(line.get_label()).startswith("1Mi"))
    pair = query_pairs(results)[-1]
    assert times[0] == pytest.approx(pair.cold_s)
    assert times[-1] == pytest.approx((pair.cold_s + (counts[-1] - 1) * pair.hot_s) / counts[-1])
    assert "3.6 per GPU-hour" in axes.child_axes[0].get_ylabel()


LENGTH = 4096


def queries(*times: tuple[float, bool], cold: dict[str, Any] | None = None) -> list[str]:
    """Return what a report says of hot queries, each with its TTFT in s and whether that is late."""
    rows = [makerows.row("prefill", LENGTH, **(cold or {"ttft_s": 1.0, "prefill_s": 0.9}))]
    for index, (ttft_s, late) in enumerate(times, 1):
        marks = ["client_starved", "first_token_late"] if late else []
        rows.append(makerows.row("reuse", LENGTH, request_index=index, ttft_s=ttft_s, prefill_s=0.009, reasons=marks))
    return [text for text in narrative.narrative(makereport.small(rows)) if "resident prefix" in text]


def test_the_headline_is_of_what_is_not_late() -> None:
    """As measured on a busy machine of two cores."""
    (text,) = queries((0.015, False), (0.161, True), (0.171, True))
    assert text.endswith("first token after 0.01 s (n = 1: 2 late ones left out) instead of 1.00 s (67 times sooner).")


SERVER = "by the server's prefill times of n = {} and 1, since the client read every first token of one of them late"


def test_where_every_query_was_late_the_headline_is_the_server_s_clock_on_both_sides() -> None:
    (text,) = queries((0.161, True), (0.171, True))
    assert "first token after 9.00 ms instead of 0.90 s (100 times sooner" in text
    assert SERVER.format(2) in text


def test_a_cold_prompt_that_was_late_takes_the_server_s_clock_too() -> None:
    (text,) = queries((0.015, False), cold={"ttft_s": 3.0, "prefill_s": 0.9, "reasons": ["first_token_late"]})
    assert "first token after 9.00 ms instead of 0.90 s (100 times sooner" in text
    assert SERVER.format(1) in text


def test_without_a_server_s_clock_nothing_is_claimed_of_late_queries() -> None:
    lost = {"ttft_s": 3.0, "prefill_s": None, "reasons": ["first_token_late"]}
    assert queries((0.015, False), cold=lost) == []


def test_the_table_and_the_figure_say_whose_clock_it_is() -> None:
    marks = {"ttft_s": 0.2, "prefill_s": 0.009, "reasons": ["client_starved"]}
    rows = [makerows.row("prefill", LENGTH, ttft_s=1.0, prefill_s=0.9), makerows.row("reuse", LENGTH, **marks)]
    results, answer_s = makereport.small(rows), 127 / makerows.decode_tok_s(LENGTH)
    table = amortisation_table(results)
    assert [cell.sort for cell in table.rows[0][1:3]] == [
        pytest.approx(0.9 + answer_s),
        pytest.approx(0.009 + answer_s),
    ]
    assert "the server's prefill time stands for TTFT" in table.note
    labels = [str(line.get_label()) for line in amortisation_figure(results).axes[0].lines]
    assert any("server's clock" in label for label in labels)
    assert results.summary[1]["ttft_s_mean"] is None
    assert results.summary[1]["usd_per_query"] is None


def test_amortisation_by_hand() -> None:
    pair = QueryPair({}, hot_s=2.0, cold_s=100.0)
    assert (pair.total_s(1), pair.total_s(10)) == (100.0, 118.0)
    assert (pair.total_cell(1).small, pair.total_cell(10).small) == ("1.0× less", "8.5× less")


def test_without_queries_there_is_nothing_to_show() -> None:
    assert query_pairs(makereport.small([makerows.row()])) == []


def test_the_mode_alone_knows_what_its_prefix_cost() -> None:
    """At 64Mi a second prefill, only to compare with, would be 11 hours."""
    length = 1 << 18
    resident = makerows.row("prefill", length) | {"mode": "reuse", "recipe_hash": makerows.row("reuse")["recipe_hash"]}
    rows = [resident, *(makerows.row("reuse", length, request_index=i) for i in (1, 2))]
    alone = makereport.small(rows)
    assert amortisation_table(alone).rows[0][1].sort == pytest.approx(
        makerows.ttft_s(length) + 127 / makerows.decode_tok_s(length)
    )
    assert any("instead of" in sentence for sentence in narrative.narrative(alone))
    assert "amortisation" in [figure.name for figure in draw.shown_figures(alone, [])]
    both = makereport.small([*rows, makerows.row("prefill", length, ttft_s=100.0)])
    assert query_pairs(both)[0].cold_s > 100, "cold prompts where there are any"
