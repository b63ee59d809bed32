"""A sample of a run with its repeats, for formats that have messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mill.api.response import Response
from mill.runs.sample_schema import read_response
from mill.runs.sample_status import NOT_ANSWERED

Message = Mapping[str, Any]
"""As `mill.api.message.Message.to_json` writes it."""


@dataclass(frozen=True)
class SampleRepeat:
    """One repeat of a sample. `values` are those of the file: numbers, texts, lists or mappings of numbers."""

    responses: list[Response]
    before: list[Message]
    """The messages that the last response answers."""
    values: dict[str, Any]
    extracted: Any = None

    @property
    def text(self) -> str | None:
        """The text or label of the last response; None for log-probabilities and errors."""
        if not self.responses:
            return None
        return self.responses[-1].text if self.responses[-1].text is not None else self.responses[-1].label


@dataclass(frozen=True)
class ExportedSample:
    """`row` is the sample as in its file."""

    row: Mapping[str, Any]
    repeats: list[SampleRepeat]
    choices: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def error(self) -> str | None:
        found = self.row.get("error")
        return None if found is None else str(found)

    @property
    def unanswered(self) -> bool:
        return self.error == NOT_ANSWERED

    @property
    def is_dialog(self) -> bool:
        return bool(self.row.get("messages"))

    @property
    def target(self) -> str:
        given = self.row.get("target")
        return "" if given is None else str(given)

    @property
    def chosen(self) -> str | None:
        """The choice with the largest log-probability."""
        found = self.row.get("chosen")
        return found if isinstance(found, str) else None


def read_sample(row: Mapping[str, Any]) -> ExportedSample:
    """A sample from the row of its file, which is checked already."""
    where, count = f"sample {row['id']}", len(row["responses"])
    messages, extracted = row.get("messages") or [], row.get("extracted_repeats") or [row.get("extracted")]
    repeats = [
        SampleRepeat(
            [read_response(response, where) for response in given],
            messages[index] if index < len(messages) else prompt_messages(str(row["prompt"])),
            {name: values[index] for name, values in row.get("values", {}).items() if index < len(values)},
            extracted[index] if index < len(extracted) else None,
        )
        for index, given in enumerate(row["responses"][:count])
    ]
    choices = row.get("choices")
    return ExportedSample(row, repeats, [str(one) for one in choices] if isinstance(choices, list) else [])


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
