"""A check in plain sentences."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.checks.answers import Answer
from mill.checks.compare import compared
from mill.checks.forced import ForcedGaps
from mill.checks.kinds import explain
from mill.checks.measurements import forced_measurements
from mill.checks.pairing import pair
from mill.checks.result import Check, Variant
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate
from mill.metrics.paired import mcnemar, rate, rate_difference
from mill.metrics.power import detectable_loss, power


def graded(worse: int, better: int, n: int, **more: Any) -> Variant:
    """A candidate of which these answers became wrong and right, and all others stayed right."""
    metrics = {"acc_drop": rate_difference(worse, better, n), "acc_baseline": rate(n - better, n)}
    metrics |= {"acc": rate(n - worse, n), **more.pop("metrics", {})}
    counts = {"samples": n, "regressions": worse, "improvements": better, **more.pop("counts", {})}
    return Variant("b", metrics=metrics, p_values={"acc_drop": mcnemar(worse, better)}, counts=counts, **more)


def explained(variant: Variant, *, command: str = "compare", tasks: tuple[str, ...] = ("numerics",), **settings: Any) -> str:
    return " ".join(explain(Check(command, list(tasks), [variant], "a", settings), variant))


def test_few_prompts_without_a_change() -> None:
    """Half a gain in 14 samples is 3.6 %. With it, McNemar's test finds a loss of 65 points of 12 in 80 % of cases."""
    loss = detectable_loss(12, 0.5 / 14)
    assert loss is not None and round(100 * loss) == 65
    assert explained(graded(0, 0, 12)) == (
        "No accuracy change detected: none of 12 answers became wrong or right (lost -24.2 % to 24.2 %). "
        "With 12 samples a drop below 65 points could go unseen (McNemar's test at 5 %, found in 80 % of cases): "
        "to find one of 2 points use --tasks hellaswag_gen --limit 1900."
    )
    assert power(1900, 0.02, 0.5 / 14) > 0.8 > power(1700, 0.02, 0.5 / 14)


def test_the_limit_is_raised_where_the_check_had_one() -> None:
    """It applies to each task. A prompt suite has no more prompts to give."""
    found = explained(graded(0, 0, 40), tasks=("piqa", "boolq"), limit=20)
    assert "use --limit " in found and "--tasks" not in found
    size = int(found.rpartition(" ")[2].rstrip("."))
    assert 0.02 >= (detectable_loss(2 * size, 0.5 / 42) or 1) > 0.015
    assert "--tasks hellaswag_gen --limit" in explained(graded(0, 0, 40), tasks=("numerics",), limit=40)


def test_a_loss_is_no_noise() -> None:
    found = explained(graded(40, 5, 200))
    assert found.startswith("Accuracy fell from 97.5 % to 80.0 %: 40 answers became wrong and 5 became right, which is not")
    assert f"p = {stats.binomtest(5, 45).pvalue:.2g})." in found and "unseen" not in found
    assert explained(graded(5, 40, 200)).startswith("Accuracy rose from 80.0 % to 97.5 %")


def test_a_change_that_may_be_chance() -> None:
    found = explained(graded(6, 2, 60))
    assert "6 answers became wrong and 2 became right, which may be chance" in found and "p = 0.29" in found


def test_enough_samples_without_a_change_leave_nothing_to_say() -> None:
    assert explained(graded(0, 0, 400)) == (
        "Accuracy is unchanged: from 100.0 % to 100.0 %, and the whole interval of the loss (-0.95 % to 0.95 %) "
        "is within one point."
    )


def test_five_samples_show_nothing() -> None:
    assert "With 5 samples even the loss of all right answers could go unseen: to find" in explained(graded(0, 0, 5))


def test_a_model_that_is_mostly_wrong_has_little_to_lose() -> None:
    """Of 12 samples a loss of 65 points would be found, and there are 8 to lose."""
    mostly_wrong = graded(0, 0, 12, metrics={"acc_baseline": rate(1, 12), "acc": rate(1, 12)})
    assert "With 12 samples even the loss of all right answers could go unseen" in explained(mostly_wrong)


