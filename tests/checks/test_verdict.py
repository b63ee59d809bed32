"""The verdict of a check in one sentence."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from mill.checks.result import Variant
from mill.checks.verdict import load_verdict, repeat_verdict, verdict
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import mcnemar, rate, rate_difference


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
        (Variant("b", counts={"samples": 6, "both_empty": 6}), "inconclusive: 6 answers are empty on both sides"),
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
