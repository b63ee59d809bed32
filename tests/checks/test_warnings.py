"""Warnings about the answers of a check."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.checks.result import find_checks, read_check
from mill.cli.main import run

LIMITS = ["--prompts", "reasoning", "--limit", "2", "--max-tokens", "4", "--no_chat", "--quiet", "--no-report"]


@pytest.mark.parametrize(
    "command",
    [["stress", "--concurrency", "1", "--repetitions", "1"], ["determinism", "--runs", "2"]],
    ids=["stress", "determinism"],
)
def test_stress_and_determinism_report_truncated_prompts(
    command: list[str], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"hf[path={tiny_model},dtype=float32,max_context_length=16]"
    assert run([*command, "--model", model, *LIMITS, "--output", str(tmp_path)]) == 0
    (file,) = find_checks(tmp_path)
    warning = "2 of 2 prompts of reasoning were truncated on the left to fit the context"
    assert warning in read_check(file).warnings and warning in capsys.readouterr().out


def test_compare_reports_truncated_prompts_of_each_side(tiny_model: Path, tmp_path: Path) -> None:
    models = [f"hf[path={tiny_model},dtype=float32,max_context_length={length}]" for length in (16, 24)]
    assert run(["compare", *models, *LIMITS, "--label_a", "a", "--label_b", "b", "--output", str(tmp_path)]) == 0
    (file,) = find_checks(tmp_path)
    check, warning = read_check(file), "2 of 2 prompts of reasoning were truncated on the left to fit the context"
    assert f"a: {warning}" in check.warnings and warning in check.variants[0].warnings
