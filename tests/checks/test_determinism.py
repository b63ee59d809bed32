"""The same prompts over several passes, with metrics computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mill.api.response import Token
from mill.checks.answers import Answer
from mill.checks.determinism import repeated
from mill.checks.result import Variant
from mill.checks.subjects import Pass


def answer(text: str, id: str, **known: Any) -> Answer:
    return Answer("t", id, "c", "a prompt", None, text, **known)


def variant(*prompts: list[Answer]) -> Variant:
    """One list of answers for each prompt, one answer for each pass."""
    passes = [
        Pass(f"pass {number}", 1, list(answers), "run", []) for number, answers in enumerate(zip(*prompts, strict=True))
    ]
    return repeated("all runs", passes)


def answers(*texts: str, id: str = "1") -> list[Answer]:
    """Answers in the order of the passes; an empty text is a failed request."""
    return [answer(text, id) if text else answer("", id, error="timeout") for text in texts]


def test_three_prompts_in_four_runs() -> None:
    result = variant(answers("a", "a", "a", "a"), answers("a", "b", "a", "a", id="2"), answers("a", "b", "c", "a", id="3"))
    values = {name: estimate.value for name, estimate in result.metrics.items()}
    assert values["identical_rate"] == pytest.approx(1 / 3)
    assert values["most_common_share"] == pytest.approx((1 + 0.75 + 0.5) / 3)
    assert values["distinct_outputs"] == pytest.approx(2.0)
    assert values["failure_rate"] == 0.0
    assert result.counts == {"samples": 3, "runs": 4, "failed": 0, "diverged": 2, "near_ties": 0}
    assert [row["id"] for row in result.rows] == ["3", "2", "1"]  # the least stable first
    assert result.rows[1]["texts"] == ["a", "b"] and result.rows[1]["times"] == [3, 1]


def test_a_failed_run_is_not_the_same_answer() -> None:
    result = variant(answers("a", "", "a"), answers("a", "a", "a", id="2"))
    assert result.metrics["identical_rate"].value == 0.5
    assert result.metrics["failure_rate"].value == pytest.approx(1 / 6)
    assert (result.metrics["failure_rate"].n, result.counts["failed"]) == (6, 1)


def test_a_prompt_that_always_fails_is_not_identical() -> None:
    assert variant(answers("", "", "")).metrics["identical_rate"].value == 0.0


def test_the_margin_at_a_divergence() -> None:
    top = ((1, -0.70), (2, -0.72))
    first, second = (Token(1, "a", -0.70, top),), (Token(2, "b", -0.72, ((2, -0.70), (1, -0.72))),)
    result = variant([answer("a", "1", tokens=first), answer("b", "1", tokens=second), answer("a", "1", tokens=first)])
    assert result.metrics["divergence_margin"].value == pytest.approx(0.02)
    assert result.counts["near_ties"] == 1
    assert result.rows[0]["divergence"] == {"char": 0, "token": 1, "margin": pytest.approx(0.02)}


def test_the_noise_of_log_probabilities() -> None:
    runs = [answer(" A", "1", scores=(-1.0, -2.0)), answer(" A", "1", scores=(-1.25, -2.0))]
    other = [answer(" B", "2", scores=(-3.0, -4.0)), answer(" B", "2", scores=(-3.0, -4.5))]
    result = variant(runs, other)
    assert result.metrics["logprob_noise_max"].value == 0.5
    assert result.metrics["identical_rate"].value == 1.0
