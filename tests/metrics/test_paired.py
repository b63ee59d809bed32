"""Paired statistics against scipy, statsmodels and numpy, and against values computed by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.metrics.estimate import NOTHING, Estimate, around, mean_of
from mill.metrics.paired import (
    POWER,
    bounded_mean,
    clustered_mean,
    clustered_percentiles,
    clustered_rate,
    mcnemar,
    needed_samples,
    p_of_zero,
    percentile,
    power,
    rate,
    rate_difference,
)
from tests.growth import LINEAR, TIMES, growth


def test_mcnemar_agrees_with_scipys_binomial_test() -> None:
    draw = random.Random(1)
    for _ in range(200):
        worse, better = draw.randint(0, 60), draw.randint(0, 60)
        if worse + better:
            expected = stats.binomtest(worse, worse + better, 0.5).pvalue
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


def test_a_bounded_mean_does_not_collapse_and_keeps_its_value() -> None:
    found = bounded_mean([1.0] * 10)
    assert found.value == found.high == 1.0 and found.low is not None and 0.6 < found.low < 0.9
    assert bounded_mean([]) is NOTHING and math.isnan(bounded_mean([0.5, math.nan]).value)


def whole_sum(n: int, loss: float, gains: float) -> float:
    """The power by scipy, over every number of changed samples: losses are significant by the binomial test."""
    changed = loss + 2 * gains
    total = 0.0
    for count in range(n + 1):
        fewest = next((k for k in range(count // 2 + 1, count + 1) if 2 * stats.binom.sf(k - 1, count, 0.5) < 0.05), None)
        if fewest is not None:
            total += stats.binom.pmf(count, n, changed) * stats.binom.sf(fewest - 1, count, (loss + gains) / changed)
    return float(total)


@pytest.mark.parametrize(("n", "loss", "gains"), [(12, 0.6, 0.03), (60, 0.15, 0.01), (200, 0.05, 0.05), (7, 0.9, 0.0)])
def test_the_power_is_that_of_the_binomial_test(n: int, loss: float, gains: float) -> None:
    assert power(n, loss, gains) == pytest.approx(whole_sum(n, loss, gains), abs=1e-6)


@pytest.mark.parametrize(("loss", "gains"), [(0.02, 0.01), (0.05, 0.05), (0.3, 0.0)])
def test_the_needed_samples_are_enough_and_fewer_are_not(loss: float, gains: float) -> None:
    n = needed_samples(loss, gains)
    assert power(n, loss, gains) >= POWER > power(round(0.9 * n), loss, gains)


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
