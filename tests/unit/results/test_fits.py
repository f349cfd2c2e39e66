"""Fits over lengths: the known truth comes back, and too few lengths give none."""

from typing import Any

import makerows
import pytest
from longctx.results import fits, summary
from makerows import row


def test_fits_recover_the_truth() -> None:
    rows = summary.summarise(makerows.campaign(faults=False, passes=1, top="8Mi"), {})
    found = {(fit["mode"], fit["name"]): fit for fit in fits.fits(rows)}
    line = found["decode_only", "decode_line"]
    assert line["slope_s"] == pytest.approx(makerows.D1, rel=0.05)
    assert line["intercept_s"] == pytest.approx(makerows.D0, rel=0.05)
    long = found["prefill", "ttft_power_long"]
    assert (long["n"], long["length_min"], long["length_max"]) == (4, 1 << 20, 1 << 23)
    assert 1.8 < long["exponent"] < 2.0
    assert ("decode_only", "ttft_power") not in found


def test_power_law_is_recovered() -> None:
    rows: list[dict[str, Any]] = [
        {"mode": "prefill", "length": 1 << i, "ttft_s_mean": 3e-9 * (1 << i) ** 1.75, "decode_tok_s_mean": None}
        for i in range(10, 15)
    ]
    unmeasured = {"mode": "prefill", "length": 1 << 20, "ttft_s_mean": None, "decode_tok_s_mean": None}
    (fit,) = fits.fits([*rows, unmeasured])
    assert (fit["exponent"], fit["coefficient"]) == (pytest.approx(1.75), pytest.approx(3e-9))
    assert (fit["n"], fit["r2"]) == (5, pytest.approx(1.0))


def test_no_rows_give_no_fit() -> None:
    assert fits.fits([]) == []


def test_one_length_gives_no_fit() -> None:
    assert fits.fits(summary.summarise([row()], {})) == []


def test_two_lengths_give_no_fit() -> None:
    rows = [
        {
            "campaign": "c",
            "mode": "prefill",
            "length": length,
            "ttft_s_mean": length / 1e4,
            "decode_tok_s_mean": 1e5 / length,
        }
        for length in (1024, 2048)
    ]
    assert fits.fits(rows) == []
    more = {**rows[0], "length": 4096, "ttft_s_mean": 0.5, "decode_tok_s_mean": 20.0}
    assert {fit["name"] for fit in fits.fits([*rows, more])} == {"ttft_power", "decode_line"}


@pytest.mark.parametrize(("lengths", "fitted"), [(5, {"ttft_power"}), (6, {"ttft_power", "ttft_power_long"})])
def test_the_longest_four_are_fitted_alone_where_two_more_are_left_out(lengths: int, fitted: set[str]) -> None:
    rows = [
        {"mode": "prefill", "length": 1024 << i, "ttft_s_mean": 0.1 * 2**i, "decode_tok_s_mean": None}
        for i in range(lengths)
    ]
    assert {fit["name"] for fit in fits.fits(rows)} == fitted


def timed(times: dict[int, float], mode: str = "prefill") -> list[dict[str, Any]]:
    return [{"mode": mode, "length": n, "ttft_s_mean": t, "decode_tok_s_mean": 10.0} for n, t in times.items()]


@pytest.mark.parametrize(
    "times",
    [
        {65535: 120.9, 65536: 120.0, 65537: 120.0},
        {4095: 0.1, 4096: 0.11, 4097: 0.1},
        {4095: 1e-9, 4096: 1.0, 4097: 1e9},
        {100_000: 1.0, 110_000: 1.1, 120_000: 1.3, 130_000: 1.4},
    ],
    ids=str,
)
def test_neighbouring_lengths_have_no_fit_but_a_reason(times: dict[int, float]) -> None:
    found = {fit["name"]: fit for fit in fits.fits(timed(times))}
    for fit in found.values():
        assert "span less than a factor of 2" in fit["reason"]
        assert fit.get("coefficient") is fit.get("exponent") is fit.get("r2") is fit.get("slope_s") is None
    assert (found["ttft_power"]["n"], found["ttft_power"]["length_min"]) == (len(times), min(times))


@pytest.mark.parametrize(
    "times",
    [
        {2**39: 1e-300, 2**40: 1.0, 2**41: 1e300},
        {2**39: 1e300, 2**40: 1.0, 2**41: 1e-300},
        {1: 1.0, 2: 5e-324, 4: 1e308},
    ],
    ids=["too small", "too large", "denormal"],
)
def test_a_fit_beyond_all_numbers_costs_itself(times: dict[int, float]) -> None:
    found = {fit["name"]: fit for fit in fits.fits(timed(times))}
    power = found["ttft_power"]
    assert power.get("coefficient") is None or 0 < power["coefficient"] < 1e308
    assert (power.get("coefficient") is None) == ("the fit failed" in (power.get("reason") or ""))
    assert found["decode_line"]["intercept_s"] == pytest.approx(0.1)


def test_a_fit_that_raises_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("no such line")

    monkeypatch.setattr(fits, "_decode_line", fail)
    found = {fit["name"]: fit for fit in fits.fits(timed({1024: 0.1, 2048: 0.2, 4096: 0.4}))}
    assert found["decode_line"]["reason"] == "the fit failed: ZeroDivisionError: no such line"
    assert found["ttft_power"]["exponent"] == pytest.approx(1.0)
