"""The beta and Student's t distribution against scipy."""

from __future__ import annotations

import math
import random

import pytest
from scipy import special, stats  # type: ignore[import-untyped]

from mill.metrics.estimate import beta_cdf, beta_quantile, t_p_value, t_quantile


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


def test_the_edges() -> None:
    assert (beta_cdf(0.0, 2, 3), beta_cdf(1.0, 2, 3)) == (0.0, 1.0)
    assert t_p_value(math.inf, 3) == 0.0 and math.isnan(t_p_value(math.nan, 3))
