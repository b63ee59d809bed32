"""Intervals against scipy, pooled means against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mill.metrics.estimate import NOTHING, Estimate, around, pool, wilson

LARGE = Estimate(0.5, 0.04, 0.4216, 0.5784, 30)
SMALL = Estimate(0.9, 0.03, 0.8412, 0.9588, 10)


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (1, 3), (7, 10), (333, 1000), (9999, 10000)])
def test_wilson_agrees_with_scipy(right: int, n: int) -> None:
    expected = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_of_three_in_four_by_hand() -> None:
    z2 = 3.8414588206941227
    centre, spread = 0.75 + z2 / 8, math.sqrt(z2 * (0.1875 / 4 + z2 / 64))
    scale = 1 + z2 / 4
    assert wilson(3, 4) == pytest.approx(((centre - spread) / scale, (centre + spread) / scale))


@settings(deadline=None)
@given(n=st.integers(1, 100_000), share=st.floats(0, 1))
def test_wilson_stays_between_zero_and_one(n: int, share: float) -> None:
    low, high = wilson(round(n * share), n)
    assert 0.0 <= low < high <= 1.0


@pytest.mark.parametrize("n", [1, 7, 10, 500])
def test_wilson_does_not_collapse_when_all_are_wrong_or_all_are_right(n: int) -> None:
    reach = 3.8414588206941227 / (n + 3.8414588206941227)
    assert wilson(0, n) == pytest.approx((0.0, reach), abs=1e-12)
    assert wilson(n, n) == pytest.approx((1.0 - reach, 1.0), abs=1e-12)


def test_the_normal_interval_reaches_1_96_standard_errors() -> None:
    expected = stats.norm.interval(0.95, loc=10.0, scale=0.5)
    found = around(10.0, 0.5, 7)
    assert (found.value, found.stderr, found.n) == (10.0, 0.5, 7)
    assert (found.low, found.high) == pytest.approx(expected)


def test_without_a_standard_error_there_is_no_interval() -> None:
    assert around(0.25, None, 1) == Estimate(0.25, None, None, None, 1)


def test_a_weighted_pool_counts_each_sample_alike() -> None:
    found = pool([LARGE, SMALL], weighted=True)
    assert found.value == pytest.approx(0.6)  # (30 * 0.5 + 10 * 0.9) / 40
    assert found.stderr == pytest.approx(math.sqrt(0.0009 + 0.00005625))  # (0.75 * 0.04)^2 + (0.25 * 0.03)^2
    assert found.n == 40


def test_a_plain_pool_counts_each_task_alike() -> None:
    found = pool([LARGE, SMALL], weighted=False)
    assert found.value == pytest.approx(0.7)
    assert found.stderr == pytest.approx(0.025)  # sqrt(0.02^2 + 0.015^2)
    assert (found.low, found.high) == pytest.approx((0.7 - 1.959964 * 0.025, 0.7 + 1.959964 * 0.025), abs=1e-6)
    assert found.n == 40


def test_a_pool_of_one_is_that_one() -> None:
    found = pool([LARGE], weighted=False)
    assert (found.value, found.stderr, found.n) == pytest.approx((0.5, 0.04, 30))


def test_parts_without_samples_do_not_weigh_in() -> None:
    assert pool([NOTHING, SMALL], weighted=False).value == pytest.approx(0.9)


@pytest.mark.parametrize("parts", [[], [NOTHING], [NOTHING, NOTHING]])
def test_a_pool_of_nothing_is_nothing(parts: list[Estimate]) -> None:
    found = pool(parts, weighted=True)
    assert math.isnan(found.value)
    assert (found.stderr, found.low, found.high, found.n) == (None, None, None, 0)


def test_a_part_of_one_sample_leaves_the_pool_without_an_error() -> None:
    found = pool([LARGE, Estimate(1.0, None, None, None, 1)], weighted=True)
    assert found.value == pytest.approx(16 / 31)
    assert (found.stderr, found.low, found.high, found.n) == (None, None, None, 31)


def test_nan_in_a_part_is_nan_in_the_pool() -> None:
    found = pool([LARGE, Estimate(math.nan, math.nan, math.nan, math.nan, 10)], weighted=True)
    assert math.isnan(found.value)
    assert found.stderr is not None and math.isnan(found.stderr)
    assert found.n == 40


def test_infinity_in_a_part_is_infinity_in_the_pool() -> None:
    assert pool([LARGE, Estimate(math.inf, math.nan, math.nan, math.nan, 10)], weighted=False).value == math.inf


def test_the_mean_of_proportions_stays_inside_0_and_1() -> None:
    from mill.metrics import mean

    found = pool([mean([[0.0]] * 4 + [[1.0]]), mean([[0.0]] * 5)], weighted=True)
    assert found.low == 0.0
    assert found.high is not None and 0.1 < found.high < 0.5
