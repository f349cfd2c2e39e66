"""Estimates of whole prompts from samples: the truth that the samples were made from, and what is doubted."""

from pathlib import Path
from typing import Any

import makesamples
import pandas as pd
import pytest
from longctx.lengths import ladder
from longctx.modes.sampled.estimates import COMPUTED_WHOLE, INTEGRATED, estimates

MI = 2**20
LADDER = ladder("1Ki", "8Mi")
Rows = list[dict[str, Any]]


def estimated(rows: Rows, lengths: list[int] | None = None) -> dict[int, dict[str, Any]]:
    return {row["length"]: row for row in estimates(rows, lengths or LADDER)}


def true_ttft_s(length: int) -> float:
    return makesamples.prefill_s(length) + makesamples.OVERHEAD * length


def test_the_truth_lies_inside_every_interval() -> None:
    found = estimated(makesamples.campaign())
    assert list(found) == LADDER
    for length, row in found.items():
        assert row["ttft_low_s"] < true_ttft_s(length) < row["ttft_high_s"]
        assert row["ttft_estimate_s"] == pytest.approx(true_ttft_s(length), rel=0.003), "the passes' mean is 0.2 % more"
        assert row["overhead_s"] == pytest.approx(makesamples.OVERHEAD * length)
        assert row["reason"] is row["ttft_measured_s"] is row["deviation"] is None
        assert row["doubts"] == []
    assert found[32768]["method"] == COMPUTED_WHOLE, "the long sample of 32Ki computes all of it"
    assert (found[65536]["method"], found[65536]["chunk_tokens"]) == (INTEGRATED, makesamples.CHUNK)
    assert found[8 * MI]["samples"] == 4 * len(LADDER)


def test_real_prefills_are_shown_beside_and_widen_the_interval() -> None:
    cold = [makesamples.real(n, p, 1.01, role="cold") for n in (65536, MI) for p in (1, 2)]
    found = estimated(makesamples.campaign() + cold)
    assert (found[MI]["measured_mode"], found[MI]["measured_role"], found[MI]["measured_n"]) == ("prefill", "cold", 2)
    assert found[MI]["deviation"] == pytest.approx(1.002 / 1.01 - 1, rel=0.02)
    assert found[MI]["deviation_inside"] is True
    assert found[8 * MI]["deviations_n"] == 2
    most = max(found[n]["ttft_measured_s"] / found[n]["ttft_estimate_s"] - 1 for n in (65536, MI))
    assert found[8 * MI]["deviation_s"] == pytest.approx(most * found[8 * MI]["ttft_estimate_s"])
    assert found[1024]["deviations_n"] == 0, "a length computed whole is another method"


def test_whole_prompts_of_the_same_server_come_before_cold_prompts() -> None:
    rows = [*makesamples.campaign(whole=("1Mi",)), makesamples.real(MI, scale=1.3, role="cold")]
    row = estimated(rows)[MI]
    assert (row["measured_role"], row["measured_n"]) == ("whole", 1)
    assert row["ttft_measured_s"] == pytest.approx(true_ttft_s(MI))


def test_a_deviation_beyond_the_samples_interval_is_a_doubt() -> None:
    row = estimated([*makesamples.campaign(), makesamples.real(MI, scale=1.08)])[MI]
    assert row["deviation_inside"] is False
    assert row["doubts"] == ["deviates"]
    assert row["ttft_low_s"] < row["ttft_measured_s"] < row["ttft_high_s"], "what is published admits it"


def test_other_clocks_and_throttling_are_doubts() -> None:
    slower = makesamples.real(MI, sm_clock_mhz=1700.0)
    assert estimated([*makesamples.campaign(), slower])[MI]["doubts"] == ["other_clock"]
    rows = makesamples.campaign()
    deepest = max(rows, key=lambda row: row["claimed_tokens"])
    deepest["throttle_reasons"] = "sw_thermal_slowdown"
    found = estimated(rows)
    assert (found[8 * MI]["doubts"], found[4 * MI]["doubts"]) == (["throttled"], [])
    deepest["throttle_reasons"] = "sw_power_cap"
    assert estimated(rows)[8 * MI]["doubts"] == [], "a real prefill runs into the power limit too"


def test_clocks_of_requests_that_mostly_waited_are_not_compared() -> None:
    idle = [row | {"sm_clock_mhz": 345.0} for row in makesamples.campaign() if row["length"] < 65536]
    busy = [row for row in makesamples.campaign() if row["length"] >= 65536]
    for row in idle:
        row["e2e_s"] = 2 * row["sample_prefill_s"]
    row = estimated([*idle, *busy, makesamples.real(MI)])[MI]
    assert row["sm_clock_mhz"] == pytest.approx(1980)
    assert row["doubts"] == []


def test_only_sound_samples_count_and_a_length_without_them_has_a_reason() -> None:
    rows = makesamples.campaign()
    for row in rows:
        if row["length"] == 2 * MI:
            row |= {"status": "doubtful", "sample_prefill_s": None, "overhead_s": None}
    found = estimated(rows)
    assert found[2 * MI]["ttft_estimate_s"] is None
    assert found[2 * MI]["reason"] == "no sample of this length"
    assert found[8 * MI]["ttft_estimate_s"] == pytest.approx(true_ttft_s(8 * MI), rel=0.003)


def test_a_server_that_hides_its_chunk_size_gives_reasons() -> None:
    rows = [row | {"max_num_batched_tokens": None} for row in makesamples.campaign(passes=1)]
    found = estimated(rows)
    assert {row["ttft_estimate_s"] for row in found.values()} == {None}
    assert "max_num_batched_tokens" in found[1024]["reason"]


def test_the_last_chunk_is_held_against_the_hardwares_limit() -> None:
    rows = estimates(makesamples.campaign(), [MI], bound=lambda tokens: 1e-12 * tokens**2)
    assert rows[0]["last_chunk_bound_s"] == pytest.approx(1e-12 * (MI**2 - (MI - makesamples.CHUNK) ** 2))
    assert rows[0]["last_chunk_s"] == pytest.approx(makesamples.chunk_s(MI - makesamples.CHUNK), rel=0.003)


def test_zeros_in_the_claimed_cache_of_an_h200_are_told_by_clocks_and_deviation() -> None:
    table = pd.read_csv(Path(__file__).parents[3] / "data" / "sampled_random_weights_h200.csv", comment="#")
    measured: Rows = table.astype(object).where(table.notna(), None).to_dict("records")
    recorded = [makesamples.real(MI) | {"mode": "sampled", "prefill_chunks": None} | row for row in measured]
    found = estimated(recorded, [65536, 262144, MI])
    # Real prefills ran at 1,600 MHz and 687 W, the samples at 1,840 MHz and 400 W.
    assert [row["deviation"] < -0.02 for row in found.values()] == [True, True, True]
    assert found[MI]["doubts"] == ["deviates", "other_clock"]
    assert found[MI]["deviation"] == pytest.approx(1600 / 1840 - 1, rel=0.2)
