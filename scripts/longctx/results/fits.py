"""Fits over lengths: power law of TTFT, line of the decode step."""

import math
from collections.abc import Sequence
from typing import Any

from longctx.campaign.mode import MODES
from longctx.results import statistics
from longctx.results.mode import Row, results_facet

# Through two lengths any curve is perfect.
FIT_RUNGS, LONG_FIT_RUNGS = 3, 4


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
            fitted += _fit(timed, "ttft_power")
            if len(timed) >= LONG_FIT_RUNGS + 2:
                fitted += _fit(timed[-LONG_FIT_RUNGS:], "ttft_power_long")
        fitted += _fit([row for row in rows if row["decode_tok_s_mean"]], "decode_line")
    return fitted


def _fit(rows: Sequence[Row], name: str) -> list[dict[str, Any]]:
    """Fit a line to the decode steps, or to the logarithms of length and TTFT; `rows` go by ascending length."""
    lengths = [row["length"] for row in rows]
    if name == "decode_line":
        line = statistics.fit_line(lengths, [1 / row["decode_tok_s_mean"] for row in rows])
    else:
        line = statistics.fit_line(list(map(math.log, lengths)), [math.log(row["ttft_s_mean"]) for row in rows])
    if line is None or len(rows) < FIT_RUNGS:
        return []
    fitted = {"campaign": rows[0].get("campaign"), "mode": rows[0]["mode"], "name": name, "n": line.n, "r2": line.r2}
    fitted |= {"length_min": lengths[0], "length_max": lengths[-1]}
    if name == "decode_line":
        fitted |= {"intercept_s": line.intercept, "slope_s": line.slope, "slope_std_s": line.slope_std}
        return [fitted | {"formula": "1 / decode = intercept_s + slope_s * L"}]
    fitted |= {"coefficient": math.exp(line.intercept), "exponent": line.slope, "exponent_std": line.slope_std}
    return [fitted | {"formula": "ttft_s = coefficient * L ** exponent"}]
