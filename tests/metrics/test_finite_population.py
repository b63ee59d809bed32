"""Means of finite populations: by hand, against scipy and statsmodels, and how often the interval has the true value."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]

from mill.metrics.estimate import Estimate
from mill.metrics.finite_population import (
    UNIT,
    Stratum,
    planned_size,
    stratified_mean,
)


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None and estimate.high is not None
    return estimate.low, estimate.high


def test_one_stratum_of_zeros_and_ones_has_wilsons_interval() -> None:
    """A sample of 501 out of 1,002 has half the variance: 500 / (1 - 0.5) = 1,000 values drawn with replacement."""
    found = stratified_mean([Stratum([1.0] * 167 + [0.0] * 334, 1002)])
    assert ends(found) == pytest.approx(proportion_confint(1000 / 3, 1000, method="wilson"))


def test_few_ones_have_the_longer_of_two_intervals_between_possible_shares() -> None:
    """100 effective values, 3.9 of them ones. The shares of 102 items are multiples of 1/102."""
    found = stratified_mean([Stratum([1.0] * 2 + [0.0] * 49, 102)])
    wilson, exact = (proportion_confint(200 / 51, 100, method=method) for method in ("wilson", "beta"))
    low, high = min(wilson[0], exact[0]), max(wilson[1], exact[1])
    assert ends(found) == pytest.approx((math.floor(102 * low) / 102, math.ceil(102 * high) / 102))


@pytest.mark.parametrize(("size", "n"), [(60, 20), (60, 55), (400, 100)])
def test_every_share_of_a_population_is_in_its_interval_in_about_95_of_100_samples(size: int, n: int) -> None:
    """Without a simulation: the interval of every count, weighted by its hypergeometric probability."""
    found = np.array([ends(stratified_mean([Stratum([1.0] * ones + [0.0] * (n - ones), size)])) for ones in range(n + 1)])
    for ones in range(size + 1):
        inside = (found[:, 0] <= ones / size + 1e-12) & (ones / size - 1e-12 <= found[:, 1])
        assert stats.hypergeom(size, ones, n).pmf(np.arange(n + 1))[inside].sum() > 0.935


def test_other_values_have_students_interval_with_satterthwaites_degrees_of_freedom() -> None:
    first, second = [0.5, 0.7, 0.1, 0.3], [0.2, 0.9, 0.4]
    found = stratified_mean([Stratum(first, 30), Stratum(second, 10)])
    parts = [0.75**2 * (1 - 4 / 30) * np.var(first, ddof=1) / 4, 0.25**2 * (1 - 3 / 10) * np.var(second, ddof=1) / 3]
    df = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    assert ends(found) == pytest.approx(stats.t.interval(0.95, df, 0.75 * 0.4 + 0.25 * 0.5, math.sqrt(sum(parts))))


def test_limits_add_a_value_at_either_end() -> None:
    """Equal values of 0.5 between 0 and 1: 0.25 from either end, times (1/4 - 1/8) for the mean of 4 of 8, over 4 values."""
    found = stratified_mean([Stratum([0.5] * 4, 8)], limits=UNIT)
    half = stats.t.ppf(0.975, 3) * math.sqrt(0.125 * (0.25 + 0.25) / 4)
    assert found.stderr == 0 and ends(found) == pytest.approx((0.5 - half, 0.5 + half))
    assert ends(stratified_mean([Stratum([0.9] * 4, 8)], limits=UNIT))[1] == 1.0


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_zeros_or_ones_do_not_collapse(value: float) -> None:
    """The effective size is 1 / (0.75² (1/30 - 1/300) + 0.25² (1/10 - 1/100)), about 44.
    1 - 0.025 ** (1 / 44) is 31.9 of 400 items."""
    low, high = ends(stratified_mean([Stratum([value] * 30, 300), Stratum([value] * 10, 100)]))
    assert high - low == pytest.approx(32 / 400)
    assert (low if value == 0.0 else high) == value


def test_complete_strata_have_no_variance() -> None:
    known, open_ = Stratum([1, 0, 0, 0], 4), Stratum([1, 0, 1, 1], 12)
    found = stratified_mean([known, open_])
    assert found.value == pytest.approx(0.25 * 0.25 + 0.75 * 0.75)
    assert found.stderr == pytest.approx(0.75 * math.sqrt((1 - 4 / 12) * 0.25 / 4))
    assert stratified_mean([known, Stratum([1, 1, 1, 0], 4)]) == Estimate(0.5, 0.0, 0.5, 0.5, 8)


def test_strata_of_fewer_than_two_items_are_merged_with_neighbours() -> None:
    """The second and third become one, and the last, with no item, joins them; the complete one stays."""
    small = [Stratum([1, 0], 50), Stratum([1], 10), Stratum([0, 1], 20), Stratum([0], 1), Stratum([], 19)]
    merged = [Stratum([1, 0], 50), Stratum([1, 0, 1], 49), Stratum([0], 1)]
    assert stratified_mean(small) == stratified_mean(merged)


@given(data=st.data(), binary=st.booleans())
def test_the_interval_has_the_value_and_stays_inside_the_limits(data: st.DataObject, binary: bool) -> None:
    value = st.sampled_from([0.0, 1.0]) if binary else st.floats(0, 1)
    strata = []
    for _ in range(data.draw(st.integers(1, 5))):
        values = data.draw(st.lists(value, max_size=6))
        strata.append(Stratum(values, len(values) + data.draw(st.integers(0, 9))))
    found = stratified_mean(strata, limits=UNIT)
    if found.low is None or found.high is None:
        assert found.n < 2
    else:
        assert 0 <= found.low <= found.value + 1e-12 and found.value - 1e-12 <= found.high <= 1
        whole = all(len(stratum.values) == stratum.size for stratum in strata)
        assert (found.high - found.low < 1e-9) == whole


def draws(seed: int, sizes: list[int], counts: list[int], trials: int) -> tuple[float, list[list[Stratum]]]:
    """Zeros and ones whose share differs from stratum to stratum, and samples of them."""
    random = np.random.default_rng(seed)
    values = [(random.random(size) < random.beta(3, 2)).astype(float) for size in sizes]
    found = [
        [Stratum(list(random.permutation(one)[:count]), len(one)) for one, count in zip(values, counts, strict=True)]
        for _ in range(trials)
    ]
    return float(np.concatenate(values).mean()), found


def coverage(truth: float, drawn: list[list[Stratum]], interval: Callable[[list[Stratum]], Estimate]) -> float:
    found = [ends(interval(strata)) for strata in drawn]
    return sum(low <= truth <= high for low, high in found) / len(found)


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [([20 + 3 * i for i in range(40)], [2 + i // 3 for i in range(40)]), ([300, 200], [180, 120]), ([1000], [80])],
    ids=["many small strata", "most of two strata", "one stratum"],
)
def test_the_interval_contains_the_mean_in_95_of_100_samples(sizes: list[int], counts: list[int]) -> None:
    truth, drawn = draws(7, sizes, counts, 500)
    assert coverage(truth, drawn, stratified_mean) == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize(
    ("size", "half_width", "expected"), [(14042, 0.02, 2049), (14042, 0.01, 5703), (10042, 0.02, 1936), (100, 0.001, 100)]
)
def test_the_planned_size_is_the_smallest_that_is_precise_enough(size: int, half_width: float, expected: int) -> None:
    assert planned_size(size, half_width) == expected
    halves = []
    for n in (expected - 1, expected):
        effective = (n - 1) / (1 - n / size) if n < size else math.inf
        low, high = proportion_confint(effective / 2, effective, method="wilson") if n < size else (0.5, 0.5)
        halves.append((high - low) / 2)
    assert halves[0] > half_width >= halves[1]
