"""Paired statistics against scipy, statsmodels and numpy, and against values computed by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from mill.metrics.estimate import NOTHING, Estimate, around
from mill.metrics.paired import (
    bounded_mean,
    clustered_mean,
    clustered_rate,
    exponential,
    largest,
    mcnemar,
    mean_of,
    p_of_zero,
    percentile,
    rate,
    rate_difference,
)
from tests.growth import LINEAR, TIMES, growth

stats = pytest.importorskip("scipy.stats")


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 0) == 2 / 32
    assert mcnemar(1, 5) == 2 * (1 + 6) / 64
    assert mcnemar(3, 3) == 1.0


def test_mcnemar_agrees_with_scipys_binomial_test() -> None:
    draw = random.Random(1)
    for _ in range(200):
        worse, better = draw.randint(0, 60), draw.randint(0, 60)
        if worse + better:
            expected = stats.binomtest(worse, worse + better, 0.5).pvalue
            assert mcnemar(worse, better) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_agrees_with_statsmodels() -> None:
    tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    draw = random.Random(2)
    for _ in range(50):
        worse, better = draw.randint(0, 40), draw.randint(1, 40)
        expected = tables.mcnemar([[10, worse], [better, 20]], exact=True).pvalue
        assert mcnemar(worse, better) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_of_a_large_benchmark_is_right_and_takes_linear_time() -> None:
    """Two different models on the 14,000 questions of MMLU: some 6,000 change."""
    assert mcnemar(3050, 2950) == pytest.approx(stats.binomtest(3050, 6000, 0.5).pvalue, rel=1e-9)
    assert growth(lambda n: mcnemar(n, n), 500, 500 * TIMES) < LINEAR


def test_rate_agrees_with_scipy_and_statsmodels() -> None:
    draw = random.Random(3)
    for _ in range(100):
        n = draw.randint(1, 500)
        hits = draw.randint(0, n)
        found = rate(hits, n)
        expected = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-11)
        assert (found.value, found.stderr, found.n) == (
            hits / n,
            pytest.approx(math.sqrt(hits * (n - hits) / n**2 / (n - 1))) if n > 1 else None,
            n,
        )
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    found = rate(7, 12)
    assert (found.low, found.high) == pytest.approx(proportion.proportion_confint(7, 12, method="beta"))


def test_percentiles_agree_with_numpy() -> None:
    draw = random.Random(4)
    for _ in range(200):
        values = [draw.choice([draw.gauss(0, 1), 0.0, 1.0]) for _ in range(draw.randint(1, 40))]
        share = draw.choice([0.0, 0.5, 0.9, 0.95, 0.99, 1.0, draw.random()])
        assert percentile(values, share) == pytest.approx(float(np.percentile(values, 100 * share)), abs=1e-12)


def test_percentiles_of_no_values_nan_and_infinity() -> None:
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(percentile([1.0, math.nan], 0.5))
    assert percentile([1.0, math.inf, math.inf], 0.9) == math.inf
    assert percentile([2.0], 0.99) == 2.0


def test_means_agree_with_scipy() -> None:
    draw = random.Random(5)
    values = [draw.gauss(0.5, 2) for _ in range(80)]
    found = mean_of(values)
    assert found.value == pytest.approx(float(np.mean(values)))
    assert found.stderr == pytest.approx(float(stats.sem(values)))


@pytest.mark.parametrize(("worse", "better", "n"), [(0, 0, 4), (3, 1, 20), (0, 7, 40), (5, 0, 5), (12, 12, 100)])
def test_a_difference_of_rates_has_scipys_error_and_an_interval_that_does_not_collapse(
    worse: int, better: int, n: int
) -> None:
    found = rate_difference(worse, better, n)
    gaps = [1.0] * worse + [-1.0] * better + [0.0] * (n - worse - better)
    assert found.value == pytest.approx(float(np.mean(gaps))) and found.stderr == pytest.approx(float(stats.sem(gaps)))
    assert found.low is not None and found.high is not None
    assert -1 <= found.low <= found.value <= found.high <= 1 and found.high - found.low > 0.05
    for bound, sign in ((found.low, 1), (found.high, -1)):
        if abs(bound) < 1:
            assert score_statistic(worse, better, n, bound) == pytest.approx(sign * 1.959964, abs=2e-3)


def score_statistic(worse: int, better: int, n: int, loss: float) -> float:
    """Tango's statistic with the rate of gains that maximizes the likelihood, found by scipy."""
    optimize = pytest.importorskip("scipy.optimize")

    def unlikelihood(gains: float) -> float:
        cells = ((worse, gains + loss), (better, gains), (n - worse - better, 1 - 2 * gains - loss))
        return -sum(count * math.log(max(share, 1e-300)) for count, share in cells if count)

    limits = (max(0.0, -loss), (1 - loss) / 2)
    gains = optimize.minimize_scalar(unlikelihood, bounds=limits, method="bounded", options={"xatol": 1e-12}).x
    return float((worse - better - n * loss) / math.sqrt(n * (2 * gains + loss * (1 - loss))))


def test_no_change_has_tangos_interval() -> None:
    """Without a change the interval is z^2 / (n + z^2) on both sides: 2 points lost are not excluded by 100 samples."""
    found, z = rate_difference(0, 0, 100), 1.959964
    assert found.high == pytest.approx(z**2 / (100 + z**2), abs=1e-6)
    assert found.low == pytest.approx(-(z**2) / (100 + z**2), abs=1e-6)


