"""Percentiles of values in groups: against the binomial interval of order statistics, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.metrics.estimate import Estimate
from mill.metrics.paired import clustered_percentiles

SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99}


def test_of_independent_values_the_interval_is_that_of_order_statistics() -> None:
    """The percentile is between the i-th and the j-th value unless fewer than i or at least j values are below it, and that
    number is binomial. Each end may be one value off: the effective size of n groups of one value is n - 1."""
    values = np.random.default_rng(1).exponential(size=800)
    ordered, found = np.sort(values), clustered_percentiles([[float(value)] for value in values], SHARES)
    for name, share in SHARES.items():
        below = stats.binom(800, share)
        first, last = int(below.ppf(0.025)), int(below.ppf(0.975))
        low, high = found[name].low, found[name].high
        assert low is not None and high is not None
        assert ordered[first - 2] <= low <= ordered[first], name
        assert ordered[last - 1] <= high <= ordered[min(799, last + 2)], name
        assert found[name].value == pytest.approx(float(np.quantile(values, share)))


def test_equal_groups_count_once() -> None:
    """Thirty texts that repeat one value each are thirty values, whatever their length. Of 30 the median is between the 10th
    and the 21st; the factor for few texts makes it the 9th and the 22nd."""
    values = [float(number) for number in range(30)]
    one, many = (clustered_percentiles([[value] * size for value in values], SHARES)["median"] for size in (1, 40))
    assert stats.binom(30, 0.5).interval(0.95) == (10, 20)
    assert (one.low, one.high) == (9.0, 20.0) and (many.low, many.high) == (8.0, 21.0)  # from 0 on
    spread = clustered_percentiles([[float(value) for value in values] for _ in values], SHARES)["median"]
    assert spread.low is not None and one.low is not None and spread.low > one.low + 3  # every text shows all values


@pytest.mark.parametrize(
    ("texts", "bounded"),
    [(5, []), (6, ["median"]), (35, ["median"]), (36, ["median", "p90"]), (367, ["median", "p90"]), (368, [*SHARES])],
)
def test_few_texts_do_not_bound_a_high_percentile(texts: int, bounded: list[str]) -> None:
    """A percentile is bounded if share ** texts is below 0.025: from 6 texts on for the median, from 36 on for p90, from 368
    on for p99. The values of a text are of no use for that."""
    random = np.random.default_rng(2)
    found = clustered_percentiles([list(map(float, random.random(200))) for _ in range(texts)], SHARES)
    assert [name for name, estimate in found.items() if estimate.high != math.inf] == bounded


def test_values_without_a_spread_are_bounded_by_the_number_of_texts() -> None:
    few, many = (clustered_percentiles([[0.0] * 32] * texts, SHARES) for texts in (40, 400))
    assert (few["p90"].low, few["p90"].high, few["p99"].high) == (0.0, 0.0, math.inf)
    assert many["p99"] == Estimate(0.0, None, 0.0, 0.0, 12800)


def test_one_text_nan_and_nothing_have_no_interval() -> None:
    assert clustered_percentiles([[1.0, 2.0, 3.0]], SHARES)["median"] == Estimate(2.0, None, None, None, 3)
    assert math.isnan(clustered_percentiles([], SHARES)["p90"].value)
    spoilt = clustered_percentiles([[1.0], [math.nan]], SHARES)["median"]
    assert math.isnan(spoilt.value) and spoilt.low is None
    endless = clustered_percentiles([[0.0, math.inf]] * 50, SHARES)
    assert endless["p99"].value == math.inf and endless["median"].low == 0.0


def drawn(random: np.random.Generator, texts: int, between: float, bad: float) -> list[list[float]]:
    """Log-normal between and within texts; a share of texts is 20 times worse."""
    levels = random.normal(0, between, texts) + np.log(20) * (random.random(texts) < bad)
    return [list(map(float, np.exp(random.normal(level, 0.7, 32)))) for level in levels]


@pytest.mark.parametrize(("between", "bad"), [(0.5, 0.0), (1.0, 0.0), (0.3, 0.1), (0.3, 0.01)])
@pytest.mark.parametrize("texts", [12, 60])
def test_nine_of_ten_intervals_contain_the_true_percentile(texts: int, between: float, bad: float) -> None:
    """Nominal are 95 %; of 120 trials at 95 % fewer than 107 succeed in 1 of 400 cases."""
    random = np.random.default_rng(5)
    everything = np.concatenate([np.ravel(drawn(random, 4_000, between, bad))])
    trials = [clustered_percentiles(drawn(random, texts, between, bad), SHARES) for _ in range(120)]
    for name, share in SHARES.items():
        truth = float(np.quantile(everything, share))
        held = sum((one[name].low or 0) <= truth <= (one[name].high or 0) for one in trials)
        assert held >= 107, (name, held)
