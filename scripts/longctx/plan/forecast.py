"""How long a prefill will take: fitted to what this campaign measured, else scaled from a published curve.

A fit is t(L) = c + a*L + b*L**2, least squares of relative errors, long lengths weighted more, no coefficient below
zero. A curve is scaled by the distance to the limit: t(L) = curve(L) * bound(L) / curve's bound(L), so the share of the
limit that the curve's own hardware reached at that length holds; beyond its last length a curve of the same setup is
fitted instead. Neither may undercut the bound. Where a fit contradicts the bound (it undercuts it, or says that longer
prompts get further from it), the bound and the share of it reached last bracket the time instead.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import exp, log, log2, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.model.geometry import Geometry
from longctx.plan import published
from longctx.plan.hardware import Hardware, Parallelism
from longctx.resources import RESOURCES

# A relative error at length L counts (L / longest)**0.5: the long lengths say what an extrapolation needs, and short
# ones scatter with start-up costs. Of 0, 0.25, 0.5, 0.75 and 1 the best over all back-tests (docs/plan.md).
WEIGHT_POWER = 0.5
MEASUREMENT_SIGMA = 0.02  # relative; where residuals say less (few points), run-to-run spread still is this much
# The model itself drifts: fitted up to 8Mi, the published table is missed by 10 % three doublings later.
DRIFT_PER_DOUBLING = 0.04
FOREIGN_FACTOR = 2.0  # a curve of other hardware or another model says no more than the order of magnitude
OWN_SPREAD = 0.1  # a curve of the same GPUs and model
# A fit is held against the bound so many doublings beyond its data: there its quadratic part stands alone.
FAR_DOUBLINGS = 10
SHARE_NOISE = 0.05  # of the time over the bound at one length
# A curve of the same setup speaks where no fit may, if the longest measured prompt is as near to it as this factor (the
# launch times of short prompts are a third apart between hosts), and not beyond its end.
AGREEING = 1.5


@dataclass(frozen=True, slots=True)
class TtftFit:
    """t(L) = c + a*L + b*L**2 in seconds and tokens; `covariance` is of (c, a, b), `longest` the last length used."""

    a: float
    b: float
    c: float
    covariance: NDArray[np.float64]
    degrees: int
    longest: int

    def predict(self, tokens: int) -> tuple[float, float, float]:
        """Return (middle, low, high) seconds: a 90 % interval, widened by DRIFT_PER_DOUBLING beyond `longest`."""
        x = np.array([1.0, tokens, float(tokens) ** 2])
        middle = self.c + self.a * tokens + self.b * tokens**2
        statistical = _t90(self.degrees) * sqrt(max(0.0, float(x @ self.covariance @ x)))
        drift = DRIFT_PER_DOUBLING * max(0.0, log2(tokens / self.longest)) * middle
        half = sqrt(statistical**2 + drift**2)
        return middle, max(0.0, middle - half), middle + half


@cache
def _t90(degrees: int) -> float:
    """Return the two-sided 90 % quantile of Student's t; without a residual the scatter is a given: the normal's."""
    return float(stdtrit(degrees, 0.95)) if degrees else 1.645


def fit_ttft(lengths: Sequence[int], ttft_s: Sequence[float]) -> TtftFit:
    """Fit at least two different lengths; the constant c joins from four on. DataError for fewer or bad values."""
    if len(lengths) != len(ttft_s) or len(set(lengths)) < 2:
        raise DataError("a forecast needs TTFT at two different lengths or more")
    if min(lengths) < 1 or min(ttft_s) <= 0:
        raise DataError("a forecast needs positive lengths and times")
    x, t = np.asarray(lengths, dtype=float), np.asarray(ttft_s, dtype=float)
    scale = np.array([1.0, x.max(), x.max() ** 2])  # keeps the normal equations well conditioned
    weights = (x / x.max()) ** WEIGHT_POWER
    design = np.stack([np.ones_like(x), x, x**2], axis=1) / scale * (weights / t)[:, None]
    with_constant = len(set(lengths)) >= 4
    solution, used = _non_negative(design, weights, [with_constant, True, True])
    residuals = design @ solution - weights
    degrees = max(0, len(lengths) - len(used))
    sigma = sqrt(float(residuals @ residuals) / degrees) if degrees else 0.0
    inverse = np.linalg.pinv(design[:, used].T @ design[:, used]) * max(sigma, MEASUREMENT_SIGMA) ** 2
    covariance = np.zeros((3, 3))
    covariance[np.ix_(used, used)] = inverse
    c, a, b = (float(v) for v in solution / scale)
    return TtftFit(a, b, c, covariance / np.outer(scale, scale), degrees, int(x.max()))


def _non_negative(
    design: NDArray[np.float64], target: NDArray[np.float64], allowed: Sequence[bool]
) -> tuple[NDArray[np.float64], list[int]]:
    """Solve design @ x = target with x >= 0 by trying each subset of the three columns (exact for so few)."""
    best, best_error = np.zeros(3), float("inf")
    chosen: list[int] = []
    for mask in product((True, False), repeat=3):
        used = [i for i in range(3) if mask[i] and allowed[i]]
        if not used:
            continue
        part = np.linalg.lstsq(design[:, used], target, rcond=None)[0]
        error = float(np.sum((design[:, used] @ part - target) ** 2))
        if part.min() >= 0 and error < best_error - 1e-15:
            best, chosen, best_error = np.zeros(3), used, error
            best[used] = part
    return best, chosen


@dataclass(frozen=True, slots=True)
class ReferenceCurve:
    """A measured TTFT curve with the limit of its own model and hardware; lengths ascend."""

    name: str
    geometry: Geometry
    hardware: Hardware
    lengths: tuple[int, ...]
    ttft_s: tuple[float, ...]
    bound: Callable[[int], float]
    parallelism: Parallelism

    def time_at(self, tokens: int) -> float:
        """Interpolate in log-log; beyond the ends the end's distance to the limit holds."""
        inside = min(max(tokens, self.lengths[0]), self.lengths[-1])
        seconds = exp(float(np.interp(log(inside), np.log(self.lengths), np.log(self.ttft_s))))
        return seconds * self.bound(tokens) / self.bound(inside)


