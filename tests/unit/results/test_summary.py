"""Summary: rows of a known truth in, every number out as computed independently; faults counted, never averaged."""

import csv
import math
import statistics
from pathlib import Path
from typing import Any

import makerows
import pytest
from longctx.errors import DataError
from longctx.results import export, fits, summary
from longctx.storage import parquet, schemas
from makerows import bad_row, row


def point(rows: list[dict[str, Any]], mode: str, length: int) -> dict[str, Any]:
    found = [one for one in rows if (one["mode"], one["length"]) == (mode, length)]
    assert len(found) == 1
    return found[0]


def test_every_statistic_equals_an_independent_computation() -> None:
    rows = makerows.campaign()
    for found in summary.summarise(rows, makerows.expected()):
        roles = {"prefill": {"cold"}, "reuse": {"reuse"}, "decode_only": {"decode_only"}}[found["mode"]]
        mine = [one for one in rows if one["mode"] == found["mode"] and one["length"] == found["length"]]
        sound = [one for one in mine if one["role"] in roles and one["status"] == "ok"]
        assert found["n"] == len(sound)
        for metric in ("ttft_s", "prefill_s", "overhead_s", "decode_tok_s"):
            numbers = [one[metric] for one in sound if one.get(metric) is not None]
            assert found[f"{metric}_n"] == len(numbers)
            if not numbers:
                assert found[f"{metric}_mean"] is None
                continue
            assert found[f"{metric}_mean"] == pytest.approx(sum(numbers) / len(numbers))
            assert found[f"{metric}_median"] == pytest.approx(statistics.median(numbers))
            std = found[f"{metric}_std"]
            assert std == (None if len(numbers) < 2 else pytest.approx(statistics.stdev(numbers)))


def test_means_lie_near_the_truth() -> None:
    rows = summary.summarise(makerows.campaign(passes=12, faults=False), {})
    for found in rows:
        truth = makerows.decode_tok_s(found["length"])
        assert found["decode_tok_s_mean"] == pytest.approx(truth, rel=5 * makerows.NOISE / math.sqrt(12))


def test_faults_are_counted_with_their_reasons() -> None:
    rows = summary.summarise(makerows.campaign(), makerows.expected())
    died = point(rows, "prefill", 1 << 20)
    assert (died["n"], died["n_failed"], died["n_missing"], died["reasons"]) == (2, 1, 0, ["server_died"])
    retried = point(rows, "prefill", 1024)
    assert (retried["n"], retried["n_doubtful"], retried["n_missing"]) == (3, 1, 0)
    never = point(rows, "prefill", 1 << 21)
    assert (never["n"], never["n_failed"], never["n_missing"], never["ttft_s_mean"]) == (0, 0, 3, None)
    refused = point(rows, "decode_only", 1 << 24)
    assert (refused["n"], refused["n_failed"], refused["n_missing"]) == (0, 1, 2)
    assert refused["reasons"] == ["kv_too_small"]


def test_all_failed_gives_nulls_never_zero() -> None:
    rows = [bad_row("error_event", pass_index=p, detail="400") for p in (1, 2, 3)]
    found = summary.summarise(rows, {("prefill", 4096): 3})[0]
    assert (found["n"], found["n_failed"], found["n_missing"]) == (0, 3, 0)
    measured = [found[name] for name in found if name.endswith(("_mean", "_std", "_cv", "_min", "_median", "_max"))]
    assert set(measured) == {None}


def test_doubtful_rows_are_in_no_mean() -> None:
    rows = [
        row(),
        row(pass_index=2) | {"status": "doubtful", "reasons": ["cached"], "reason": "cached", "ttft_s": 0.01},
    ]
    found = summary.summarise(rows, {})[0]
    assert (found["n"], found["n_doubtful"], found["ttft_s_n"]) == (1, 1, 1)
    assert found["ttft_s_mean"] == pytest.approx(makerows.ttft_s(4096))
    assert found["ttft_s_std"] is None


def test_warmups_never_count() -> None:
    rows = [row(role="warmup", request_index=0, ttft_s=99.0), row(role="warmup", length=128), row()]
    found = summary.summarise(rows, {("prefill", 4096): 1})
    assert [(one["length"], one["n"], one["ttft_s_mean"]) for one in found] == [
        (4096, 1, pytest.approx(makerows.ttft_s(4096)))
    ]


def test_the_prefill_that_makes_a_prefix_resident_is_no_hot_query() -> None:
    rows = [row("reuse", 1 << 20), row("reuse", 1 << 20, role="cold", request_index=0, ttft_s=120.0)]
    found = summary.summarise(rows, {})[0]
    assert (found["mode"], found["n"], found["ttft_s_max"]) == ("reuse", 1, pytest.approx(makerows.hot_ttft_s(1 << 20)))


def test_filled_caches_have_no_ttft_even_if_a_row_says_so() -> None:
    found = summary.summarise([row("decode_only", 4096, ttft_s=0.01, prefill_s=0.01)], {})[0]
    assert (found["ttft_s_mean"], found["prefill_s_mean"], found["filled_kv"]) == (None, None, True)


