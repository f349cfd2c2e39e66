"""How long a prefill will take: as samples of this recipe tell it, else fitted to what this campaign measured, else
scaled from a published curve.

Between two sampled lengths the estimate and its interval are interpolated in log-log; beyond the last a fit goes on.

A fit is t(L) = c + a*L + b*w(L), w the FLOPs of the model's attention: L**2 for full attention, less for windows,
selections and states. It is least squares of relative errors, long lengths weighted more, no coefficient below zero. A
curve is scaled by the distance to the limit: t(L) = curve(L) * bound(L) / curve's bound(L). The share of the
limit that the curve's own hardware reached at that length then holds here too. Beyond its last length a curve of the
same setup is fitted instead. Neither may undercut the bound. A fit contradicts the bound if it undercuts it, or if it
says that longer prompts get further from it; then the bound and the share of it reached last bracket the time instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, log2, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from longctx.errors import DataError
from longctx.lengths import format_length
from longctx.plan.forecasting.published_curves import ReferenceCurve

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
# launch times of short prompts differ by a third between hosts), and not beyond its end.
AGREEING = 1.5


def _square(tokens: int) -> float:
    return float(tokens) ** 2


@dataclass(frozen=True, slots=True)
class TtftFit:
    """t(L) = c + a*L + b*work(L) in seconds and tokens; `covariance` is of (c, a, b), `longest` the last length."""

    a: float
    b: float
    c: float
    covariance: NDArray[np.float64]
    degrees: int
    longest: int
    work: Callable[[int], float] = _square

    def predict(self, tokens: int) -> tuple[float, float, float]:
        """Return (middle, low, high) seconds: a 90 % interval, widened by DRIFT_PER_DOUBLING beyond `longest`."""
        x = np.array([1.0, tokens, self.work(tokens)])
        middle = self.c + self.a * tokens + self.b * self.work(tokens)
        # The two-sided 90 % quantile of Student's t; without residuals MEASUREMENT_SIGMA is known: the normal's.
        t90 = float(stdtrit(self.degrees, 0.95)) if self.degrees else 1.645
        statistical = t90 * sqrt(max(0.0, float(x @ self.covariance @ x)))
        drift = DRIFT_PER_DOUBLING * max(0.0, log2(tokens / self.longest)) * middle
        half = sqrt(statistical**2 + drift**2)
        return middle, max(0.0, middle - half), middle + half


def fit_ttft(lengths: Sequence[int], ttft_s: Sequence[float], work: Callable[[int], float] = _square) -> TtftFit:
    """Fit at least two different lengths; the constant c joins from four on. DataError for fewer or bad values.

    `work` gives the model's attention FLOPs at a length, in any unit; 0 where it has no attention.
    """
    from scipy.optimize import nnls  # slow to import

    if len(lengths) != len(ttft_s) or len(set(lengths)) < 2:
        raise DataError("a forecast needs TTFT at two different lengths or more")
    if min(lengths) < 1 or min(ttft_s) <= 0:
        raise DataError("a forecast needs positive lengths and times")
    x, t = np.asarray(lengths, dtype=float), np.asarray(ttft_s, dtype=float)
    attention = np.array([work(length) for length in lengths])
    scale = np.array([1.0, x.max(), attention.max() or 1.0])  # keeps the normal equations well conditioned
    weights = (x / x.max()) ** WEIGHT_POWER
    design = np.stack([np.ones_like(x), x, attention], axis=1) / scale * (weights / t)[:, None]
    first = 0 if len(set(lengths)) >= 4 else 1
    solution = np.zeros(3)
    solution[first:], residual = nnls(design[:, first:], weights)
    used = np.flatnonzero(solution)
    degrees = max(0, len(lengths) - len(used))
    sigma = residual / sqrt(degrees) if degrees else 0.0
    covariance = np.zeros((3, 3))
    inverse = np.linalg.pinv(design[:, used].T @ design[:, used])
    covariance[np.ix_(used, used)] = inverse * max(sigma, MEASUREMENT_SIGMA) ** 2
    c, a, b = (float(value) for value in solution / scale)
    return TtftFit(a, b, c, covariance / np.outer(scale, scale), degrees, int(x.max()), work)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A forecast TTFT in seconds with its interval; `source` names what it rests on."""

    ttft_s: float
    low_s: float
    high_s: float
    source: str


