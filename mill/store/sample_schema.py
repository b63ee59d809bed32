"""The types of the lines of samples/*.jsonl and record/*.jsonl. All that is read back is checked against them; fields that
they do not have, such as those of a newer version, are ignored."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from mill.api.errors import RunError
from mill.api.response import Response
from mill.api.tools import CallOutcome
from mill.support.validate import Number, convert


@dataclass
class ToolCallEntry:
    """A call of a tool; `arguments` as the model wrote them."""

    name: str
    arguments: str
    id: str = ""


@dataclass
class ToolResultEntry:
    name: str
    output: str
    outcome: CallOutcome
    id: str = ""


@dataclass
class ContentEntry:
    """A part of a message: a text, or the name of an image, video or audio."""

    type: Literal["text", "image", "video", "audio"]
    text: str = ""
    image: str = ""
    video: str = ""
    audio: str = ""


@dataclass
class MediaEntry:
    """An image, video or audio of a prompt; `digest` is that of its content."""

    type: Literal["image", "video", "audio"]
    name: str
    digest: str


@dataclass
class CalledFunction:
    name: str
    arguments: str


@dataclass
class MessageCall:
    """A call of a tool in a message, in OpenAI's format."""

    function: CalledFunction
    id: str = ""


@dataclass
class MessageEntry:
    """A message, as `Message.to_json` writes it."""

    role: str
    content: str | list[ContentEntry]
    tool_calls: list[MessageCall] = field(default_factory=list)
    tool_call_id: str = ""
    name: str = ""


@dataclass
class DescribedFunction:
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolEntry:
    """A tool that the model may call, as `Tool.to_dict` writes it."""

    function: DescribedFunction


@dataclass
class ResponseEntry:
    """A response, as `Response.to_dict` writes it."""

    text: str | None = None
    score: Number | None = None
    is_greedy: bool | None = None
    label: str | None = None
    ranking: list[tuple[str, Number]] | None = None
    tokens: list[tuple[int | None, str, Number, list[tuple[int | str, Number]]]] | None = None
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    truncated_tokens: int = 0
    retries: int = 0
    retry_reason: str | None = None
    seconds: Number | None = None
    first_token_s: Number | None = None
    reasoning: str | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    tool_calls: list[ToolCallEntry] = field(default_factory=list)
    tool_results: list[ToolResultEntry] = field(default_factory=list)
    distribution: str | None = None
    engine: str | None = None
    system_fingerprint: str | None = None
    provider: str | None = None


@dataclass
class RecordLine:
    """A line of record/*.jsonl. Those of the first version had neither `deterministic` nor `failed`."""

    key: str
    response: ResponseEntry
    kind: str = ""
    deterministic: bool = False


ValueEntry = float | str | list[Number] | dict[str, Number] | None
"""A metric's value of one repeat: a number, a pair of numbers, or, of a task that sums up its values itself, what is shown
of them. A number that is not finite is a text."""


def read_response(data: Any, where: object) -> Response:
    """A NaN is no score: mill records the error instead."""
    convert(data, ResponseEntry, where, RunError)
    response = Response.from_dict(data)
    if response.score is not None and math.isnan(response.score):
        raise RunError(f"the score of {where} is NaN")
    return response
