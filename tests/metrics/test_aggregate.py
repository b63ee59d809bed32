"""Means and perplexities with their errors, against scipy and values computed by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from statsmodels.stats.inter_rater import cohens_kappa  # type: ignore[import-untyped]

from mill.api.registry import metrics
from mill.metrics import bits_per_unit, mean, perplexity
from mill.metrics.aggregate import Repeats, calibration, choice_confidence, kappa


def once(values: Sequence[float]) -> list[list[float]]:
    """Samples of one repeat each."""
    return [[float(value)] for value in values]


def is_nan(*values: float | None) -> bool:
    return all(value is not None and math.isnan(value) for value in values)


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


def test_repeats_do_not_count_as_samples() -> None:
    found = mean([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert found.n == 3
    assert found.stderr == pytest.approx(stats.sem([0.5, 1.0, 0.0]))


@pytest.mark.parametrize("metric", ["mean", "perplexity", "bits_per_unit"])
def test_no_samples_give_nan_and_no_error(metric: str) -> None:
    found = metrics.get(metric)([])
    assert is_nan(found.value)
    assert (found.stderr, found.low, found.high, found.n) == (None, None, None, 0)


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
    assert found.stderr is not None and found.value * stats.sem(scores / units) < 0.9 * found.stderr  # as if equally long


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


def test_log_likelihoods_too_large_to_be_summed_give_an_infinite_perplexity() -> None:
    found = perplexity([[(-1e308, 3.0)], [(-1e308, 4.0)]])
    assert found.value == math.inf and found.low is None


RatingPair = tuple[float, float]


def pairs_of(table: list[list[int]]) -> list[list[RatingPair]]:
    return [[(float(i), float(j))] for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)]


@st.composite
def tables(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(2, 4))
    return draw(st.lists(st.lists(st.integers(0, 9), min_size=size, max_size=size), min_size=size, max_size=size))


@pytest.mark.filterwarnings("ignore::RuntimeWarning:statsmodels")
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


# python -c with torchmetrics 1.9.0 over the rows of `drawn`, softmax in float64:
# MulticlassCalibrationError(num_classes=4, n_bins=15, norm="l1")(probabilities, gold), and with n_bins=10.
TORCHMETRICS = {15: 0.11685460805892944, 10: 0.10924951732158661}
# sklearn.calibration.calibration_curve(right, confidence, n_bins=15, strategy="uniform") of scikit-learn 1.9.1.
RIGHT = [1.0, 0.2, 0.233333, 0.414634, 0.421053, 0.333333, 0.526316, 0.647059, 0.8, 0.25, 0.5, 0.5]
MEAN = [
    0.259801, 0.314283, 0.371013, 0.435658, 0.494241, 0.562915, 0.633502, 0.699922, 0.751505, 0.819892, 0.887455, 0.977431,
]  # fmt: skip


def drawn() -> list[tuple[float, bool]]:
    """200 questions of four choices."""
    rng, answers = random.Random(7), []
    for _ in range(200):
        scores = [round(-rng.expovariate(0.5), 4) for _ in range(4)]
        gold = rng.choices(range(4), weights=[math.exp(score / 1.5) for score in scores])[0]
        confidence = choice_confidence(scores)
        assert confidence is not None
        answers.append((confidence, max(range(4), key=scores.__getitem__) == gold))
    return answers


@pytest.mark.parametrize("bins", TORCHMETRICS)
def test_ece_is_that_of_torchmetrics(bins: int) -> None:
    assert calibration(drawn(), bins).ece == pytest.approx(TORCHMETRICS[bins], abs=1e-7)  # computed in float32


def test_bins_are_those_of_scikit_learn() -> None:
    filled = [one for one in calibration(drawn()).bins if one.n]
    assert [one.accuracy for one in filled] == pytest.approx(RIGHT, abs=1e-6)
    assert [one.confidence for one in filled] == pytest.approx(MEAN, abs=1e-6)
    assert sum(one.n for one in filled) == 200


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([math.log(0.6), math.log(0.2)], 0.75),
        ([-1000.0, -1000.0, -1000.0, -1000.0], 0.25),  # no underflow
        ([-1.0, None], 1.0),  # a choice that is impossible
        ([None, None], None),
        ([-1.0], None),
        ([], None),
        ([math.nan, -1.0], None),
    ],
)
def test_the_confidence_is_a_softmax(scores: list[float | None], expected: float | None) -> None:
    assert choice_confidence(scores) == (None if expected is None else pytest.approx(expected))
