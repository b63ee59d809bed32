"""The part of a line of samples/<task>.jsonl that is read where many lines are: texts are not decoded."""

from __future__ import annotations

from typing import Any

import msgspec

_Undecoded = msgspec.Raw
ABSENT = (b"", b"null")


class SampleLineHead(msgspec.Struct, gc=False):
    """Everything else of a line is skipped."""

    id: str | int
    category: str | None = None
    prompt: msgspec.Raw = _Undecoded()
    response: msgspec.Raw = _Undecoded()
    extracted: msgspec.Raw = _Undecoded()
    chosen: msgspec.Raw = _Undecoded()
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    seconds: float | None = None
    truncated: bool = False
    truncated_reasoning: bool = False
    max_rounds_reached: bool = False
    choice_logprobs: list[float | None] | None = None
    correct: bool | None = None
    values: dict[str, list[Any]] = {}
    responses: msgspec.Raw = _Undecoded()
    keys: list[list[str]] = []
    doc: msgspec.Raw = _Undecoded()


_decode = msgspec.json.Decoder(SampleLineHead).decode


def read_head(line: bytes) -> SampleLineHead:
    """Raises ValueError for a line that is no sample."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
