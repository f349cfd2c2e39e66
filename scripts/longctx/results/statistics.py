"""Statistics of a few repeated measurements: plain functions of numbers, None for whatever is not defined.

Missing values (None) and values that are not finite are left out, so no result here is ever inf or NaN.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

OUTLIER_Z, OUTLIER_MIN_N = 3.5, 5
# Degrees of freedom from which on Student's t is the normal distribution for every purpose here.
MANY = 1000.0


@dataclass(frozen=True, slots=True)
class Description:
    """n values: mean, sample standard deviation (n - 1 in the denominator), CV = std / mean, extremes and median."""

    n: int = 0
    mean: float | None = None
    std: float | None = None
    cv: float | None = None
    min: float | None = None
    median: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class LinearFit:
    """y = intercept + slope * x; slope_std is the slope's standard error, None for two points."""

    intercept: float
    slope: float
    slope_std: float | None
    r2: float
    n: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """value = a / b with its confidence interval; low, high and p (two-sided, of a = b) are None without a spread."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the values that are there and finite, in order."""
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def describe(values: Iterable[float | None]) -> Description:
    """Describe `values`; one value has no standard deviation, none has nothing."""
    numbers = finite(values)
    if not numbers:
        return Description()
    mean = statistics.fmean(numbers)
    std = statistics.stdev(numbers) if len(numbers) > 1 else None
    cv = std / abs(mean) if std is not None and mean else None
    return Description(len(numbers), mean, std, cv, min(numbers), statistics.median(numbers), max(numbers))


def outliers(values: Sequence[float | None]) -> list[bool]:
    """Say for each value whether its modified z-score 0.6745 |x - median| / MAD exceeds 3.5 (Iglewicz, Hoaglin 1993).

    Only with five values or more; where most are equal (MAD 0) 1.2533 times the mean deviation takes the MAD's place.
    """
    from scipy.stats import median_abs_deviation  # slow to import

    numbers = finite(values)
    if len(numbers) < OUTLIER_MIN_N:
        return [False] * len(values)
    median = statistics.median(numbers)
    mad = float(median_abs_deviation(numbers, scale=0.6745))
    limit = OUTLIER_Z * (mad or 1.2533 * statistics.fmean(abs(number - median) for number in numbers))
    return [value is not None and math.isfinite(value) and abs(value - median) > limit > 0 for value in values]


def fit_line(x: Sequence[float], y: Sequence[float]) -> LinearFit | None:
    """Return the least-squares line through the points, None with fewer than two distinct x."""
    from scipy.stats import linregress  # slow to import

    if len(set(x)) < 2:
        return None
    x_mean, y_mean = float(np.mean(x)), float(np.mean(y))
    # Centred: lengths that are far from 0 cost no digits.
    line = linregress(np.asarray(x) - x_mean, np.asarray(y) - y_mean)
    slope, slope_std = float(line.slope), float(line.stderr) if len(x) > 2 else None
    r2 = float(line.rvalue**2)
    if len(set(y)) == 1:  # a level line through every point, of which scipy says NaN
        slope_std, r2 = (0.0 if len(x) > 2 else None), 1.0
    return LinearFit(y_mean - slope * x_mean, slope, slope_std, r2, len(x))


def ratio(
    a: Description, b: Description, confidence: float = 0.95, rounding: tuple[float, float] = (0.0, 0.0)
) -> Ratio | None:
    """Return mean(a) / mean(b) of positive means with Welch's interval of the logarithm, or None without both means.

    The relative standard errors std / (sqrt(n) mean) add in squares; degrees of freedom by Welch and Satterthwaite, or
    those of the only side that has a spread.
    A single value is taken to scatter like the other side's values, relative to its mean; two of them are untestable.
    rounding: the last digit's unit of either mean where it was read from a printed table; adds (unit / mean)^2 / 12.
    """
    if not a.mean or not b.mean or a.mean <= 0 or b.mean <= 0:
        return None
    value, sides = a.mean / b.mean, ((a.mean, a.std, a.n), (b.mean, b.std, b.n))
    cvs = [std / mean if std is not None and n > 1 else None for mean, std, n in sides]
    known = [cv for cv in cvs if cv is not None]
    if not known or not a.n or not b.n:
        return Ratio(value)
    parts = [(known[0] if cv is None else cv) ** 2 / n for cv, (_, _, n) in zip(cvs, sides, strict=True)]
    variance = sum(parts) + sum((unit / mean) ** 2 / 12 for unit, mean in zip(rounding, (a.mean, b.mean), strict=True))
    if not variance:
        return Ratio(value, value, value, 1.0 if value == 1 else 0.0)
    freedoms = [n - 1 for cv, (_, _, n) in zip(cvs, sides, strict=True) if cv is not None]
    freedom: float = freedoms[0]
    if len(freedoms) > 1:
        scatter = sum(part**2 / n for part, n in zip(parts, freedoms, strict=True))
        freedom = variance**2 / scatter if scatter else MANY
    error = math.sqrt(variance)
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(math.log(value)) / error))
    return Ratio(value, value * math.exp(-min(half, 700)), value * math.exp(min(half, 700)), min(p, 1.0))


def significant(p_values: Sequence[float | None], level: float) -> list[bool]:
    """Say which of many tests count together, by the procedure of Benjamini and Hochberg (1995).

    Of m tests without a true difference, the chance that any counts is `level`, not up to m times that; where many
    differ, hardly more is asked of each than alone. None (nothing to test) never counts and is not one of the m.
    """
    from scipy.stats import false_discovery_control  # slow to import

    known = [p for p in p_values if p is not None]
    adjusted = iter(false_discovery_control(known) if known else ())
    return [p is not None and bool(next(adjusted) <= level) for p in p_values]
