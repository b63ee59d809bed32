"""Intervals against scipy, pooled means against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.metrics import mean
from mill.metrics.estimate import NOTHING, Estimate, around, exact_interval, is_proportion, pool

LARGE = Estimate(0.5, 0.04, 0.4216, 0.5784, 30)
SMALL = Estimate(0.9, 0.03, 0.8412, 0.9588, 10)


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (1, 3), (7, 10), (333, 1000), (9999, 10000)])
def test_the_exact_interval_is_scipys(right: int, n: int) -> None:
    expected = stats.binomtest(right, n).proportion_ci(0.95, method="exact")
    assert exact_interval(right, n) == pytest.approx((expected.low, expected.high), abs=1e-11)


def test_the_exact_interval_of_all_right_by_hand() -> None:
    """All of n right happens with a probability of p to the n: 2.5 % of the time at the lower end."""
    low, high = exact_interval(20, 20)
    assert low == pytest.approx(0.025 ** (1 / 20)) and high == 1.0
    low, high = exact_interval(0, 20)
    assert low == 0.0 and high == pytest.approx(1 - 0.025 ** (1 / 20))


def test_the_interval_of_a_mean_is_students() -> None:
    expected = stats.t.interval(0.95, df=6, loc=10.0, scale=0.5)
    found = around(10.0, 0.5, 7)
    assert (found.value, found.stderr, found.n) == (10.0, 0.5, 7)
    assert (found.low, found.high) == pytest.approx(expected)


def test_a_weighted_pool_gives_samples_equal_weight() -> None:
    found = pool([LARGE, SMALL], weighted=True)
    assert found.value == pytest.approx(0.6)  # (30 * 0.5 + 10 * 0.9) / 40
    assert found.stderr == pytest.approx(math.sqrt(0.0009 + 0.00005625))  # (0.75 * 0.04)^2 + (0.25 * 0.03)^2
    assert found.n == 40


def test_a_plain_pool_gives_tasks_equal_weight() -> None:
    found = pool([LARGE, SMALL], weighted=False)
    assert found.value == pytest.approx(0.7)
    assert found.stderr == pytest.approx(0.025)  # sqrt(0.02^2 + 0.015^2)
    df = 0.000625**2 / (0.0004**2 / 29 + 0.000225**2 / 9)  # Welch and Satterthwaite
    reach = stats.t.ppf(0.975, df) * 0.025
    assert (found.low, found.high) == pytest.approx((0.7 - reach, 0.7 + reach), abs=1e-9)
    assert found.n == 40


@pytest.mark.parametrize("parts", [[], [NOTHING], [NOTHING, NOTHING]])
def test_a_pool_of_nothing_is_nothing(parts: list[Estimate]) -> None:
    found = pool(parts, weighted=True)
    assert math.isnan(found.value)
    assert (found.stderr, found.low, found.high, found.n) == (None, None, None, 0)


def test_a_task_of_one_sample_leaves_the_pool_without_an_error() -> None:
    found = pool([LARGE, Estimate(1.0, None, None, None, 1)], weighted=True)
    assert found.value == pytest.approx(16 / 31)
    assert (found.stderr, found.low, found.high, found.n) == (None, None, None, 31)


def test_nan_in_a_task_is_nan_in_the_pool() -> None:
    found = pool([LARGE, Estimate(math.nan, math.nan, math.nan, math.nan, 10)], weighted=True)
    assert math.isnan(found.value)
    assert found.stderr is not None and math.isnan(found.stderr)
    assert found.n == 40


def test_the_mean_of_tasks_that_are_all_right_does_not_collapse() -> None:
    """Two tasks of ten, all right: as 20 of 20."""
    both = [mean([[1.0]] * 10)] * 2
    for weighted in (True, False):
        found = pool(both, weighted=weighted)
        assert (found.value, found.high) == (1.0, 1.0) and found.low == pytest.approx(0.025 ** (1 / 20))


@pytest.mark.parametrize(("p", "tasks", "n"), [(0.99, 2, 10), (0.97, 2, 10), (0.97, 5, 20), (0.6, 3, 5)])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_interval_of_a_benchmark_covers(p: float, tasks: int, n: int, weighted: bool) -> None:
    draw, covered = np.random.default_rng(1), 0
    for _ in range(300):
        parts = [mean([[float(right)] for right in draw.random(n) < p]) for _ in range(tasks)]
        found = pool(parts, weighted=weighted)
        covered += (found.low or 0.0) <= p <= (found.high or 1.0)
    assert covered / 300 > 0.92


def test_a_task_of_zeros_and_ones_is_recognized_by_its_error() -> None:
    assert is_proportion(mean([[1.0]] * 7 + [[0.0]] * 3)) and is_proportion(mean([[1.0]] * 4))
    assert not is_proportion(mean([[0.7], [0.75], [0.65]]))
    assert not is_proportion(mean([[7.0], [8.0]]))


def test_the_mean_of_proportions_stays_inside_0_and_1() -> None:
    found = pool([mean([[0.0]] * 4 + [[1.0]]), mean([[0.0]] * 5)], weighted=True)
    assert found.low is not None and 0.0 <= found.low < 0.01
    assert found.high is not None and 0.1 < found.high < 0.5