def forecast(
    tokens: int,
    *,
    measured: Mapping[int, float] | None = None,
    sampled: Mapping[int, Estimate] | None = None,
    bound: Callable[[int], float] | None = None,
    curve: ReferenceCurve | None = None,
    same_setup: bool = False,
    work: Callable[[int], float] = _square,
) -> Estimate | None:
    """Return the TTFT to expect at `tokens`, or None where neither measurements nor a curve say anything.

    `measured` maps lengths to mean TTFT of this campaign, `sampled` to estimates from samples of its recipe; `bound`
    gives the limit in s; `same_setup` says that the curve is of the same model on the same number of the same GPUs,
    split in the same way; `work` is that of `fit_ttft`.
    """
    measured = measured or {}
    if tokens in measured:
        return Estimate(measured[tokens], measured[tokens], measured[tokens], "measured")
    if sampled:
        if min(sampled) <= tokens <= max(sampled):
            return _between(tokens, sampled)
        known = {length: one.ttft_s for length, one in sampled.items()} | dict(measured)
        if tokens > max(sampled) and len(known) >= 2:
            return extrapolate(tokens, known, bound, f"fit of {len(known)} lengths, sampled ones among them", work)[0]
    deviation = None  # the factor, at least 1, by which the longest measured prompt was slower or faster than the curve
    if curve and same_setup and bound and measured:
        ratio = measured[max(measured)] / curve.time_at(max(measured))
        deviation = max(ratio, 1 / ratio)
    if len(measured) >= 2:
        estimate, is_credible = extrapolate(tokens, measured, bound, f"fit of {len(measured)} lengths", work)
        agrees = deviation is not None and deviation <= AGREEING and curve and max(measured) <= curve.lengths[-1]
        if is_credible or not agrees:
            return estimate
    if curve is None or bound is None:
        return None
    if same_setup and tokens > curve.lengths[-1]:
        known = dict(zip(curve.lengths, curve.ttft_s, strict=True))
        return extrapolate(tokens, known, bound, f"fit of {curve.name}", work)[0]
    floor = bound(tokens)
    middle = max(floor, curve.time_at(tokens) * floor / curve.bound_s(tokens))
    factor = max(1 + OWN_SPREAD, deviation or 1.0) if same_setup else FOREIGN_FACTOR
    source = curve.name if same_setup else f"{curve.name}, scaled by hardware"
    return Estimate(middle, max(floor, middle / factor), middle * factor, source)


def _between(tokens: int, sampled: Mapping[int, Estimate]) -> Estimate:
    """Return the estimate of a sampled length, or what lies between two of them."""
    if tokens in sampled:
        return sampled[tokens]
    lengths = sorted(sampled)
    x = np.log(lengths)
    columns = zip(*((one.ttft_s, one.low_s, one.high_s) for one in map(sampled.__getitem__, lengths)), strict=True)
    # An interval may begin at 0, whose logarithm is not a number.
    logs = (np.log(np.maximum(column, np.finfo(float).tiny)) for column in columns)
    middle, low, high = (exp(float(np.interp(log(tokens), x, y))) for y in logs)
    return Estimate(middle, low, high, sampled[lengths[-1]].source)


def extrapolate(
    tokens: int,
    measured: Mapping[int, float],
    bound: Callable[[int], float] | None,
    source: str,
    work: Callable[[int], float] = _square,
) -> tuple[Estimate, bool]:
    """Return the estimate of a fit and whether the fit is credible.

    A fit is credible if it keeps to the bound and the data far beyond its data, since in every known ladder the time
    over the bound falls as prompts grow. Without a credible fit the estimate lies between the bound and the share of
    it reached last, and its middle is no less than the time of the longest measured prompt.
    """
    fit = fit_ttft(list(measured), list(measured.values()), work)
    last, far = fit.longest, fit.longest << FAR_DOUBLINGS
    floor = bound(tokens) if bound else 0.0
    if bound is None or tokens <= last or 1 <= fit.predict(far)[0] / bound(far) <= measured[last] / bound(last):
        middle, low, high = (max(seconds, floor) for seconds in fit.predict(tokens))
        return Estimate(middle, low, high, source), True
    high = (1 + SHARE_NOISE) * max(1.0, measured[last] / bound(last)) * floor
    middle = min(max(sqrt(floor * high), measured[last]), high)
    return Estimate(middle, floor, high, f"limit, and the share of it reached at {format_length(last)}"), False


def rising(estimates: Mapping[int, Estimate]) -> dict[int, Estimate]:
    """Return the estimates so that no forecast is below one of a shorter length; what was measured stays as it is.

    Two lengths may have two sources: a fit and a curve, or two parts of a curve. A forecast between measured lengths
    stays between their times, the longer one's first.
    """
    risen: dict[int, Estimate] = {}
    least: tuple[float, ...] = (0.0, 0.0, 0.0)
    for length in sorted(estimates):
        one = estimates[length]
        values: tuple[float, ...] = (one.ttft_s, one.low_s, one.high_s)
        if one.source != "measured":
            values = tuple(map(max, values, least))
            later = [known.ttft_s for n, known in estimates.items() if n > length and known.source == "measured"]
            values = tuple(min(value, *later) for value in values) if later else values
        risen[length] = Estimate(values[0], values[1], values[2], one.source)
        least = tuple(map(max, values, least))
    return risen
