"""The values of a run's samples, without their texts: for tests over pairs of samples, for plots of tokens and of
calibration."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mill.api.errors import RunError
from mill.api.storage import read_lines
from mill.metrics.calibration import choice_confidence
from mill.runs.sample_head import ABSENT, SampleLineHead, read_head

Number = float | tuple[float, float]
"""A metric's value of a sample: a number, or a log-likelihood with its number of units."""


@dataclass(frozen=True, slots=True)
class SampleValues:
    """One sample: digests of its data, its first request and its prompt, and the mean of each metric over its repeats."""

    task: str
    id: str
    doc_hash: str
    request_key: str
    prompt_hash: str
    values: dict[str, Number]
    category: str = ""


@dataclass(frozen=True, slots=True)
class SampleUsage:
    """The tokens of all responses of a sample; of multiple choice by log-probability, the probability of the choice."""

    prompt_tokens: int | None
    output_tokens: int | None
    confidence: float | None
    correct: bool | None


class _Counts(msgspec.Struct, gc=False):
    """What is read of a response."""

    prompt_tokens: float | None = None
    output_tokens: float | None = None


_decode_counts = msgspec.json.Decoder(list[list[_Counts]]).decode


def read_values(file: Path, task: str) -> list[SampleValues]:
    """The values of a file's samples, in order."""
    return list(_read(file, lambda head: _values(head, task)).values())


def read_usage(file: Path) -> list[SampleUsage]:
    """What a file's samples took, in order."""
    return list(_read(file, _usage).values())


T = TypeVar("T")


def _read(file: Path, convert: Callable[[SampleLineHead], T]) -> dict[str, T]:
    """By the ids of samples; empty where there is no file. A line that is no sample is refused; of two lines of one sample
    the first counts."""
    found: dict[str, T] = {}
    try:
        for number, (_, line) in enumerate(read_lines(file), 1):
            if not line.strip():
                continue
            try:
                head = read_head(line)
                found.setdefault(str(head.id), convert(head))
            except (ValueError, msgspec.MsgspecError) as error:
                raise RunError(f"{file}, line {number}, is not a sample: {error}") from error
    except FileNotFoundError:
        return {}
    return found


def _usage(head: SampleLineHead) -> SampleUsage:
    counts = [count for repeat in _decode_counts(head.responses) for count in repeat] if bytes(head.responses) else []
    return SampleUsage(
        prompt_tokens=_total([count.prompt_tokens for count in counts]),
        output_tokens=_total([count.output_tokens for count in counts]),
        confidence=None if head.error else choice_confidence(head.choice_logprobs or ()),
        correct=None if head.error else head.correct,
    )


def _values(head: SampleLineHead, task: str) -> SampleValues:
    doc = bytes(head.doc)
    numbers = {} if head.error else {name: _mean(repeats) for name, repeats in head.values.items()}
    return SampleValues(
        task=task,
        id=str(head.id),
        doc_hash=_digest(doc) if doc not in (*ABSENT, b"{}") else "",
        request_key=head.keys[0][0] if head.keys and head.keys[0] else "",
        prompt_hash=_digest(bytes(head.prompt)),
        values={name: value for name, value in numbers.items() if value is not None},
        category=head.category or "",
    )


def _mean(repeats: Sequence[Any]) -> Number | None:
    """The mean over repeats; None where one of them is no number, such as a value that only its task can read."""
    if len(repeats) == 1 and type(repeats[0]) is float:  # most samples
        return repeats[0]
    found = [value for value in repeats if value is not None]
    if found and all(isinstance(value, (list, tuple)) and len(value) == 2 for value in found):
        sides = [[_number(part) for part in side] for side in zip(*found, strict=True)]
        first, second = (math.nan if None in side else sum(filter(None, side)) / len(side) for side in sides)
        return None if math.isnan(first) or math.isnan(second) else (first, second)
    numbers = [_number(value) for value in found]
    if not numbers or None in numbers:
        return None
    return sum(number for number in numbers if number is not None) / len(numbers)


def _number(value: Any) -> float | None:
    """A number; one that is not finite is a text in JSON."""
    if value in ("Infinity", "-Infinity"):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _total(counts: Sequence[float | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return round(sum(known)) if known else None


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=12).hexdigest()