@pytest.mark.parametrize(("share", "n"), [(0.02, 100), (0.02, 200), (0.01, 200), (0.05, 100), (0.1, 30)])
def test_the_interval_covers_losses_without_gains(share: float, n: int) -> None:
    """Computed over all counts, not drawn."""
    covered = 0.0
    for worse in range(n + 1):
        found = rate_difference(worse, 0, n)
        assert found.low is not None and found.high is not None
        covered += float(stats.binom.pmf(worse, n, share)) * (found.low <= share <= found.high)
    assert covered > 0.93


def test_the_interval_of_a_difference_covers() -> None:
    """With twelve samples of which few change, the Wald interval covers far less than 95 %."""
    draw, covered = np.random.default_rng(3), 0
    for worse, better, _ in draw.multinomial(12, [0.10, 0.05, 0.85], 4000):
        found = rate_difference(int(worse), int(better), 12)
        covered += (found.low or 0) <= 0.05 <= (found.high or 0)
    assert covered / 4000 > 0.94


def test_the_error_of_a_clustered_mean_agrees_with_a_bootstrap_over_groups() -> None:
    draw = np.random.default_rng(6)
    groups = [list(draw.normal(level, 1, size=draw.integers(3, 20))) for level in draw.normal(0, 1, size=60)]
    sums, sizes = np.array([sum(group) for group in groups]), np.array([len(group) for group in groups])
    drawn = draw.integers(0, 60, size=(4000, 60))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    found = clustered_mean(groups)
    assert found.value == pytest.approx(sums.sum() / sizes.sum())
    assert found.stderr == pytest.approx(means.std(), rel=0.1)
    naive = mean_of([value for group in groups for value in group])
    assert naive.stderr is not None and found.stderr is not None
    assert found.stderr > 1.5 * naive.stderr  # positions of one text are not independent


def test_a_clustered_mean_of_one_group_has_no_error_and_empty_groups_do_not_count() -> None:
    assert clustered_mean([[1.0, 3.0]]) == Estimate(2.0, None, None, None, 2)
    assert clustered_mean([[1.0], [], [3.0], []]) == clustered_mean([[1.0], [3.0]])
    assert clustered_mean([[], []]) is NOTHING
    assert clustered_mean([]) is NOTHING


def test_the_exponential_of_an_interval() -> None:
    found = exponential(around(0.1, 0.02, 50))
    assert found.value == pytest.approx(math.exp(0.1))
    assert found.stderr == pytest.approx(0.02 * math.exp(0.1))
    low, high = stats.t.interval(0.95, df=49, loc=0.1, scale=0.02)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert exponential(around(0.0, None, 1)) == Estimate(1.0, None, None, None, 1)
    assert exponential(around(1e6, None, 1)).value == math.inf


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0, 1.959963984540054, 3.0, 6.0, -2.5])
@pytest.mark.parametrize("df", [1, 2, 4, 9, 99])
def test_the_p_value_of_zero_agrees_with_scipy(t: float, df: int) -> None:
    assert p_of_zero(around(0.3 * t, 0.3, df + 1), df) == pytest.approx(2 * stats.t.sf(abs(t), df), rel=1e-9)


def test_the_p_value_where_there_is_no_error() -> None:
    assert math.isnan(p_of_zero(around(5.0, None, 1), 0))
    assert p_of_zero(around(0.0, 0.0, 9), 8) == 1.0
    assert p_of_zero(around(0.1, 0.0, 9), 8) == 2 / 2**9  # nine of nine, by signs
    assert p_of_zero(around(math.inf, None, 9), 8) == 0.0 and math.isnan(p_of_zero(around(math.nan, None, 9), 8))


@pytest.mark.parametrize("texts", [2, 3, 5, 10])
def test_few_texts_without_a_difference_seldom_look_different(texts: int) -> None:
    """With two texts, a z-test at 5 % would be wrong in 31 % of cases."""
    draw, wrong = np.random.default_rng(8), 0
    for _ in range(1500):
        groups = [list(draw.normal(level, 1, size=20)) for level in draw.normal(0, 1, size=texts)]
        wrong += p_of_zero(clustered_mean(groups), texts - 1) < 0.05
    assert wrong / 1500 < 0.07


def test_the_interval_of_a_clustered_rate_does_not_collapse_and_is_lower_for_worse_values() -> None:
    perfect = clustered_rate([[1.0] * 32] * 20)
    spoilt = clustered_rate([[1.0] * 32] * 19 + [[0.0] + [1.0] * 31])
    worse = clustered_rate([[1.0] * 32] * 19 + [[0.0] * 32])
    assert (perfect.value, perfect.high) == (1.0, 1.0) and perfect.low is not None and 0.8 < perfect.low < 0.9
    assert spoilt.low is not None and worse.low is not None and worse.low < spoilt.low <= perfect.low


def test_a_share_of_single_values_is_nearly_a_plain_rate() -> None:
    groups = [[1.0]] * 80 + [[0.0]] * 20
    found, plain = clustered_rate(groups), rate(80, 100)
    assert found.value == plain.value
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=0.01)


def test_a_bounded_mean_does_not_collapse_and_keeps_its_value() -> None:
    found = bounded_mean([1.0] * 10)
    assert found.value == found.high == 1.0 and found.low is not None and 0.6 < found.low < 0.9
    assert bounded_mean([]) is NOTHING and math.isnan(bounded_mean([0.5, math.nan]).value)


def test_the_largest_of_values_with_nan_is_nan_at_any_index() -> None:
    assert math.isnan(largest([1.0, math.nan, 2.0])) and math.isnan(largest([math.nan])) and math.isnan(largest([]))
    assert largest([1.0, math.inf]) == math.inf