# file, TTFT column; whose curve it is stands in the file's notes
_REFERENCES = (("mi355x-published.csv", "ttft_s_mean"), ("h200-probe.csv", "ttft_client_s"))


def read_ttft_csv(path: Path, column: str) -> dict[int, float]:
    """Return {prompt tokens: TTFT in s} of a results CSV with '#' comments; only rows of mode prefill count."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row.get("mode", "prefill") == "prefill"]
    return {int(row["prompt_tokens"]): float(row[column]) for row in rows}


def reference_curves() -> list[ReferenceCurve]:
    """Return the curves that ship in resources/results; DataError for one that does not say of what system it is."""
    curves = []
    for file, column in _REFERENCES:
        path = RESOURCES / "results" / file
        system = published.system(published.notes(path.read_text(encoding="utf-8").splitlines()), path)
        if system is None:
            raise DataError(f"{path}: a forecast needs the notes {', '.join(published.NOTES)}")
        ttft = read_ttft_csv(path, column)
        curves.append(
            ReferenceCurve(
                path.stem,
                system.geometry,
                system.hardware,
                tuple(ttft),
                tuple(ttft.values()),
                system.ttft_bound_s,
                system.parallelism,
            )
        )
    return curves


def nearest_curve(hardware: Hardware, curves: Sequence[ReferenceCurve]) -> ReferenceCurve | None:
    """Return the curve of the same GPU, else of the same vendor, else the first."""
    ranked = sorted(curves, key=lambda c: (c.hardware.name != hardware.name, c.hardware.vendor != hardware.vendor))
    return ranked[0] if ranked else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A forecast TTFT in seconds with its interval; `source` says what it rests on."""

    ttft_s: float
    low_s: float
    high_s: float
    source: str


