"""The samples of a run that a report shows: failed and wrong ones first, so many of each task, long texts cut."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mill.runs.sample_row import FAILED, PENDING, SampleRow, read_rows
from mill.support.files import json_text

MAX_SAMPLES = 200  # of a task
MAX_IN_RUN = 1000  # of all tasks of a run together
MAX_CHARS = 4000  # of a text
MAX_ERRORS = 20  # different errors of a task
FIRST_IDS = 5  # samples that are named for an error
MAX_CHOICES = 26
_COLUMNS = (
    "id", "category", "status", "flags", "prompt", "target", "response", "reasoning", "extracted", "values", "choices",
    "choice_logprobs", "error",
)  # fmt: skip


@dataclass
class TaskSamples:
    """What a report shows of a samples file, with the number of its lines and its errors."""

    shown: list[SampleRow] = field(default_factory=list)
    total: int = 0
    errors: dict[str, list[str]] = field(default_factory=dict)
    """Error -> the first samples that have it."""
    error_counts: dict[str, int] = field(default_factory=dict)
    other_errors: int = 0
    """Samples whose error is none of the listed ones."""
    unanswered: int = 0

    def failure_lines(self, task: str) -> list[str]:
        """Each error with its count and the first samples that have it."""
        lines = []
        for error, ids in self.errors.items():
            count = self.error_counts[error]
            named = f"{', '.join(ids)}{', ...' if count > len(ids) else ''}"
            lines.append(f"{task}: {count} of {self.total} samples failed ({named}): {error}")
        lines += [f"{task}: {self.other_errors} more failed with other errors"] if self.other_errors else []
        return [*lines, f"{task}: {self.unanswered} of {self.total} samples are not answered"] if self.unanswered else lines

    def to_dict(self) -> dict[str, Any]:
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "shown"}
        return {"shown": [{name: getattr(row, name) for name in _COLUMNS} for row in self.shown], **counts}


def read_task_samples(file: Path, most: int = MAX_SAMPLES) -> TaskSamples:
    """Read line by line: only what is shown stays in memory. Empty where there is no file, as before a run is scored."""
    found = TaskSamples()
    if not file.exists():
        return found
    ranked = ((_rank(row), number, _shortened(row)) for number, row in enumerate(_counted(file, found)))
    found.shown = [sample for *_, sample in heapq.nsmallest(most, ranked, key=lambda entry: entry[:2])]
    return found


def _counted(file: Path, found: TaskSamples) -> Iterator[SampleRow]:
    for _, row in read_rows(file):
        found.total += 1
        if row.status == PENDING:
            found.unanswered += 1
        elif row.error:
            error = cut(row.error)
            if error in found.errors or len(found.errors) < MAX_ERRORS:
                ids = found.errors.setdefault(error, [])
                ids += [str(row.id)] if len(ids) < FIRST_IDS else []
                found.error_counts[error] = found.error_counts.get(error, 0) + 1
            else:
                found.other_errors += 1
        yield row


def _rank(row: SampleRow) -> float:
    """Failed samples first, then by the first metric that is a number, the worst first; then all others."""
    if row.status == FAILED:
        return -math.inf
    values = (row.mean(metric) for metric in row.values)
    return next((value for value in values if value is not None), math.inf)


def _shortened(row: SampleRow) -> SampleRow:
    """What is shown of a sample, with its texts cut."""
    texts: dict[str, Any] = {name: _text(getattr(row, name)) for name in ("target", "response", "reasoning", "error")}
    return SampleRow(
        id=str(row.id),
        task=row.task,
        category=cut(row.category) if row.category else None,
        status=row.status,
        flags=row.flags,
        prompt=cut(row.prompt),
        extracted=_text(row.chosen if row.extracted is None else row.extracted),
        values={cut(name): repeats for name, repeats in row.values.items()},
        choices=[cut(text, 300) for text in row.choices[:MAX_CHOICES]] if row.choices else None,
        choice_logprobs=row.choice_logprobs,
        keys=[[] for _ in row.keys],
        **texts,
    )


def shown_values(row: SampleRow) -> list[str]:
    """Each metric with its value of every repeat."""
    return [f"{name} {cut(', '.join(map(_value, repeats)))}" for name, repeats in row.values.items()]


def shown_choices(row: SampleRow) -> list[tuple[str, float | None]]:
    """The choices with their log-probabilities; none where those are not known."""
    texts, scores = row.choices or [], row.choice_logprobs or []
    return list(zip(texts, scores, strict=False)) if len(scores) >= len(texts) else []


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else _text(value) or "-"


def _text(value: Any) -> str | None:
    return None if value is None else cut(value if isinstance(value, str) else json_text(value))


def cut(text: str, most: int = MAX_CHARS) -> str:
    """A long text without its middle, with a note how much that is: a prompt ends with the question, and a response with
    the answer."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most // 2]}\n[… {left_out:,} of {len(text):,} characters left out …]\n{text[len(text) - most // 2 :]}"
