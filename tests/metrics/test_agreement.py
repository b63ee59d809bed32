"""Cohen's kappa and its standard error against statsmodels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from statsmodels.stats.inter_rater import cohens_kappa  # type: ignore[import-untyped]

from mill.metrics.aggregate import kappa

RatingPair = tuple[float, float]


def pairs_of(table: list[list[int]]) -> list[list[RatingPair]]:
    return [[(float(i), float(j))] for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)]


@st.composite
def tables(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(2, 4))
    return draw(st.lists(st.lists(st.integers(0, 9), min_size=size, max_size=size), min_size=size, max_size=size))


@pytest.mark.filterwarnings("ignore::RuntimeWarning:statsmodels")
@settings(deadline=None)
@given(tables())
def test_value_and_standard_error_are_those_of_statsmodels(table: list[list[int]]) -> None:
    pairs, counts = pairs_of(table), np.array(table)
    found = kappa(pairs)
    by_chance = counts.sum(0) @ counts.sum(1)
    if not pairs or by_chance == counts.sum() ** 2:
        assert math.isnan(found.value) and found.stderr is None
        return
    expected = cohens_kappa(counts)
    assert math.isclose(found.value, expected.kappa, abs_tol=1e-12)
    assert found.n == len(pairs)
    if len(pairs) == 1:
        assert found.stderr is None
    else:
        assert found.stderr is not None
        assert math.isclose(found.stderr, math.sqrt(max(0.0, expected.var_kappa)), abs_tol=1e-7)
        assert (found.low is None) == (found.n < 30)
        if found.low is not None and found.high is not None:
            reach = stats.t.ppf(0.975, found.n - 1) * found.stderr
            assert math.isclose(found.low, found.value - reach, abs_tol=1e-9)
            assert math.isclose(found.high, found.value + reach, abs_tol=1e-9)


@pytest.mark.parametrize("pairs", [[[(1.0, 1.0)]] * 5, [[(0.5, 0.5)]]])
def test_raters_who_always_give_one_rating_have_no_kappa(pairs: list[list[RatingPair]]) -> None:
    found = kappa(pairs)
    assert math.isnan(found.value) and found.stderr is None and found.n == len(pairs)


def test_repeats_of_a_sample_count_once_and_missing_ratings_not() -> None:
    once = kappa(pairs_of([[4, 1], [2, 3]]))
    thrice = kappa([[*repeats, None, *repeats, *repeats] for repeats in pairs_of([[4, 1], [2, 3]])])
    assert (thrice.value, thrice.n) == (once.value, 10)
    assert thrice.stderr is not None and once.stderr is not None and math.isclose(thrice.stderr, once.stderr)
    assert kappa([[(0.0, 1.0), (1.0, 1.0), (0.0, 0.0)], [None]]).stderr is None
