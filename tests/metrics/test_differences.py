"""Differences of scores, against scipy, statsmodels, and by hand."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from mill.api.errors import SpecError
from mill.api.registry import register_metric
from mill.metrics.aggregate import bits_per_unit, perplexity
from mill.metrics.differences import (
    Difference,
    direction,
    negated,
    paired_loss,
    perplexity_difference,
    pooled_difference,
    unpaired_difference,
)
from mill.metrics.estimate import NOTHING, Estimate, mean_of
from mill.metrics.paired import rate, rate_difference

stats = pytest.importorskip("scipy.stats")
proportions_ztest = pytest.importorskip("statsmodels.stats.proportion").proportions_ztest


def test_values_of_0_and_1_get_mcnemars_test() -> None:
    pairs = [(1.0, 0.0)] * 7 + [(0.0, 1.0)] * 2 + [(1.0, 1.0)] * 11
    found = paired_loss(pairs)
    assert found.p == pytest.approx(stats.binomtest(2, 9).pvalue)
    assert found.estimate == rate_difference(7, 2, 20)
    assert found.estimate.value == pytest.approx(0.25)


def test_graded_values_get_students_test() -> None:
    first, second = [0.1, 0.5, 0.9, 0.3, 0.7, 0.2], [0.2, 0.4, 0.95, 0.6, 0.8, 0.35]
    found = negated(paired_loss(list(zip(first, second, strict=True))))
    differences = [b - a for a, b in zip(first, second, strict=True)]
    spread = max(differences) - min(differences)
    assert found.p == pytest.approx(stats.ttest_1samp([*differences, -spread, spread], 0).pvalue)
    assert found.estimate.value == pytest.approx(0.1)
    assert found.estimate.low is not None and found.estimate.high is not None
    assert found.estimate.low < 0.1 < found.estimate.high


@pytest.mark.parametrize(("a", "b"), [((30, 40), (14, 20)), ((36, 40), (9, 20)), ((0, 2), (2, 2)), ((0, 5), (1, 9))])
def test_unpaired_proportions_get_the_pooled_z_test(a: tuple[int, int], b: tuple[int, int]) -> None:
    found = unpaired_difference(rate(*a), rate(*b))
    assert found.p == pytest.approx(proportions_ztest([a[0], b[0]], [a[1], b[1]])[1])
    assert found.estimate.value == pytest.approx(b[0] / b[1] - a[0] / a[1])


def test_the_interval_combines_those_of_both_sides() -> None:
    """From scipy's beta quantiles: the root of the squared distances of 36/40 and 9/20 to their exact bounds."""
    found = unpaired_difference(rate(36, 40), rate(9, 20)).estimate
    assert found.low == pytest.approx(-0.6809562840534714)
    assert found.high == pytest.approx(-0.17840446639564994)


def test_the_interval_does_not_collapse() -> None:
    found = unpaired_difference(rate(0, 30), rate(0, 10))
    assert found.p == 1.0 and found.estimate.value == 0.0
    assert found.estimate.low is not None and found.estimate.low < -0.1 < 0.3 < (found.estimate.high or 0.0)


def test_unpaired_means_get_the_z_test() -> None:
    a, b = mean_of([0.1, 0.4, 0.3, 0.9]), mean_of([0.8, 0.9, 0.7, 0.6, 0.95])
    assert a.stderr is not None and b.stderr is not None
    z = (b.value - a.value) / math.hypot(a.stderr, b.stderr)
    assert unpaired_difference(a, b).p == pytest.approx(2 * stats.norm.sf(abs(z)))


@pytest.mark.parametrize("one", [Estimate(math.inf, None, None, None, 3), Estimate(0.5, None, None, None, 1)])
def test_what_cannot_be_tested_has_no_p(one: Estimate) -> None:
    found = unpaired_difference(rate(3, 5), one)
    assert math.isnan(found.p) and found.estimate.low is None
    assert math.isnan(paired_loss([]).p)


