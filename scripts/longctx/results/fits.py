"""Fits over lengths: power law of TTFT, line of the decode step."""

import math
import sys
from collections.abc import Sequence
from typing import Any

from longctx.campaign.mode import MODES
from longctx.results import statistics
from longctx.results.mode import Row, results_facet

# Through two lengths any curve is perfect.
FIT_RUNGS, LONG_FIT_RUNGS = 3, 4
# Between neighbouring lengths the noise of a single request makes any exponent.
LEAST_SPAN = 2
FORMULAS = ("ttft_s = coefficient * L ** exponent", "1 / decode = intercept_s + slope_s * L")


def fits(summary: Sequence[Row]) -> list[dict[str, Any]]:
    """Return schemas.FITS rows of each mode, from the means; fits that need more rungs than there are are left out.

    ttft_power: TTFT = coefficient x L^exponent over all lengths; ttft_power_long: over the longest four, where the
    quadratic term rules. decode_line: seconds per output token = intercept_s + slope_s x L. A fit that cannot be made
    has a reason and no numbers.
    """
    fitted: list[dict[str, Any]] = []
    for mode in MODES:
        rows = sorted((row for row in summary if row["mode"] == mode), key=lambda row: row["length"])
        timed = [row for row in rows if row["ttft_s_mean"]]
        if results_facet(mode).ttft_is_cold:
            fitted += _fit(timed, "ttft_power")
            if len(timed) >= LONG_FIT_RUNGS + 2:
                fitted += _fit(timed[-LONG_FIT_RUNGS:], "ttft_power_long")
        fitted += _fit([row for row in rows if row["decode_tok_s_mean"]], "decode_line")
    return fitted


def _fit(rows: Sequence[Row], name: str) -> list[dict[str, Any]]:
    """Return one row of schemas.FITS; a fit that fails has no numbers but a reason. `rows` go by ascending length."""
    if len(rows) < FIT_RUNGS:
        return []
    lengths = [row["length"] for row in rows]
    fitted = {"campaign": rows[0].get("campaign"), "mode": rows[0]["mode"], "name": name, "n": len(rows)}
    fitted |= {"length_min": lengths[0], "length_max": lengths[-1], "formula": FORMULAS[name == "decode_line"]}
    if lengths[-1] < LEAST_SPAN * lengths[0]:
        return [fitted | {"reason": f"the lengths span less than a factor of {LEAST_SPAN}, too little to show growth"}]
    try:
        return [fitted | (_decode_line if name == "decode_line" else _power_law)(rows, lengths)]
    except Exception as error:
        return [fitted | {"reason": f"the fit failed: {type(error).__name__}: {error}"}]


def _line(x: Sequence[float], y: Sequence[float]) -> statistics.LinearFit:
    line = statistics.fit_line(x, y)
    if line is None:
        raise ArithmeticError("all lengths are equal")
    return line


def _decode_line(rows: Sequence[Row], lengths: Sequence[int]) -> dict[str, Any]:
    line = _line(lengths, [1 / row["decode_tok_s_mean"] for row in rows])
    return _finite({"intercept_s": line.intercept, "slope_s": line.slope, "slope_std_s": line.slope_std, "r2": line.r2})


def _power_law(rows: Sequence[Row], lengths: Sequence[int]) -> dict[str, Any]:
    """Fit a line to the logarithms of length and TTFT."""
    line = _line([math.log(n) for n in lengths], [math.log(row["ttft_s_mean"]) for row in rows])
    coefficient = math.exp(line.intercept)
    if coefficient < sys.float_info.min:
        raise OverflowError(f"the coefficient e^{line.intercept:.0f} is no number")
    power = {"coefficient": coefficient, "exponent": line.slope, "exponent_std": line.slope_std}
    return _finite(power | {"r2": line.r2})


def _finite(parameters: dict[str, float | None]) -> dict[str, float | None]:
    """Return the parameters of a fit; ArithmeticError where one is inf or NaN."""
    if wrong := [name for name, value in parameters.items() if value is not None and not math.isfinite(value)]:
        raise ArithmeticError(f"{', '.join(wrong)} not finite")
    return parameters