def forecast(
    tokens: int,
    *,
    measured: Mapping[int, float] | None = None,
    bound: Callable[[int], float] | None = None,
    curve: ReferenceCurve | None = None,
    same_setup: bool = False,
) -> Estimate | None:
    """Return the TTFT to expect at `tokens`, or None where neither measurements nor a curve say anything.

    `measured` maps lengths to mean TTFT of this campaign; `bound` gives the limit in s; `same_setup` says that the
    curve is of the same model on the same number of the same GPUs, split in the same way.
    """
    measured = measured or {}
    floor = bound(tokens) if bound else 0.0
    if tokens in measured:
        return Estimate(measured[tokens], measured[tokens], measured[tokens], "measured")
    apart = _apart(curve, measured) if curve and same_setup and bound else None
    agrees = curve is not None and apart is not None and apart <= AGREEING and max(measured) <= curve.lengths[-1]
    if len(measured) >= 2:
        own, believed = _extrapolated(tokens, measured, bound, f"fit of {len(measured)} lengths")
        if believed or not agrees:
            return own
    if curve is None or bound is None:
        return None
    if same_setup and tokens > curve.lengths[-1]:
        known = dict(zip(curve.lengths, curve.ttft_s, strict=True))
        return _extrapolated(tokens, known, bound, f"fit of {curve.name}")[0]
    middle = max(floor, curve.time_at(tokens) * floor / curve.bound(tokens))
    factor = max(1 + OWN_SPREAD, apart or 1.0) if same_setup else FOREIGN_FACTOR
    source = f"{curve.name}" if same_setup else f"{curve.name}, scaled by hardware"
    return Estimate(middle, max(floor, middle / factor), middle * factor, source)


def _apart(curve: ReferenceCurve, measured: Mapping[int, float]) -> float | None:
    """Return by which factor the longest measured prompt was slower or faster than the curve; None without one."""
    if not measured:
        return None
    ratio = measured[max(measured)] / curve.time_at(max(measured))
    return max(ratio, 1 / ratio)


def _extrapolated(
    tokens: int, measured: Mapping[int, float], bound: Callable[[int], float] | None, source: str
) -> tuple[Estimate, bool]:
    """Return what a fit says, or where it is not believed, what lies between the bound and the share of it reached.

    And whether it is: far beyond its data it keeps to what the bound and the data allow, since in every ladder seen the
    time over the bound falls as prompts grow. Between the two the middle is no less than what the longest measured
    prompt took.
    """
    fit = fit_ttft(list(measured), list(measured.values()))
    last, far = fit.longest, fit.longest << FAR_DOUBLINGS
    if bound is None or tokens <= last or 1 <= fit.predict(far)[0] / bound(far) <= measured[last] / bound(last):
        floor = bound(tokens) if bound else 0.0
        middle, low, high = (max(seconds, floor) for seconds in fit.predict(tokens))
        return Estimate(middle, low, high, source), True
    floor = bound(tokens)
    high = (1 + SHARE_NOISE) * max(1.0, measured[last] / bound(last)) * floor
    middle = min(max(sqrt(floor * high), measured[last]), high)
    return Estimate(middle, floor, high, f"limit, and the share of it reached at {format_length(last)}"), False


def back_test(
    ttft_s: Mapping[int, float], up_to: int, bound: Callable[[int], float] | None = None
) -> list[dict[str, float]]:
    """Forecast from the lengths up to `up_to` and return, for each longer one, what was predicted and how wrong.

    Keys: length, actual_s, predicted_s, low_s, high_s, error (predicted / actual - 1).
    """
    known = {n: t for n, t in ttft_s.items() if n <= up_to}
    rows = []
    for length, actual in sorted(ttft_s.items()):
        if length > up_to:
            found, _ = _extrapolated(length, known, bound, "fit")
            rows.append(
                {
                    "length": length,
                    "actual_s": actual,
                    "predicted_s": found.ttft_s,
                    "low_s": found.low_s,
                    "high_s": found.high_s,
                    "error": found.ttft_s / actual - 1,
                }
            )
    return rows