def test_the_level_is_shared_with_the_other_tests() -> None:
    """As in the verdict: two tests at 2.5 % each."""
    ratio = {"ppl_ratio": Estimate(1.01, 0.1, 0.9, 1.1, 90)}
    variant = graded(0, 0, 12, metrics=ratio, counts={"forced_texts": 12})
    variant.p_values["ppl_ratio"] = 0.4
    assert "McNemar's test at 2.5 %" in explained(variant)


def answer(name: str, text: str, value: float | None = None) -> Answer:
    return Answer("t", name, "t", "prompt", None, text, value=value)


def test_texts_that_differ_without_logprobs_and_without_gold() -> None:
    first = [answer(str(number), "same") for number in range(6)]
    second = [answer(str(number), "same" if number else "other") for number in range(6)]
    assert explained(compared("b", pair(first, second), None)) == (
        "1 of 6 texts differ. An engine returns no top_logprobs, so whether rounding alone explains that is unknown. "
        "These samples have no gold answers, so they cannot show whether accuracy changed: use --tasks."
    )


@pytest.mark.parametrize(
    ("near", "text"),
    [
        (4, "rounding alone explains that."),
        (0, "rounding alone does not explain that."),
        (1, "1 first at a near-tie, which rounding alone explains, and 3"),
    ],
)
def test_near_ties_are_noise(near: int, text: str) -> None:
    counts = {"samples": 60, "diverged": 4, "near_ties": near}
    found = explained(Variant("b", metrics={"match_rate": rate(56, 60)}, counts=counts))
    assert found.startswith("4 of 60 texts differ") and text in found


def test_distributions_are_described_by_kl_and_top_tokens() -> None:
    random = Random(1)
    gaps = [[Gap(random.uniform(0, 0.01), -1.0, -1.001, True, True) for _ in range(8)] for _ in range(9)]
    mean, measured = sum(gap.kl for text in gaps for gap in text) / 72, forced_measurements(gaps)
    variant = Variant("b", metrics=measured.estimates, p_values=measured.p_values, counts=measured.counts)
    assert f"the KL divergence is {mean:.4f} nats (" in explained(
        variant
    ) and "100.0 % of the top tokens are the same" in explained(variant)
    same = forced_measurements([[Gap(0.0, -1.0, -1.0, True, True)] * 8] * 9)
    variant = Variant("b", metrics=same.estimates, p_values=same.p_values, counts=same.counts)
    assert "both engines compute the same distributions, on 9 texts" in explained(variant)


def test_failures_come_first() -> None:
    first = [answer(str(number), "same", 1.0) for number in range(6)]
    second = [*first[1:], Answer("t", "0", "t", "prompt", None, "", error="HTTP 500")]
    found = explained(compared("b", pair(first, second), ForcedGaps(expected=6, failed=1, error="HTTP 500")))
    assert found.startswith("1 of 6 requests failed: a failed request counts as changed and as wrong. Not everything could")


def test_nan_is_a_fault() -> None:
    variant = graded(
        0, 0, 400, counts={"nonfinite_positions": 3}, metrics={"kl_mean": Estimate(math.nan, None, None, None, 9)}
    )
    assert explained(variant).startswith("The log-probabilities of 3 positions are NaN or infinite: that is a fault")


def test_load_and_repeats() -> None:
    level = Variant(
        "concurrency 4",
        metrics={"failure_rate": rate(0, 18), "match_rate": rate(4, 6)},
        counts={"samples": 6, "repetitions": 3, "failed": 0, "diverged": 2},
    )
    check = Check("stress", ["t"], [Variant("concurrency 1"), level], "concurrency 1")
    assert explain(check, level) == [
        "None of 18 requests failed, and up to 18.5 % may (95 % interval).",
        "2 of 6 texts differ from those at concurrency 1.",
    ]
    counts = {"samples": 4, "runs": 5, "failed": 0, "diverged": 0}
    same = Variant("all", metrics={"identical_rate": rate(4, 4)}, counts=counts)
    assert explain(Check("determinism", ["t"], [same]), same) == [
        "4 prompts got the same answer in all of 5 runs; up to 60.2 % of other prompts may not (95 % interval)."
    ]
