"""Cost: dollars computed by hand."""

import makerows
import pytest
from longctx.results import cost, summary
from longctx.results.cost import Price


def test_a_node_hour_costs_its_gpus() -> None:
    price = Price(usd_per_gpu_hour=2.0, gpu_count=8)
    assert price.usd(3600.0) == pytest.approx(16.0)
    assert price.usd(None) is None


def test_query_includes_its_answer() -> None:
    assert cost.query_s({"decode_tok_s_mean": 100.0, "max_new_tokens": 101}, 2.0) == pytest.approx(3.0)
    assert cost.query_s({"decode_tok_s_mean": None, "max_new_tokens": 1}, 2.0) == 2.0
    assert cost.query_s({"decode_tok_s_mean": None, "max_new_tokens": 16}, 2.0) is None
    assert cost.query_s({"decode_tok_s_mean": 5.0, "max_new_tokens": 16}, None) is None


def test_summary_prices_each_mode_by_what_it_makes() -> None:
    length = 1 << 20
    rows = [makerows.row(mode, length) for mode in ("prefill", "reuse", "decode_only")]
    price = Price(3.6, 1)  # 0.001 $ a second
    prefill, reuse, decode = summary.summarise(rows, {}, price=price)
    assert prefill["usd_per_prefill"] == pytest.approx(makerows.ttft_s(length) / 1000)
    assert prefill["usd_per_mtok"] == pytest.approx(makerows.ttft_s(length) / 1000 / length * 1e6)
    answer_s = 127 / makerows.decode_tok_s(length)
    assert reuse["usd_per_query"] == pytest.approx((makerows.hot_ttft_s(length) + answer_s) / 1000)
    assert reuse["usd_per_prefill"] is None
    assert decode["usd_per_mtok_out"] == pytest.approx(1e6 / makerows.decode_tok_s(length) / 1000)
    assert decode["usd_per_prefill"] is None
    assert decode["usd_per_mtok"] is None


def test_no_price_no_dollars() -> None:
    found = summary.summarise([makerows.row()], {})[0]
    assert {found[name] for name in found if name.startswith("usd")} == {None}


def test_mode_reuse_alone_knows_what_its_prefix_cost() -> None:
    """At 64Mi a second prefill, only to compare with, would be 11 hours."""
    length = 1 << 18
    resident = makerows.row("prefill", length) | {"mode": "reuse", "recipe_hash": makerows.row("reuse")["recipe_hash"]}
    rows = [resident, *(makerows.row("reuse", length, request_index=i) for i in (1, 2))]
    (found,) = summary.summarise(rows, {})
    assert (found["n"], found["ttft_s_mean"]) == (2, pytest.approx(makerows.hot_ttft_s(length)))
    assert found["prefix_ttft_s_mean"] == pytest.approx(makerows.ttft_s(length))
    failed = makerows.bad_row("timeout", mode="reuse", length=length, role="cold")
    assert summary.summarise([failed], {})[0]["prefix_ttft_s_mean"] is None
