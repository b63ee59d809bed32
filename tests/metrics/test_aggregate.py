"""Means and perplexities with their errors, against scipy and values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from mill.api.registry import metrics
from mill.metrics import Estimate, bits_per_unit, mean, perplexity, pool
from mill.metrics.aggregate import Repeats


def once(values: Sequence[float]) -> list[list[float]]:
    """Samples of one repeat each."""
    return [[float(value)] for value in values]


def is_nan(*values: float | None) -> bool:
    return all(value is not None and math.isnan(value) for value in values)


def test_the_mean_and_its_error_by_hand() -> None:
    found = mean(once([1, 2, 3, 6]))
    error = math.sqrt(14 / 3 / 4)  # squared deviations 4 + 1 + 0 + 9
    assert (found.value, found.n) == (3.0, 4)
    assert found.stderr == pytest.approx(error)
    reach = 3.182446 * error  # Student's, with three degrees of freedom
    assert (found.low, found.high) == pytest.approx((3 - reach, 3 + reach), abs=1e-5)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_the_error_of_the_mean_is_scipys(values: list[float]) -> None:
    found = mean(once(values))
    assert found.value == pytest.approx(np.mean(values), abs=1e-6)
    assert found.stderr == pytest.approx(stats.sem(values), abs=1e-6)


@pytest.mark.parametrize(("right", "wrong"), [(3, 1), (1, 1), (40, 60), (0, 12), (12, 0)])
def test_right_and_wrong_get_the_exact_interval(right: int, wrong: int) -> None:
    values = [1.0] * right + [0.0] * wrong
    expected = stats.binomtest(right, right + wrong).proportion_ci(0.95, method="exact")
    found = mean(once(values))
    assert found.value == right / (right + wrong)
    assert found.stderr == pytest.approx(stats.sem(values))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-11)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_interval_of_all_wrong_and_all_right_is_inside_0_and_1_and_does_not_collapse(value: float) -> None:
    found = mean(once([value] * 5))
    assert (found.value, found.stderr) == (value, 0.0)
    assert found.low is not None and found.high is not None
    assert 0.0 <= found.low < found.high <= 1.0
    assert found.high - found.low == pytest.approx(1 - 0.025 ** (1 / 5))


def test_repeats_are_averaged_within_a_sample_first() -> None:
    assert mean([[1.0], [0.0, 0.0, 0.0]]).value == 0.5


def test_repeats_do_not_count_as_samples() -> None:
    found = mean([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert found.n == 3
    assert found.stderr == pytest.approx(stats.sem([0.5, 1.0, 0.0]))


@pytest.mark.parametrize("metric", ["mean", "perplexity", "bits_per_unit"])
def test_no_samples_give_nan_and_no_error(metric: str) -> None:
    found = metrics.get(metric)([])
    assert is_nan(found.value)
    assert (found.stderr, found.low, found.high, found.n) == (None, None, None, 0)


def test_one_document_has_a_perplexity_and_no_error() -> None:
    assert perplexity([[(-6.0, 3.0)]]) == Estimate(math.exp(2.0), None, None, None, 1)
    assert bits_per_unit([[(-6.0, 3.0)]]) == Estimate(2.0 / math.log(2), None, None, None, 1)


TWO_DOCUMENTS: list[Repeats] = [[(-40.0, 5.0)], [(-110.0, 15.0)]]
"""7.5 nats a unit; residuals -2.5 and 2.5, so the error is sqrt(12.5 * 2) / 20 = 0.25 nats a unit."""


T_OF_ONE = 12.706205  # Student's, with one degree of freedom


def test_perplexity_by_hand() -> None:
    found = perplexity(TWO_DOCUMENTS)
    assert (found.value, found.n) == pytest.approx((math.exp(7.5), 2))
    assert found.stderr == pytest.approx(0.25 * math.exp(7.5))
    assert found.low == pytest.approx(math.exp(7.5 - 0.25 * T_OF_ONE), rel=1e-6)
    assert found.high == pytest.approx(math.exp(7.5 + 0.25 * T_OF_ONE), rel=1e-6)


def test_the_interval_of_a_perplexity_ends_at_1_and_that_of_bits_at_0() -> None:
    """The same two documents with 1.5 nats a unit: 1.5 - 12.7 * 0.25 is below 0, and no log-probability is above 0."""
    easy: list[Repeats] = [[(-10.0, 5.0)], [(-20.0, 15.0)]]
    found = perplexity(easy)
    assert found.low == 1.0 and found.value == pytest.approx(math.exp(1.5))
    assert found.high == pytest.approx(math.exp(1.5 + 0.25 * float(stats.t.ppf(0.975, 1))), rel=1e-6)
    bits = bits_per_unit(easy)
    assert bits.low == 0.0 and math.copysign(1.0, bits.low) == 1.0
    assert bits.high == pytest.approx((1.5 + 0.25 * float(stats.t.ppf(0.975, 1))) / math.log(2), rel=1e-6)


def test_bits_per_unit_by_hand() -> None:
    found = bits_per_unit(TWO_DOCUMENTS)
    assert found.value == pytest.approx(10.820213)  # 7.5 / 0.693147
    assert found.stderr == pytest.approx(0.360674, abs=1e-6)
    reach = T_OF_ONE * 0.360674
    assert (found.low, found.high) == pytest.approx((10.820213 - reach, 10.820213 + reach), abs=1e-4)


def documents(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Documents of very different lengths and difficulties."""
    draw = np.random.default_rng(7)
    units = draw.integers(20, 800, n).astype(float)
    return -units * draw.normal(2.5, 0.4, n), units


