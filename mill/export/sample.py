"""What formats with messages take of a sample and its repeats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mill.api.response import Response
from mill.runs.sample_row import SampleRow
from mill.runs.samples import RunSample

Message = Mapping[str, Any]
"""As `mill.api.message.Message.to_json` writes it."""


def shown_text(responses: Sequence[Response]) -> str | None:
    """The text or label of the last response; None for log-probabilities and errors."""
    if not responses:
        return None
    return responses[-1].text if responses[-1].text is not None else responses[-1].label


def messages_before(one: RunSample, repeat: int) -> list[Message]:
    """The messages that the last response of a repeat answers."""
    return list(one.messages[repeat]) if repeat < len(one.messages) else prompt_messages(one.sent)


def repeat_values(row: SampleRow, repeat: int) -> dict[str, Any]:
    """The values of a repeat, as its file has them: numbers, texts, lists or mappings of numbers."""
    return {name: values[repeat] for name, values in row.values.items() if repeat < len(values)}


def target_text(row: SampleRow) -> str:
    return "" if row.target is None else str(row.target)


def prompt_messages(prompt: str) -> list[Message]:
    """The messages of a prompt: those that were sent to a server as JSON, else one of the user."""
    if prompt.startswith("[{"):
        try:
            found = json.loads(prompt)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, list) and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in found):
            return found
    return [{"role": "user", "content": prompt}]


def message_text(message: Message) -> str:
    """The text of a message; images, audio and videos by their names."""
    content = message.get("content")
    if not isinstance(content, list):
        return str(content or "")
    return "\n".join(_part(part) for part in content if isinstance(part, Mapping))


def _part(part: Mapping[str, Any]) -> str:
    kind = str(part.get("type", "text"))
    return str(part.get("text") or "") if kind == "text" else f"<{kind} {part.get(kind) or ''}>".replace(" >", ">")
