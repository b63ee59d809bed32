"""Warnings about the answers of a check."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.checks.answers import Answer, answer_warnings, truncation_warnings
from mill.checks.result import find_checks, read_check
from mill.cli.main import run

LIMITS = ["--prompts", "reasoning", "--limit", "2", "--max-tokens", "4", "--no_chat", "--quiet", "--no-report"]


def test_counts_become_warnings() -> None:
    counts = {"samples": 9, "empty": 3, "both_empty": 2, "cut_short": 4, "flips_cut_short": 1, "flips": 2, "unextracted": 1}
    assert answer_warnings({**counts, "filtered": 5}) == [
        "3 of 9 samples have an empty answer, 2 of them on both sides, which is no agreement; "
        "an instruct model may need --chat",
        "4 of 9 samples have an answer that ended at the token limit, 1 of 2 flips among them; see --max_tokens",
        "no answer could be extracted from 1 of 9 samples on either side",
        "5 of 9 samples have an answer that the server filtered",
    ]
    assert answer_warnings({"samples": 9}) == []


def test_truncated_prompts_are_counted_for_each_task() -> None:
    answers = [
        Answer(task, "1", "c", "p", None, "x", truncated=cut) for task, cut in zip("ttuv", [True, False] * 2, strict=True)
    ]
    assert truncation_warnings(answers) == [
        "1 of 2 prompts of t were truncated on the left to fit the context",
        "1 of 1 prompts of u were truncated on the left to fit the context",
    ]


@pytest.mark.parametrize(
    "command",
    [["stress", "--concurrency", "1", "--repetitions", "1"], ["determinism", "--runs", "2"]],
    ids=["stress", "determinism"],
)
@pytest.mark.parametrize("length", [16, 4096], ids=["short", "long"])
def test_stress_and_determinism_report_truncated_prompts(
    command: list[str], length: int, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"hf[path={tiny_model},dtype=float32,max_context_length={length}]"
    assert run([*command, "--model", model, *LIMITS, "--output", str(tmp_path)]) == 0
    (file,) = find_checks(tmp_path)
    warning = "2 of 2 prompts of reasoning were truncated on the left to fit the context"
    assert (warning in read_check(file).warnings) is (length == 16)
    assert (warning in capsys.readouterr().out) is (length == 16)


def test_compare_reports_truncated_prompts_of_each_side(tiny_model: Path, tmp_path: Path) -> None:
    models = [f"hf[path={tiny_model},dtype=float32,max_context_length={length}]" for length in (16, 24)]
    assert run(["compare", *models, *LIMITS, "--label_a", "a", "--label_b", "b", "--output", str(tmp_path)]) == 0
    (file,) = find_checks(tmp_path)
    check, warning = read_check(file), "2 of 2 prompts of reasoning were truncated on the left to fit the context"
    assert f"a: {warning}" in check.warnings and warning in check.variants[0].warnings
