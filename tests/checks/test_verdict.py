"""The verdict of a check in one sentence."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.checks.answers import Answer
from mill.checks.kinds import explain
from mill.checks.result import Check, Variant
from mill.checks.verdict import load_verdict, repeat_verdict, verdict
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import detectable_loss, mcnemar, power, rate, rate_difference


def compared(worse: int = 0, better: int = 0, n: int = 60, **more: Any) -> Variant:
    """A candidate with lost accuracy, with other fields as given."""
    metrics = {"acc_drop": rate_difference(worse, better, n), **more.pop("metrics", {})}
    p_values = {"acc_drop": mcnemar(worse, better), **more.pop("p_values", {})}
    counts = {"samples": n, "regressions": worse, "improvements": better, **more.pop("counts", {})}
    return Variant("b", metrics=metrics, p_values=p_values, counts=counts, **more)


def ratio(value: float, low: float, high: float) -> dict[str, Estimate]:
    return {"ppl_ratio": Estimate(value, 0.1, low, high, 100)}


@pytest.mark.parametrize(
    ("variant", "start"),
    [
        (compared(40, 5, 200), "worse: accuracy lost 17.5 %"),
        (compared(5, 40, 200), "better: accuracy lost -17.5 %"),
        (compared(0, 0, 400), "unchanged within noise: accuracy lost 0.00 %"),
        (compared(15, 6, 60), "inconclusive at this n: accuracy lost 15.0 %"),
        (compared(0, 0, 6, counts={"failed": 2}), "worse: 2 of 6 samples failed"),
        (
            compared(0, 0, 400, counts={"nonfinite_positions": 3, "positions": 72}),
            "worse: 3 of 72 positions are NaN or infinite",
        ),
        (compared(0, 0, 400, unmeasured={"kl_mean": "2 of 9 texts"}), "worse: 2 of 9 texts"),
        (Variant("b"), "inconclusive: nothing could be compared"),
    ],
)
def test_the_start_of_the_verdict(variant: Variant, start: str) -> None:
    assert verdict(variant).startswith(start)


def test_the_perplexity_of_the_baselines_own_answers_only_shows_a_difference() -> None:
    """Any other engine gives them a lower probability, also a better one."""
    own = compared(0, 10, 60, metrics=ratio(6.5, 3.4, 12.3), p_values={"ppl_ratio": 1e-5}, counts={"forced_texts": 12})
    assert verdict(own).startswith("better: accuracy lost -16.7 %") and "perplexity ratio per token 6.5" in verdict(own)
    unsure = compared(1, 0, 60, metrics=ratio(6.5, 3.4, 12.3), p_values={"ppl_ratio": 1e-5}, counts={"forced_texts": 12})
    assert verdict(unsure).startswith("different: perplexity ratio per token 6.5")
    documents = compared(1, 0, 60, metrics=ratio(6.5, 3.4, 12.3), p_values={"ppl_ratio": 1e-5})
    assert verdict(documents).startswith("worse: perplexity ratio per token 6.5")


def test_a_change_that_is_significant_and_tiny_is_noise() -> None:
    tiny = compared(
        0, 0, 400, metrics=ratio(1.0033, 1.0016, 1.0049), p_values={"ppl_ratio": 0.004}, counts={"forced_texts": 6}
    )
    assert verdict(tiny).startswith("unchanged within noise")


def test_an_engine_that_computes_the_same_is_unchanged_on_these_samples() -> None:
    same = {"match_rate": rate(6, 6), "kl_max": around(0.0, None, 90)}
    sentence = verdict(compared(0, 0, 6, metrics=same))
    assert sentence.startswith(
        "unchanged on these 6 samples: all 6 texts are the same, and KL is 0; inconclusive for other samples"
    )


SIX_DIFFER: dict[str, Any] = {"metrics": {"match_rate": rate(0, 6)}, "counts": {"samples": 6, "diverged": 6}}
NEAR_TIES: dict[str, Any] = {"metrics": {"match_rate": rate(300, 400)}, "counts": {"diverged": 100, "near_ties": 90}}
SAME: dict[str, Any] = {"metrics": {"match_rate": rate(400, 400)}}


@pytest.mark.parametrize(
    ("variant", "pattern"),
    [
        (Variant("b", **SIX_DIFFER), "different: 6 of 6 texts differ; without gold answers .* whether worse is unknown"),
        (
            compared(0, 0, 6, **SIX_DIFFER),
            r"different: 6 of 6 texts differ\. inconclusive at this n: accuracy lost 0\.00 % .*",
        ),
        (
            compared(0, 0, 400, **NEAR_TIES),
            r"unchanged within noise: accuracy lost 0.*\. different: 100 of 400 texts differ, 90 of them at a near-tie",
        ),
        (compared(0, 0, 400, **SAME), r"unchanged within noise: accuracy lost 0\.00 % .*; all 400 texts are the same"),
        (compared(40, 5, 400, **NEAR_TIES), r"worse: accuracy lost 8\.75 % .*\. different: 100 of 400 texts differ, .*"),
        (
            compared(0, 0, 6, metrics={"match_rate": rate(6, 6)}),
            r"inconclusive at this n: accuracy lost 0\.00 % .*\. unchanged: all 6 texts are the same",
        ),
    ],
)
def test_texts_and_accuracy_have_a_status_each(variant: Variant, pattern: str) -> None:
    """Gold answers add a sentence, and take none away."""
    assert re.fullmatch(pattern, verdict(variant))


@pytest.mark.parametrize(("worse", "better", "n"), [(15, 6, 60), (1, 0, 5), (12, 8, 200)])
def test_the_number_of_samples_that_would_show_a_change_of_this_size_is_enough(worse: int, better: int, n: int) -> None:
    found = re.search(
        r"; about ([\d,]+) samples would show whether a change of this size", verdict(compared(worse, better, n))
    )
    assert found
    size = int(found[1].replace(",", ""))
    assert size > n
    assert verdict(compared(round(worse * size / n), round(better * size / n), size)).startswith("worse")


def test_infinite_values_are_no_improvement() -> None:
    endless = compared(0, 0, 400, metrics={"score_drop": around(-math.inf, None, 9), "score_baseline": around(1.0, None, 9)})
    endless.p_values["score_drop"] = 0.0
    assert verdict(endless).startswith("worse: score lost -inf")


def level(name: str, speed: float, diverged: int = 0, failed: int = 0) -> Variant:
    metrics = {
        "match_rate": rate(6 - diverged, 6),
        "requests_per_s": around(speed, None, 3),
        "latency_p50": around(1 / speed, None, 9),
    }
    return Variant(name, metrics=metrics, counts={"samples": 6, "repetitions": 3, "failed": failed, "diverged": diverged})


def test_load_is_judged_by_answers_failures_and_speed() -> None:
    one, four = level("concurrency 1", 2.0), level("concurrency 4", 5.0)
    assert load_verdict(one, one).startswith("reference level; requests per second 2.000")
    assert load_verdict(four, one) == (
        "unchanged: all 6 texts equal those at concurrency 1; requests per second 5.000 (2.5 times); "
        "latency p50 0.200 s (0.4 times)"
    )
    assert load_verdict(level("concurrency 4", 5.0, diverged=2), one).startswith("different: 2 of 6 texts differ")
    assert load_verdict(level("concurrency 4", 5.0, failed=4), one).startswith("worse: 4 of 18 requests failed")


def test_the_verdict_of_repetitions_includes_its_uncertainty() -> None:
    counts = {"samples": 4, "runs": 5, "failed": 0, "diverged": 0}
    same = Variant("all", metrics={"identical_rate": rate(4, 4)}, counts=counts)
    assert repeat_verdict(same).startswith(
        "no difference found: none of 4 prompts got a different answer in 5 runs (at this n, up to 60.2 %"
    )
    other = Variant("all", metrics={"identical_rate": rate(3, 4)}, counts={**counts, "diverged": 1})
    assert repeat_verdict(other).startswith("not deterministic: 1 of 4 prompts")


def test_failures_of_the_baseline_do_not_make_a_candidate_worse() -> None:
    counts = {"failed": 11, "candidate_failed": 0, "severity_failed": 11}
    reason = "the baseline failed on 11 of 40 samples"
    found = verdict(compared(2, 0, 40, counts=counts, unmeasured={"acc_drop": reason}, metrics={"match_rate": rate(29, 40)}))
    assert found.startswith(f"inconclusive at this n: {reason}") and "accuracy lost" not in found
    assert "all 29 texts that both models answered are the same" in found
    failing = compared(0, 0, 40, counts={"failed": 3, "candidate_failed": 3})
    assert verdict(failing).startswith("worse: 3 of 40 samples failed")


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


def test_the_level_is_shared_with_the_other_tests() -> None:
    """As in the verdict: two tests at 2.5 % each."""
    ratio = {"ppl_ratio": Estimate(1.01, 0.1, 0.9, 1.1, 90)}
    variant = graded(0, 0, 12, metrics=ratio, counts={"forced_texts": 12})
    variant.p_values["ppl_ratio"] = 0.4
    assert "McNemar's test at 2.5 %" in explained(variant)


def answer(name: str, text: str, value: float | None = None) -> Answer:
    return Answer("t", name, "t", "prompt", None, text, value=value, metric="acc")


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


def test_nan_is_a_fault() -> None:
    variant = graded(
        0, 0, 400, counts={"nonfinite_positions": 3}, metrics={"kl_mean": Estimate(math.nan, None, None, None, 9)}
    )
    assert explained(variant).startswith("The log-probabilities of 3 positions are NaN or infinite: that is a fault")