def test_a_mean_over_tasks() -> None:
    parts = [Difference(Estimate(0.1, 0.03, 0.04, 0.2, 50), 0.0), Difference(Estimate(-0.2, 0.04, -0.28, -0.1, 150), 0.0)]
    found = pooled_difference([(0.25, parts[0]), (0.75, parts[1])])
    assert found.estimate.value == pytest.approx(0.25 * 0.1 - 0.75 * 0.2)
    assert found.estimate.stderr == pytest.approx(math.sqrt((0.25 * 0.03) ** 2 + (0.75 * 0.04) ** 2))
    assert found.estimate.low == pytest.approx(-0.125 - math.hypot(0.25 * 0.06, 0.75 * 0.08))
    assert found.estimate.high == pytest.approx(-0.125 + math.hypot(0.25 * 0.1, 0.75 * 0.1))
    z = found.estimate.value / (found.estimate.stderr or 1.0)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(z), 198))
    unchanged = Difference(rate_difference(0, 0, 30), 1.0)
    assert pooled_difference([(0.5, unchanged), (0.5, unchanged)]).p == 1.0


def documents(seed: int, n: int, shift: float) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Documents of different lengths; the second model's log-likelihood of a word is lower by `shift` on average."""
    rng, found = random.Random(seed), []
    for _ in range(n):
        words = float(rng.randint(20, 200))
        difficulty = rng.gauss(-2.0, 0.4)
        second = difficulty - shift + rng.gauss(0.0, 0.05)
        found.append(((difficulty * words, words), (second * words, words)))
    return found


@pytest.mark.parametrize("of", [perplexity, bits_per_unit])
def test_the_error_of_a_perplexity_difference_is_that_of_the_jackknife(of: Callable[..., Estimate]) -> None:
    pairs = documents(1, 60, 0.02)

    def value(chosen: list[Any]) -> float:
        first, second = (of([[one] for one in side]).value for side in zip(*chosen, strict=True))
        return second - first

    left_out = [value(pairs[:index] + pairs[index + 1 :]) for index in range(len(pairs))]
    jackknife = math.sqrt((len(pairs) - 1) * statistics.pvariance(left_out))
    found = perplexity_difference(pairs, of)
    assert found.estimate.value == pytest.approx(value(pairs))
    assert found.estimate.stderr == pytest.approx(jackknife, rel=0.05)
    separate = [of([[one] for one in side]).stderr or 0.0 for side in zip(*pairs, strict=True)]
    assert (found.estimate.stderr or 0.0) < 0.3 * math.hypot(*separate)  # documents are as hard for both


def test_equal_perplexities_are_seldom_called_different() -> None:
    """Of 400 draws without a difference 5 % should be below 5 %: 20, with a standard deviation of 4.4."""
    below = sum(perplexity_difference(documents(seed, 40, 0.0), perplexity).p < 0.05 for seed in range(400))
    assert 8 <= below <= 33
    found = sum(perplexity_difference(documents(seed, 40, 0.05), perplexity).p < 0.05 for seed in range(100))
    assert found >= 95


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("acc", 1), ("acc_norm", 1), ("exact_match,strict-match", 1), ("exact_match,pass@8", 1), ("pass@1", 1),
        ("recall@5", 1), ("match/accuracy", 1), ("word_perplexity", -1), ("bits_per_byte", -1), ("unreadable", -1),
        ("tool_calls", 0), ("changed", 0), ("my_metric", 0), ("", 0), (",", 0),
    ],
)  # fmt: skip
def test_the_better_direction_is_known_by_name(metric: str, expected: int) -> None:
    assert direction(metric) == expected


def test_a_registered_metric_says_which_direction_is_better() -> None:
    register_metric("my_delay", better="lower")(lambda samples: NOTHING)
    assert direction("my_delay") == -1
    with pytest.raises(SpecError, match="better='more': higher or lower is needed"):
        register_metric("my_gain", better="more")


def test_the_metrics_of_built_in_tasks_have_a_direction() -> None:
    """All but counts that are neither good nor bad."""
    from mill.api.registry import tasks
    from mill.api.task import Benchmark
    from mill.tasks.load import load_builtin, make_task

    load_builtin()
    made = [make_task(name) for name in tasks if not isinstance(tasks.get(name), Benchmark)]
    found = {metric for task in made if type(task).__module__.startswith("mill.") for metric in task.metrics}
    assert {metric for metric in found if not direction(metric)} <= {"tool_calls", "changed", "answered"}
    assert {"acc", "exact_match", "word_perplexity", "pass@1"} <= found
