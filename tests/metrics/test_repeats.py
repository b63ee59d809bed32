"""Metrics over several answers to a question, against enumerations of all subsets and against a bootstrap."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from mill.api.errors import SpecError
from mill.metrics.aggregate import RepeatMetric, mean, pass_at, read_repeat_metrics, value_of


def enumerated_pass(values: list[float], k: int) -> float:
    subsets = list(combinations(values, k))
    return sum(any(subset) for subset in subsets) / len(subsets)


def estimator_of_the_paper(count: int, right: int, k: int) -> float:
    """The product form of Chen et al. (2021), as evalplus computes it."""
    if count - right < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(count - right + 1, count + 1)))


@pytest.mark.parametrize("count", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(count: int) -> None:
    for right in range(count + 1):
        values = [1.0] * right + [0.0] * (count - right)
        for k in range(1, count + 1):
            found = pass_at(right, count, k)
            assert found == pytest.approx(enumerated_pass(values, k), abs=1e-12)
            assert found == pytest.approx(estimator_of_the_paper(count, right, k), abs=1e-12)


@pytest.mark.parametrize(
    ("answers", "values", "k", "expected"),
    [
        (["4", "4", "5"], [1.0, 1.0, 0.0], 3, 1.0),
        (["5", "5", "4"], [0.0, 0.0, 1.0], 3, 0.0),
        (["4", "4", "5"], [1.0, 1.0, 0.0], 1, 2 / 3),
        (["4", None, None], [1.0, 0.0, 0.0], 3, 1.0),  # unreadable answers have no vote
        (["4", None, None], [1.0, 0.0, 0.0], 1, 1 / 3),  # where none can be read it is wrong
        ([["a", 1], ["a", 1], "b"], [1.0, 1.0, 0.0], 3, 1.0),  # an answer may be any JSON value
    ],
)
def test_maj_at_k_is_the_value_of_the_most_frequent_answer(
    answers: list[Any], values: list[float], k: int, expected: float
) -> None:
    assert value_of(RepeatMetric("maj", k), values, answers=answers, seed="s") == pytest.approx(expected)


def test_a_tie_is_decided_by_the_seed_and_fair_over_seeds() -> None:
    def majority(seed: str) -> float | None:
        return value_of(RepeatMetric("maj", 2), [1.0, 0.0], answers=["4", "5"], seed=seed)

    assert majority("a") == majority("a")
    assert 0.4 < sum(majority(str(seed)) or 0.0 for seed in range(400)) / 400 < 0.6


def test_best_at_k_follows_the_judge() -> None:
    values = [0.0, 1.0, 0.0]
    assert value_of(RepeatMetric("best", 3), values, ratings=[0.1, 0.9, 0.5]) == 1.0
    assert value_of(RepeatMetric("best", 3), values, ratings=[0.9, 0.1, None]) == 0.0
    # Of the three pairs, the right answer is rated best in two.
    assert value_of(RepeatMetric("best", 2), values, ratings=[0.1, 0.9, 0.5]) == pytest.approx(2 / 3)
    assert value_of(RepeatMetric("best", 2), values, ratings=[None, None, None]) is None


def test_what_cannot_be_computed_is_none() -> None:
    assert value_of(RepeatMetric("pass", 3), [1.0, 0.0]) is None
    assert value_of(RepeatMetric("pass", 1), [0.5, 0.0]) is None
    assert value_of(RepeatMetric("maj", 2), [1.0, 0.0], answers=[]) is None  # the task extracts no answers
    assert value_of(RepeatMetric("avg", 2), [1.0, 0.0, 1.0]) == 0.5


@pytest.mark.parametrize("names", [["pass@0"], ["pass"], ["pass@5"], ["median@2"], ["pass@-1"], ["pass@2.5"], [""]])
def test_metrics_that_do_not_exist_or_need_more_answers_are_refused(names: list[str]) -> None:
    with pytest.raises(SpecError, match="repeat_metrics"):
        read_repeat_metrics(names, 4)


@pytest.mark.parametrize("kind", ["pass", "maj", "avg"])
def test_the_standard_error_is_that_of_a_bootstrap_over_questions(kind: str) -> None:
    """Answers to one question are alike, so an error over single answers would be far too small."""
    dice = np.random.default_rng(7)
    questions, repeats, k = 120, 8, 4
    chance = dice.beta(0.5, 0.5, questions)
    right = dice.random((questions, repeats)) < chance[:, None]
    rows = []
    for number, row in enumerate(right):
        values = [float(value) for value in row]
        answers = ["right" if value else f"wrong{dice.integers(3)}" for value in row]
        rows.append(value_of(RepeatMetric(kind, k), values, answers=answers, seed=str(number)))
    values = [value for value in rows if value is not None]
    estimate = mean([[value] for value in values])
    drawn = dice.integers(0, questions, (4000, questions))
    bootstrap = np.asarray(values)[drawn].mean(axis=1).std()
    assert estimate.stderr == pytest.approx(bootstrap, rel=0.05)
    naive = math.sqrt(right.mean() * (1 - right.mean()) / right.size)
    assert estimate.stderr is not None and estimate.stderr > 1.5 * naive
