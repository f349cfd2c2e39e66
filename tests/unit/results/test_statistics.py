"""Statistics against an independent oracle: exact fractions, published tables of Student's t, and known curves."""

import math
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from longctx.results import statistics
from longctx.results.statistics import Description

values = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12)


def exact(numbers: list[float]) -> tuple[float, float | None]:
    """Return mean and sample stddev computed in exact fractions."""
    exact_numbers = [Fraction(x) for x in numbers]
    mean = sum(exact_numbers, Fraction(0)) / len(exact_numbers)
    if len(numbers) == 1:
        return float(mean), None
    return float(mean), math.sqrt(sum((x - mean) ** 2 for x in exact_numbers) / (len(numbers) - 1))


@given(values)
def test_description_is_the_exact_one(numbers: list[float]) -> None:
    mean, std = exact(numbers)
    found = statistics.describe(numbers)
    assert found.n == len(numbers)
    assert found.mean == pytest.approx(mean, rel=1e-12)
    assert found.std == (None if std is None else pytest.approx(std, rel=1e-9, abs=1e-15))
    assert (found.min, found.max) == (min(numbers), max(numbers))
    ordered = sorted(numbers)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert found.median == pytest.approx(median)


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=8))
def test_nothing_is_ever_inf_or_nan(numbers: list[float | None]) -> None:
    small = [x if x is None or not math.isfinite(x) or abs(x) < 1e150 else None for x in numbers]
    found = statistics.describe(small)
    fields = [found.mean, found.std, found.cv, found.min, found.median, found.max]
    assert all(field is None or math.isfinite(field) for field in fields)
    assert found.n == sum(x is not None and math.isfinite(x) for x in small)


def test_one_value_has_no_deviation_and_none_has_nothing() -> None:
    assert statistics.describe([5.0]) == Description(1, 5.0, None, None, 5.0, 5.0, 5.0)
    assert statistics.describe([None, math.nan]) == Description()
    assert statistics.describe([0.0, 0.0]).cv is None
    assert statistics.describe([1.0, 3.0]).cv == pytest.approx(math.sqrt(2) / 2)
    assert statistics.describe([-1.0, -3.0]).cv == pytest.approx(math.sqrt(2) / 2)


def test_outliers_are_marked_from_five_values_on() -> None:
    assert statistics.outliers([1.0, 1.01, 0.99, 1.02, 5.0]) == [False] * 4 + [True]
    assert statistics.outliers([1.0, 1.0, 1.0, 5.0]) == [False] * 4
    assert statistics.outliers([1.0, 1.01, None, 0.99, 1.02, 5.0]) == [False] * 5 + [True]
    assert statistics.outliers([2.0] * 6) == [False] * 6
    # More than half are equal: the MAD is 0 and the mean deviation takes its place.
    assert statistics.outliers([2.0] * 19 + [2.5]) == [False] * 19 + [True]


def test_outlier_rule_is_the_stated_one() -> None:
    numbers = [10.0, 11.0, 12.0, 13.0, 14.0]
    mad = 1.0
    edge = 12 + 3.5 * mad / 0.6745
    assert statistics.outliers([*numbers, 12.0, edge + 0.3])[-1]
    assert not statistics.outliers([*numbers, 12.0, edge - 0.3])[-1]


def test_where_most_are_equal_the_mean_deviation_is_the_scale() -> None:
    # One of n values is off by d: the mean deviation is d / n, so it is an outlier where n > 3.5 * 1.2533 = 4.39.
    assert statistics.outliers([2.0] * 4 + [2.5]) == [False] * 4 + [True]
    # Two of n are: the mean deviation is 2 d / n, so they are outliers where n > 8.77.
    assert statistics.outliers([2.0] * 6 + [2.5] * 2) == [False] * 8
    assert statistics.outliers([2.0] * 7 + [2.5] * 2) == [False] * 7 + [True] * 2