def test_resumed_rows_have_decode_and_no_ttft() -> None:
    found = point(summary.summarise(makerows.campaign(), {}), "prefill", 1 << 19)
    assert (found["n"], found["ttft_s_n"], found["decode_tok_s_n"], found["reasons"]) == (3, 2, 3, ["resumed"])


LATE = ("client_starved", "first_token_late")


@pytest.mark.parametrize("marks", [LATE[:1], LATE[1:], LATE, ("cold_unproven", "first_token_late", "not_steady")])
def test_a_late_ttft_is_in_no_mean_and_counted(marks: tuple[str, ...]) -> None:
    """Seen on a busy machine: the server prefilled for 0.009 s, two of three clients were kept waiting."""
    times = [(0.015, ()), (0.161, marks), (0.171, marks)]
    rows = [
        row(
            "reuse", 4096, request_index=i, ttft_s=ttft_s, prefill_s=0.009, overhead_s=ttft_s - 0.009, reasons=list(why)
        )
        for i, (ttft_s, why) in enumerate(times, 1)
    ]
    found = summary.summarise(rows, {})[0]
    assert (found["n"], found["n_late"], found["ttft_s_n"], found["ttft_s_mean"]) == (3, 2, 1, 0.015)
    assert (found["ttft_s_std"], found["ttft_s_max"]) == (None, 0.015)
    assert (found["overhead_s_n"], found["overhead_s_mean"]) == (1, pytest.approx(0.006))
    assert (found["prefill_s_n"], found["prefill_s_mean"]) == (3, pytest.approx(0.009))
    assert found["decode_tok_s_n"] == 3
    assert found["reasons"] == sorted(marks)
    assert found["energy_j_per_output_token"] == pytest.approx(rows[0]["energy_decode_j"] / 127)
    assert found["energy_j_mean"] == pytest.approx(rows[0]["energy_j"]), "the whole request's energy is not in doubt"


def test_late_values_alone_give_no_ttft_no_fit_and_no_outlier() -> None:
    late = [
        row(length=length, pass_index=i, ttft_s=50.0 + i * i, reasons=["first_token_late"])
        for length in (1024, 2048, 4096, 8192)
        for i in range(1, 7)
    ]
    found = summary.summarise(late, {}, makerows.plan())
    assert [(one["ttft_s_mean"], one["ttft_over_bound"], one["n_late"], one["n_outliers"]) for one in found] == [
        (None, None, 6, 0)
    ] * 4
    assert [fit["name"] for fit in fits.fits(found)] == ["decode_line"]


def test_the_clients_decode_rate_is_a_bound_where_waiting_may_have_shortened_it() -> None:
    client = {"decode_source": "client", "decode_tok_s": 100.0, "reasons": ["client_starved"]}
    rows = [row(pass_index=i, starved_s=starved_s, **client) for i, starved_s in ((1, 0.1), (2, 0.5))]
    found = summary.summarise(rows, {})[0]
    assert (found["decode_tok_s_n"], found["ttft_s_n"]) == (1, 0), (
        "0.5 s are a share that counts of 1.27 s, 0.1 s are not"
    )
    rows = [one | {"decode_source": "server"} for one in rows]
    assert summary.summarise(rows, {})[0]["decode_tok_s_n"] == 2


def test_hosts_are_compared_without_late_values() -> None:
    rows = [row(pass_index=i, host=host, ttft_s=1.0) for i, host in ((1, "a"), (2, "b"))]
    rows.append(row(pass_index=3, host="b", ttft_s=9.0, reasons=["client_starved"]))
    hosts = {one["host"]: one for one in summary.per_host(rows)}
    assert (hosts["b"]["n"], hosts["b"]["ttft_s_n"], hosts["b"]["ttft_s_mean"]) == (2, 1, 1.0)


def test_outliers_are_counted_and_kept() -> None:
    rows = makerows.campaign()
    found = point(summary.summarise(rows, {}), "reuse", 1 << 18)
    assert (found["n_outliers"], found["ttft_s_n"]) == (1, 12)
    assert found["ttft_s_max"] > 2 * found["ttft_s_median"]
    assert [one["length"] for one in summary.outlier_rows(rows)] == [1 << 18]


@pytest.mark.parametrize(
    ("field", "value"),
    [("vllm_version", "0.32.0"), ("gpu", "NVIDIA B200"), ("gpu_driver", None), ("kv_cache_dtype", "auto"),
     ("recipe_hash", "other"), ("gpu_count", 8), ("tensor_parallel_size", 8), ("model", "llama")],
)  # fmt: skip
def test_rows_of_different_systems_refuse_to_merge(field: str, value: Any) -> None:
    rows = [
        row(source="results/a.parquet"),
        row(length=8192, pass_index=2, source="results/b.parquet", **{field: value}),
    ]
    with pytest.raises(DataError) as error:
        summary.summarise(rows, {})
    said = str(error.value)
    assert f"differ in {field}" in said
    assert str(rows[0][field]) in said
    assert ("not known" if value is None else str(value)) in said
    assert "results/a.parquet" in said
    assert "results/b.parquet" in said