def test_the_error_of_perplexity_is_the_bootstraps() -> None:
    scores, units = documents()

    def statistic(score: np.ndarray, unit: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.exp(-score.sum(axis=axis) / unit.sum(axis=axis)))

    drawn = stats.bootstrap(
        (scores, units), statistic, paired=True, n_resamples=3000, method="percentile", random_state=np.random.default_rng(3)
    )
    found = perplexity([[pair] for pair in zip(scores.tolist(), units.tolist(), strict=True)])
    assert found.value == pytest.approx(float(statistic(scores, units)))
    assert found.stderr == pytest.approx(drawn.standard_error, rel=0.1)
    interval = (drawn.confidence_interval.low, drawn.confidence_interval.high)
    assert (found.low, found.high) == pytest.approx(interval, rel=0.02)


def test_documents_taken_as_equally_long_would_miss_the_bootstraps_error() -> None:
    """The twin: the plain standard error of per-document rates is far from the one above."""
    scores, units = documents()
    found = perplexity([[pair] for pair in zip(scores.tolist(), units.tolist(), strict=True)])
    assert found.stderr is not None
    assert found.value * stats.sem(scores / units) < 0.9 * found.stderr


def test_infinity_in_one_sample_makes_the_mean_infinite() -> None:
    found = mean(once([1.0, math.inf]))
    assert found.value == math.inf
    assert found.stderr is None
    assert is_nan(mean(once([math.inf, -math.inf])).value)


def test_repeats_of_right_and_wrong_keep_their_interval_inside_0_and_1() -> None:
    found = mean([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert found.low is not None and found.high is not None
    assert 0.0 <= found.low < 1 / 6 < 0.6 < found.high <= 1.0  # as of about three samples


def test_nan_in_one_document_makes_the_perplexity_nan() -> None:
    samples: list[Repeats] = [[(math.nan, 5.0)], [(-20.0, 15.0)]]
    assert is_nan(perplexity(samples).value, perplexity(samples).stderr)
    assert is_nan(bits_per_unit(samples).value)


def test_an_impossible_document_has_infinite_perplexity() -> None:
    samples: list[Repeats] = [[(-math.inf, 5.0)], [(-20.0, 15.0)]]
    assert perplexity(samples).value == math.inf
    assert bits_per_unit(samples).value == math.inf


def test_a_weighted_pool_of_means_is_the_mean_of_all_samples() -> None:
    first, second = [1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0, 0.0]
    pooled = pool([mean(once(first)), mean(once(second))], weighted=True)
    assert pooled.value == pytest.approx(mean(once(first + second)).value)
    assert pooled.n == 8


def test_log_likelihoods_too_large_to_be_summed_give_an_infinite_perplexity() -> None:
    found = perplexity([[(-1e308, 3.0)], [(-1e308, 4.0)]])
    assert found.value == math.inf and found.low is None