def test_line_and_its_error_are_the_textbook_ones() -> None:
    # Anscombe's first data set: y = 3.0001 + 0.5001 x, R² 0.6665, standard error of the slope 0.1179.
    x = [10.0, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    fit = statistics.fit_line(x, y)
    assert fit is not None
    assert fit.intercept == pytest.approx(3.0001, abs=1e-4)
    assert fit.slope == pytest.approx(0.5001, abs=1e-4)
    assert fit.r2 == pytest.approx(0.6665, abs=1e-4)
    assert fit.slope_std == pytest.approx(0.1179, abs=1e-4)


def test_no_line_through_one_length() -> None:
    assert statistics.fit_line([5.0, 5.0], [1.0, 2.0]) is None
    flat = statistics.fit_line([1.0, 2.0], [3.0, 3.0])
    assert flat is not None
    assert (flat.slope, flat.r2, flat.slope_std) == (0.0, 1.0, None)


def test_ratio_has_welchs_interval() -> None:
    # Equal n and equal relative deviation: 4 degrees of freedom, half width 2.776 * sqrt(2 / 3) * 1 %.
    found = statistics.ratio(Description(3, 110.0, 1.1), Description(3, 100.0, 1.0))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    half = 2.776 * math.sqrt(2 / 3) * 0.01
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high) == (
        pytest.approx(1.1 * math.exp(-half), rel=1e-4),
        pytest.approx(1.1 * math.exp(half), rel=1e-4),
    )
    assert found.p is not None
    assert found.p < 0.001
    # Exactly as far apart as the interval is wide, which excludes 1 with 95 %: p = 5 %, of both tails.
    edge = statistics.ratio(Description(3, math.exp(half), 0.01 * math.exp(half)), Description(3, 1.0, 0.01))
    assert edge is not None
    assert edge.p == pytest.approx(0.05, rel=1e-3)


def test_a_single_run_is_taken_to_scatter_like_the_other_side() -> None:
    # 2 degrees of freedom, half width 4.303 * sqrt(1 + 1 / 3) * 1 %.
    found, back = (statistics.ratio(*pair) for pair in permutations((Description(1, 1.1), Description(3, 1.0, 0.01))))
    assert found is not None
    assert back is not None
    assert found.low == pytest.approx(1.1 * math.exp(-4.303 * math.sqrt(4 / 3) * 0.01), rel=1e-4)
    assert found.p == pytest.approx(0.0145, rel=0.01)
    assert (back.low, back.p) == (pytest.approx(1 / (found.high or 0)), pytest.approx(found.p))


def test_ratio_of_single_runs_has_no_interval() -> None:
    assert statistics.ratio(Description(1, 2.0), Description(1, 1.0)) == statistics.Ratio(2.0)
    assert statistics.ratio(Description(0, 2.0), Description(3, 1.0, 0.1)) == statistics.Ratio(2.0)
    assert statistics.ratio(Description(), Description(3, 1.0, 0.1)) is None
    assert statistics.ratio(Description(3, 0.0, 0.0), Description(3, 1.0, 0.1)) is None


def test_ratio_without_any_spread_is_exact() -> None:
    assert statistics.ratio(Description(3, 2.0, 0.0), Description(3, 1.0, 0.0)) == statistics.Ratio(2.0, 2.0, 2.0, 0.0)


def test_rounding_of_a_printed_mean_widens_the_interval() -> None:
    """0.08 printed with two decimals may be anything from 0.075 to 0.085."""
    found = statistics.ratio(Description(3, 0.084, 0.0), Description(3, 0.08, 0.0), rounding=(0.0, 0.01))
    assert found is not None
    assert found.low is not None
    assert found.low < 1 < found.value
    # A number rounded to a unit has a standard deviation of unit / sqrt(12); the normal's 95 % point is 1.96.
    assert math.log(found.value / found.low) == pytest.approx(1.96 * (0.01 / 0.08) / math.sqrt(12), rel=2e-3)


@given(st.floats(0.1, 10), st.floats(0.001, 0.2), st.integers(2, 9), st.floats(0.001, 0.2), st.integers(2, 9))
def test_swapping_the_runs_inverts_the_ratio(mean: float, cv_a: float, n_a: int, cv_b: float, n_b: int) -> None:
    a, b = Description(n_a, mean, cv_a * mean), Description(n_b, 1.0, cv_b)
    there, back = statistics.ratio(a, b), statistics.ratio(b, a)
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert back.high is not None
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)
    assert there.p == pytest.approx(back.p)


def test_many_tests_count_together_or_not_at_all() -> None:
    # Benjamini and Hochberg (1995), their example of 15 tests: four count at 5 %, three by Bonferroni, nine alone.
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert statistics.significant([*p, None], 0.05) == [True] * 4 + [False] * 12
    assert statistics.significant(p[::-1], 0.05) == [False] * 11 + [True] * 4
    assert statistics.significant([0.04, 0.045, 0.05], 0.05) == [True] * 3
    assert statistics.significant([0.04, 0.3, 0.9], 0.05) == [False] * 3
    assert statistics.significant([None], 0.05) == [False]