def test_modes_may_run_other_servers() -> None:
    rows = [row(), row("decode_only"), row("reuse", prefix_caching=True)]
    assert len(summary.summarise(rows, {})) == 3


def test_a_failed_row_that_knows_nothing_merges() -> None:
    refused = bad_row("server_start") | {"vllm_version": None, "gpu": None, "gpu_driver": None}
    assert summary.summarise([row(length=8192), refused], {})[0]["n_failed"] == 1


def test_hosts_of_one_kind_merge_and_are_told_apart() -> None:
    rows = [row(pass_index=i, host=f"node-{i % 2}", ttft_s=10.0 + i % 2) for i in range(1, 5)]
    rows.append(row(length=8192))
    assert summary.summarise(rows, {})[0]["hosts"] == ["node-0", "node-1"]
    hosts = summary.per_host(rows)
    assert [(one["host"], one["n"], one["ttft_s_mean"], one["ttft_s_std"]) for one in hosts] == [
        ("node-0", 2, 10.0, 0.0),
        ("node-1", 2, 11.0, 0.0),
    ]


def test_bounds_and_their_ratios() -> None:
    length = 1 << 20
    rows = [row(mode, length) for mode in ("prefill", "reuse", "decode_only")]
    prefill, reuse, decode = summary.summarise(rows, {}, makerows.plan())
    assert prefill["ttft_over_bound"] == pytest.approx(makerows.ttft_s(length) / (0.7 * makerows.ttft_s(length) - 0.05))
    assert prefill["decode_over_bound"] == pytest.approx(0.5)
    assert decode["decode_over_bound"] == pytest.approx(0.5)
    assert (decode["ttft_over_bound"], reuse["ttft_over_bound"]) == (None, None)


def test_no_plan_no_bounds() -> None:
    found = summary.summarise([row()], {}, [{"mode": "prefill", "length": 4096, "ttft_bound_s": None}])[0]
    assert (found["ttft_over_bound"], found["decode_over_bound"]) == (None, None)


def test_energy_per_token_counts_what_was_computed() -> None:
    cold, hot, filled = (
        summary.summarise([row(mode, 1 << 16, energy_j=1000.0)], {})[0] for mode in ("prefill", "reuse", "decode_only")
    )
    assert cold["energy_j_per_token"] == pytest.approx(1000 / (65536 + 128))
    assert hot["energy_j_per_token"] == pytest.approx(1000 / (64 + 128))
    assert filled["energy_j_per_token"] is None, "shipping ids and filling the cache is no decode"
    assert summary.summarise([row(energy_j=None)], {})[0]["energy_j_mean"] is None


def test_energy_before_and_after_the_first_token_is_told_apart() -> None:
    split = {"energy_j": 1000.0, "energy_decode_j": 127.0}
    cold, hot, filled = (
        summary.summarise([row(mode, 1 << 16, **split)], {})[0] for mode in ("prefill", "reuse", "decode_only")
    )
    assert cold["energy_j_per_prompt_token"] == pytest.approx(873 / 65536)
    assert hot["energy_j_per_prompt_token"] == pytest.approx(873 / 64)
    assert filled["energy_j_per_prompt_token"] is None
    assert [one["energy_j_per_output_token"] for one in (cold, hot, filled)] == [pytest.approx(1.0)] * 3
    one_token = summary.summarise([row(completion_tokens=1, **split)], {})[0]
    assert one_token["energy_j_per_output_token"] is None
    unsplit = summary.summarise([row(energy_decode_j=None)], {})[0]
    assert unsplit["energy_j_per_prompt_token"] is None
    compiled = summary.summarise([row("prefill", 1 << 16, decode_tok_s=None, reasons=["compiled"], **split)], {})[0]
    assert compiled["energy_j_per_output_token"] is None, "compiling may have fallen into decode"
    assert compiled["energy_j_per_prompt_token"] == pytest.approx(873 / 65536)


def test_nothing_at_all_is_an_empty_summary() -> None:
    assert summary.summarise([], {}) == []


def test_summary_goes_through_parquet_and_csv(tmp_path: Path) -> None:
    rows = summary.summarise(makerows.campaign(), makerows.expected(), makerows.plan())
    parquet.write_rows(tmp_path / "summary.parquet", schemas.SUMMARY, rows)
    parquet.write_rows(tmp_path / "fits.parquet", schemas.FITS, fits.fits(rows))
    back = parquet.read_rows(tmp_path / "summary.parquet", schemas.SUMMARY)
    assert [one["ttft_s_mean"] for one in back] == [one["ttft_s_mean"] for one in rows]
    export.write_csv(tmp_path / "summary.csv", rows)
    with open(tmp_path / "summary.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [one["length"] for one in lines] == [str(one["length"]) for one in rows]
    assert {one["ttft_s_mean"] for one in lines if one["mode"] == "decode_only"} == {""}
    assert not any(text.lower() in ("nan", "inf") for one in lines for text in one.values())
