"""Fits over lengths: power law of TTFT, line of the decode step."""

from collections.abc import Sequence
from typing import Any

from longctx.results import statistics
from longctx.results.summary import OBSERVED_ROLES, Row

# Through two lengths any curve is perfect.
FIT_RUNGS = 3
LONG_FIT_RUNGS = 4


def fits(summary: Sequence[Row]) -> list[dict[str, Any]]:
    """Return tables.FITS rows of each mode, from the means; fits that need more rungs than there are are left out.

    ttft_power: TTFT = coefficient x L^exponent over all lengths; ttft_power_long: over the longest four, where the
    quadratic term rules. decode_line: seconds per output token = intercept_s + slope_s x L.
    """
    found: list[dict[str, Any]] = []
    for mode in OBSERVED_ROLES:
        rows = sorted((row for row in summary if row["mode"] == mode), key=lambda row: row["length"])
        timed = [row for row in rows if row["ttft_s_mean"]]
        if mode == "prefill":
            found += _power_row(timed, "ttft_power")
            if len(timed) >= LONG_FIT_RUNGS + 2:
                found += _power_row(timed[-LONG_FIT_RUNGS:], "ttft_power_long")
        decoded = [row for row in rows if row["decode_tok_s_mean"]]
        lengths = [row["length"] for row in decoded]
        line = statistics.fit_line(lengths, [1 / row["decode_tok_s_mean"] for row in decoded])
        if line and len(decoded) >= FIT_RUNGS:
            found.append(
                _fit_row(decoded, "decode_line", "1 / decode = intercept_s + slope_s * L")
                | {"intercept_s": line.intercept, "slope_s": line.slope, "slope_std_s": line.slope_std, "r2": line.r2}
            )
    return found


def _power_row(rows: Sequence[Row], name: str) -> list[dict[str, Any]]:
    power = statistics.fit_power([row["length"] for row in rows], [row["ttft_s_mean"] for row in rows])
    if power is None or len(rows) < FIT_RUNGS:
        return []
    row = _fit_row(rows, name, "ttft_s = coefficient * L ** exponent")
    return [
        row
        | {
            "coefficient": power.coefficient,
            "exponent": power.exponent,
            "exponent_std": power.exponent_std,
            "r2": power.r2,
        }
    ]


def _fit_row(rows: Sequence[Row], name: str, formula: str) -> dict[str, Any]:
    lengths = [row["length"] for row in rows]
    return {
        "campaign": rows[0].get("campaign"),
        "mode": rows[0]["mode"],
        "name": name,
        "formula": formula,
        "n": len(rows),
        "length_min": min(lengths),
        "length_max": max(lengths),
    }
