"""The rows, categories and series inside of a check: a file that does not fit is refused with the name of the field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mill.support.validate import Number

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)] | Literal["NaN"]
Rate = tuple[Share | None, Share | None, Share | None, Count]
Score = tuple[Number | None, Number | None, Number | None, Count]
Severity = Literal["identical", "minor", "moderate", "severe", "empty", "failed"]


class TokenFile(Struct):
    text: str
    logprob: Number
    top: list[tuple[int | str, Number]] = []


class DivergenceFile(Struct):
    char: int
    token: Annotated[int, Meta(ge=1)] | None = None
    margin: Number | None = None
    tokens: tuple[TokenFile | None, TokenFile | None] | None = None


class ComparedChoice(Struct):
    """A choice of multiple choice, with its log-probability on both sides."""

    text: str
    logprobs: tuple[Number, Number]


class ComparedRow(Struct):
    """A sample answered by two engines."""

    task: str
    id: str
    category: str
    prompt: str
    texts: tuple[str, str]
    extracted: tuple[Any, Any]
    right: tuple[bool | None, bool | None]
    errors: tuple[str | None, str | None]
    severity: Severity
    similarity: Number
    flipped: bool | None
    gold: Any = None
    divergence: DivergenceFile | None = None
    kl: dict[str, Number] | None = None
    kl_positions: list[Number] | None = None
    choices: list[ComparedChoice] | None = None


class RepeatedRow(Struct):
    """A sample answered several times by one engine; `texts` are the two most common answers."""

    task: str
    id: str
    category: str
    prompt: str
    share: Number
    distinct: Annotated[int, Meta(ge=1)]
    failed: Count
    texts: Annotated[list[str], Meta(min_length=1, max_length=2)]
    errors: Annotated[list[str | None], Meta(min_length=1, max_length=2)]
    times: list[Count]
    score_range: Number | None = None
    divergence: DivergenceFile | None = None


class Group(Struct):
    """A category of a task. Rates are value, low, high and n."""

    task: str
    category: str
    n: Count
    match_rate: Rate | UnsetType = UNSET
    flip_rate: Rate | UnsetType = UNSET
    acc_baseline: Rate | UnsetType = UNSET
    acc: Rate | UnsetType = UNSET
    score_baseline: Score | UnsetType = UNSET
    score: Score | UnsetType = UNSET


class PositionFile(Struct):
    position: Annotated[int, Meta(ge=1)]
    agreement: Number
    n: Annotated[int, Meta(ge=1)]


class ErrorFile(Struct):
    id: str
    error: str


class SeriesData(Struct, frozen=True):
    kl: tuple[Number, ...] = ()
    agreement_by_position: tuple[PositionFile, ...] = ()
    errors: tuple[ErrorFile, ...] = ()
