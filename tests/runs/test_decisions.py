"""Sequential tests of a claim where some samples failed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mill.metrics.sequential import Decider
from mill.runs.claims import Claim
from mill.runs.decisions import UNIT, GroupTest, Range, describe_decision
from mill.runs.schema import Decision

RIGHT, WRONG, FAILED = (1.0, 1.0), (0.0, 0.0), UNIT
EVERY = 50


def decide(claim: Claim, values: Sequence[Range]) -> Decision:
    """Looks after each 50 samples, until the test is over."""
    test = GroupTest(claim, len(values))
    for start in range(0, len(values), EVERY):
        test.add(values[start : start + EVERY])
        if test.over:
            break
    return test.decision("exam")


def shuffled(right: int, wrong: int, failed: int, seed: int = 0) -> list[Range]:
    values = [RIGHT] * right + [WRONG] * wrong + [FAILED] * failed
    random.Random(seed).shuffle(values)
    return values


@pytest.mark.parametrize("compare", [">", ">=", "<", "<="])
def test_failures_decide_nothing(compare: str) -> None:
    """480 of 600 answered samples are right. Of all 1,000, 0.48 are right or 0.88, by what the failed ones would score."""
    values = shuffled(480, 120, 400)
    decision = decide(Claim("acc", compare, 0.6), values)
    assert decision.outcome == "undecided" and decision.n < 1000
    assert decision.looks[-1].low < 0.48 and decision.looks[-1].high > 0.88
    tested = values[: decision.n]
    assert decision.looks[-1].value == pytest.approx(tested.count(RIGHT) / (tested.count(RIGHT) + tested.count(WRONG)))
    assert f"for any scores of the {decision.failed} failed samples" in describe_decision(decision)


@pytest.mark.parametrize(("bound", "outcome", "above"), [(0.5, "true", True), (0.9, "false", False)])
def test_a_decision_that_no_failure_could_change_stands(bound: float, outcome: str, above: bool) -> None:
    """0.7 to 0.75 of all samples are right."""
    decision = decide(Claim("acc", ">", bound), shuffled(700, 250, 50))
    assert decision.outcome == outcome and 0 < decision.failed < decision.n < 1000
    assert decision.reached is not None and (decision.reached <= 0.7 if above else decision.reached >= 0.75)
    assert describe_decision(decision).endswith(f"; {decision.failed} samples failed")


def test_the_ends_of_the_sequence_are_those_of_two_tests() -> None:
    values = shuffled(700, 250, 50)
    decision = decide(Claim("acc", ">", 0.69), values)
    least, most = (Decider(0.69, ">", 1000, binary=True) for _ in range(2))
    start = 0
    for look in decision.looks:
        least.update([low for low, _ in values[start : look.n]])
        most.update([high for _, high in values[start : look.n]])
        assert (look.low, look.high) == (least.interval[0], most.interval[1])
        start = look.n


def test_on_all_samples_the_ends_are_those_of_counting_failures_as_wrong_or_right() -> None:
    """15 of 100 samples are right and 5 failed; at the bound itself no test decides."""
    decision = decide(Claim("acc", ">", 0.15), shuffled(15, 80, 5, seed=1))
    assert (decision.outcome, decision.n, decision.failed) == ("undecided", 100, 5)
    last = decision.looks[-1]
    assert (last.low, last.value, last.high) == pytest.approx((0.15, 15 / 95, 0.2))


@pytest.mark.parametrize(("lost", "compare", "counted_as"), [(RIGHT, ">=", 0.0), (WRONG, "<=", 1.0)])
def test_wrong_decisions_are_rare_whichever_answers_fail(lost: Range, compare: str, counted_as: float) -> None:
    """150 of 300 samples are right, so the claim is true. 40 % of the right answers fail, or of the wrong ones: a test that
    counts failures as wrong, or as right, is nearly always wrong."""
    wrong = counted_wrong = 0
    for seed in range(200):
        drawn = random.Random(-seed - 1)
        values = [FAILED if one == lost and drawn.random() < 0.4 else one for one in shuffled(150, 150, 0, seed)]
        wrong += decide(Claim("acc", compare, 0.5), values).outcome == "false"
        counted = [(counted_as, counted_as) if one == FAILED else one for one in values]
        counted_wrong += decide(Claim("acc", compare, 0.5), counted).outcome == "false"
    assert wrong / 200 <= 0.05
    assert counted_wrong / 200 > 0.8
