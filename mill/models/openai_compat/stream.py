"""A response from the events of a stream."""

from __future__ import annotations

import json
from typing import Any

from mill.models.http import Failure
from mill.models.http.values import shaped
from mill.models.openai_compat.finish import read_finish
from mill.models.openai_compat.schema import ChatMessage, Choice, Completion, first_choice


class StreamedAnswer:
    """Collects text, reasoning, tool calls, finish_reason and token counts. A response without finish_reason is not
    complete."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish: str | None = None
        self._usage: Any = None
        self._model: Any = None

    def feed(self, event: Any) -> bool:
        """Whether the event has text, of the answer or of the reasoning before it."""
        chunk = shaped(event, Completion, "an event of the stream")
        self._usage, self._model = chunk.usage or self._usage, chunk.model or self._model
        if not chunk.choices:
            return False
        choice = first_choice(chunk.choices)
        self._finish = read_finish(choice) or self._finish
        text, reasoning = _texts(choice)
        self._texts.append(text)
        self._reasoning.append(reasoning)
        called = self._feed_calls(choice)
        return bool(text or reasoning or called)

    def _feed_calls(self, choice: Choice) -> bool:
        """A call comes in parts, by its index: the name and the id once, the arguments piece by piece."""
        parts = (choice.delta.tool_calls if choice.delta is not None else None) or []
        for position, part in enumerate(parts):
            index = position if part.index is None else part.index
            call = self._calls.setdefault(index, {"name": "", "id": "", "arguments": ""})
            call["name"] = part.function.name or call["name"]
            call["id"] = part.id or call["id"]
            given = part.function.arguments
            call["arguments"] += given if isinstance(given, str) else "" if given is None else json.dumps(given)
        return bool(parts)

    def whole(self) -> dict[str, Any]:
        if self._finish is None:
            raise Failure("cut", "the server ended the stream before the answer was complete: it gave no finish_reason")
        message: dict[str, Any] = {"content": "".join(self._texts), "reasoning_content": "".join(self._reasoning) or None}
        if self._calls:
            message["tool_calls"] = [
                {"id": call["id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
                for _, call in sorted(self._calls.items())
            ]
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return {"choices": [choice], "usage": self._usage, "model": self._model}


def _texts(choice: Choice) -> tuple[str, str]:
    message = choice.delta or choice.message or ChatMessage()
    reasoning = message.reasoning_content or message.reasoning
    return choice.text or message.content or "", reasoning if isinstance(reasoning, str) else ""
