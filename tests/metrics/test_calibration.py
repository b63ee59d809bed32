"""Reliability and expected calibration error, by hand and against torchmetrics and scikit-learn."""

from __future__ import annotations

import math
import random

import pytest

from mill.metrics.calibration import calibration, choice_confidence

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


def test_ece_by_hand() -> None:
    """In five bins: two answers at 0.7 and two at 0.9, one of each right: half of |0.5 - 0.7| and half of |0.5 - 0.9|."""
    found = calibration([(0.7, True), (0.7, False), (0.9, False), (0.9, True)], bins=5)
    assert found.ece == pytest.approx(0.5 * 0.2 + 0.5 * 0.4)
    assert [(one.n, one.accuracy) for one in found.bins if one.n] == [(2, 0.5), (2, 0.5)]
    assert found.bins[3].confidence == pytest.approx(0.7) and found.n == 4


def test_a_bound_belongs_to_the_bin_below() -> None:
    counts = [one.n for one in calibration([(0.2, True), (0.4, True), (0.4000001, True), (1.0, True)], bins=5).bins]
    assert counts == [1, 1, 1, 0, 1]


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
