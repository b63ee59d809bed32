"""Warnings about the answers that a check compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mill.checks.answers import Answer


def answer_warnings(counts: Mapping[str, int], *, chat: bool = False) -> list[str]:
    """Answers that are empty, truncated at the token limit, without an extracted answer, or filtered by the server."""
    warnings, n = [], counts.get("samples", 0)
    if counts.get("empty"):
        both = f", {counts['both_empty']} of them on both sides, which is no agreement" if counts.get("both_empty") else ""
        baseline = f", {counts['baseline_empty']} of the baseline" if counts.get("baseline_empty") else ""
        hint = "" if chat else "; an instruct model may need --chat"
        warnings.append(f"{counts['empty']} of {n} samples have an empty answer{baseline}{both}{hint}")
    if counts.get("cut_short"):
        flips = (
            f", {counts['flips_cut_short']} of {counts['flips']} flips among them" if counts.get("flips_cut_short") else ""
        )
        warnings.append(
            f"{counts['cut_short']} of {n} samples have an answer that ended at the token limit{flips}; see --max_tokens"
        )
    if counts.get("unextracted"):
        warnings.append(f"no answer could be extracted from {counts['unextracted']} of {n} samples on either side")
    if counts.get("filtered"):
        warnings.append(f"{counts['filtered']} of {n} samples have an answer that the server filtered")
    return warnings


def truncation_warnings(answers: Sequence[Answer]) -> list[str]:
    """Prompts that were longer than the context and were cut on the left, counted for each task."""
    prompts = Counter(answer.task for answer in answers)
    truncated = Counter(answer.task for answer in answers if answer.truncated)
    return [
        f"{count} of {prompts[task]} prompts of {task} were truncated on the left to fit the context"
        for task, count in truncated.items()
    ]
