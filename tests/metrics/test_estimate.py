"""Intervals against scipy, pooled means against values computed by hand."""

from __future__ import annotations

import math
import random

import pytest
from scipy import (  # type: ignore[import-untyped]
    special,  # type: ignore[import-untyped]
    stats,  # type: ignore[import-untyped]
)

from mill.metrics import mean
from mill.metrics.estimate import (
    Estimate,
    beta_cdf,
    beta_quantile,
    is_proportion,
    pool,
    t_p_value,
    t_quantile,
)

LARGE = Estimate(0.5, 0.04, 0.4216, 0.5784, 30)
SMALL = Estimate(0.9, 0.03, 0.8412, 0.9588, 10)


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


def test_a_task_of_one_sample_leaves_the_pool_without_an_error() -> None:
    found = pool([LARGE, Estimate(1.0, None, None, None, 1)], weighted=True)
    assert found.value == pytest.approx(16 / 31)
    assert (found.stderr, found.low, found.high, found.n) == (None, None, None, 31)


def test_the_mean_of_tasks_that_are_all_right_does_not_collapse() -> None:
    """Two tasks of ten, all right: as 20 of 20."""
    both = [mean([[1.0]] * 10)] * 2
    for weighted in (True, False):
        found = pool(both, weighted=weighted)
        assert (found.value, found.high) == (1.0, 1.0) and found.low == pytest.approx(0.025 ** (1 / 20))


def test_a_task_of_zeros_and_ones_is_recognized_by_its_error() -> None:
    assert is_proportion(mean([[1.0]] * 7 + [[0.0]] * 3)) and is_proportion(mean([[1.0]] * 4))
    assert not is_proportion(mean([[0.7], [0.75], [0.65]]))
    assert not is_proportion(mean([[7.0], [8.0]]))


def test_the_mean_of_proportions_stays_inside_0_and_1() -> None:
    found = pool([mean([[0.0]] * 4 + [[1.0]]), mean([[0.0]] * 5)], weighted=True)
    assert found.low is not None and 0.0 <= found.low < 0.01
    assert found.high is not None and 0.1 < found.high < 0.5


def test_the_beta_distribution_is_scipys() -> None:
    draw = random.Random(1)
    for _ in range(500):
        a, b, x = 10 ** draw.uniform(-1, 4.5), 10 ** draw.uniform(-1, 4.5), draw.random()
        assert beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), abs=1e-11)


def test_the_beta_distribution_where_both_sides_of_the_fraction_seem_the_slow_one() -> None:
    """By rounding x may be above the mean of I_x(a, b), and 1 - x above that of I_1-x(b, a)."""
    draw = random.Random(3)
    for _ in range(500):
        a, b = draw.uniform(0.1, 300), draw.uniform(0.1, 300)
        x = math.nextafter((a + 1.0) / (a + b + 2.0), 1.0)
        assert beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), abs=1e-11)


def test_quantiles_of_the_beta_distribution_are_scipys() -> None:
    draw = random.Random(2)
    for _ in range(500):
        n = int(10 ** draw.uniform(0, 4.5))
        k, share = draw.randint(1, n), draw.choice([0.025, 0.975, 0.5])
        assert beta_quantile(share, k, n - k + 1) == pytest.approx(special.betaincinv(k, n - k + 1, share), rel=1e-9)


@pytest.mark.parametrize("df", [1, 1.5, 2, 3, 4, 9, 29, 99, 999, 1e5])
def test_students_t_is_scipys(df: float) -> None:
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-9)
    for t in (0.1, 1.0, -2.0, 5.0, 30.0):
        assert t_p_value(t, df) == pytest.approx(2 * stats.t.sf(abs(t), df), rel=1e-8)
