"""The samples of a run that a report shows: failed and wrong ones first, so many of each task, long texts cut."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mill.api.storage import json_text
from mill.runs.samples import read_rows

MAX_SAMPLES = 200  # of a task
MAX_IN_RUN = 1000  # of all tasks of a run together
MAX_CHARS = 4000  # of a text
MAX_ERRORS = 20  # different errors of a task
FIRST_IDS = 5  # samples that are named for an error
MAX_CHOICES = 26
FAILED, WRONG, RIGHT, SCORED, UNANSWERED = "failed", "wrong", "right", "scored", "unanswered"


@dataclass(frozen=True)
class ShownSample:
    """A sample as a report shows it; the texts are cut. `kind` is failed, wrong, right, scored for other values, or
    unanswered in a run that was not finished."""

    id: str
    category: str
    kind: str
    prompt: str
    target: str | None
    response: str | None
    reasoning: str | None
    extracted: str | None
    values: dict[str, str]
    choices: list[tuple[str, float | None]]
    error: str | None
    repeats: int = 1


@dataclass
class TaskSamples:
    """What a report shows of a samples file, with the number of its lines and its errors."""

    shown: list[ShownSample] = field(default_factory=list)
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
        return asdict(self)


def read_task_samples(file: Path, most: int = MAX_SAMPLES) -> TaskSamples:
    """Read line by line: only what is shown stays in memory. Empty where there is no file, as before a run is scored."""
    found = TaskSamples()
    if not file.exists():
        return found
    ranked = ((_rank(row), number, _shown(row)) for number, row in enumerate(_counted(file, found)))
    found.shown = [sample for *_, sample in heapq.nsmallest(most, ranked, key=lambda entry: entry[:2])]
    return found


def _counted(file: Path, found: TaskSamples) -> Iterator[Mapping[str, Any]]:
    for _, row in read_rows(file):
        found.total += 1
        if not any(row["responses"]):
            found.unanswered += 1
        elif error := row.get("error"):
            error = cut(str(error))
            if error in found.errors or len(found.errors) < MAX_ERRORS:
                ids = found.errors.setdefault(error, [])
                ids += [str(row["id"])] if len(ids) < FIRST_IDS else []
                found.error_counts[error] = found.error_counts.get(error, 0) + 1
            else:
                found.other_errors += 1
        yield row


def _rank(row: Mapping[str, Any]) -> float:
    """Failed samples first, then by the first metric that is a number, the worst first; then all others."""
    if _kind(row) == FAILED:
        return -math.inf
    value = _main_value(row)
    return math.inf if value is None else value


def _main_value(row: Mapping[str, Any]) -> float | None:
    for repeats in (row.get("values") or {}).values():
        numbers = [value for value in repeats if isinstance(value, (int, float))]
        if numbers:
            return math.fsum(numbers) / len(numbers)
    return None


def _kind(row: Mapping[str, Any]) -> str:
    if not any(row["responses"]):
        return UNANSWERED
    if row.get("error"):
        return FAILED
    value = _main_value(row)
    return WRONG if value == 0.0 else RIGHT if value == 1.0 else SCORED


def _shown(row: Mapping[str, Any]) -> ShownSample:
    values = {name: ", ".join(map(_value, repeats)) for name, repeats in (row.get("values") or {}).items()}
    return ShownSample(
        id=str(row["id"]),
        category=cut(str(row.get("category") or "")),
        kind=_kind(row),
        prompt=cut(row["prompt"]),
        target=_text(row.get("target")),
        response=_text(row.get("response")),
        reasoning=_text(row.get("reasoning")),
        extracted=_text(row.get("chosen") if row.get("extracted") is None else row["extracted"]),
        values={cut(name): cut(text) for name, text in values.items()},
        choices=_choices(row),
        error=_text(row.get("error")),
        repeats=max(1, len(row["responses"])),
    )


def _choices(row: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    texts, scores = row.get("choices"), row.get("choice_logprobs")
    if not isinstance(texts, list) or not isinstance(scores, list) or len(texts) != len(scores):
        return []
    numbers = [float(score) if isinstance(score, (int, float)) else None for score in scores]
    return [(cut(str(text), 300), score) for text, score in list(zip(texts, numbers, strict=True))[:MAX_CHOICES]]


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
