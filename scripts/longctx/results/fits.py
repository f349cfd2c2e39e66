"""Fits over lengths: power law of TTFT, line of the decode step."""

import math
from collections.abc import Sequence
from typing import Any

from longctx.campaign.mode import MODES
from longctx.results import statistics
from longctx.results.mode import Row, results_facet

# Through two lengths any curve is perfect.
FIT_RUNGS = 3
LONG_FIT_RUNGS = 4


def fits(summary: Sequence[Row]) -> list[dict[str, Any]]:
    """Return schemas.FITS rows of each mode, from the means; fits that need more rungs than there are are left out.

    ttft_power: TTFT = coefficient x L^exponent over all lengths; ttft_power_long: over the longest four, where the
    quadratic term rules. decode_line: seconds per output token = intercept_s + slope_s x L.
    """
    fitted: list[dict[str, Any]] = []
    for mode in MODES:
        rows = sorted((row for row in summary if row["mode"] == mode), key=lambda row: row["length"])
        timed = [row for row in rows if row["ttft_s_mean"]]
        if results_facet(mode).ttft_is_cold:
            fitted += _power_law(timed, "ttft_power")
            if len(timed) >= LONG_FIT_RUNGS + 2:
                fitted += _power_law(timed[-LONG_FIT_RUNGS:], "ttft_power_long")
        fitted += _decode_line([row for row in rows if row["decode_tok_s_mean"]])
    return fitted


def _power_law(rows: Sequence[Row], name: str) -> list[dict[str, Any]]:
    """Fit a line to the logarithms of length and TTFT."""
    logs = [(math.log(row["length"]), math.log(row["ttft_s_mean"])) for row in rows]
    line = statistics.fit_line([x for x, _ in logs], [y for _, y in logs])
    if line is None or len(rows) < FIT_RUNGS:
        return []
    values = {"coefficient": math.exp(line.intercept), "exponent": line.slope, "exponent_std": line.slope_std}
    return [_fit_row(rows, name, "ttft_s = coefficient * L ** exponent") | values | {"r2": line.r2}]


def _decode_line(rows: Sequence[Row]) -> list[dict[str, Any]]:
    line = statistics.fit_line([row["length"] for row in rows], [1 / row["decode_tok_s_mean"] for row in rows])
    if line is None or len(rows) < FIT_RUNGS:
        return []
    values = {"intercept_s": line.intercept, "slope_s": line.slope, "slope_std_s": line.slope_std, "r2": line.r2}
    return [_fit_row(rows, "decode_line", "1 / decode = intercept_s + slope_s * L") | values]


def _fit_row(rows: Sequence[Row], name: str, formula: str) -> dict[str, Any]:
    """Return what every fit says of its rows, which go by ascending length."""
    return {
        "campaign": rows[0].get("campaign"),
        "mode": rows[0]["mode"],
        "name": name,
        "formula": formula,
        "n": len(rows),
        "length_min": rows[0]["length"],
        "length_max": rows[-1]["length"],
    }
