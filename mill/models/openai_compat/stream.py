"""A response from the events of a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from mill.api.tools import ToolCall
from mill.models.http.body import shaped
from mill.models.http.failures import Failure, shown
from mill.models.openai_compat.answers import read_finish
from mill.models.openai_compat.schema import CalledTool, ChatMessage, Choice, Completion, first_choice


@dataclass
class _Call:
    """A call of a tool, as far as it has come."""

    name: str = ""
    id: str = ""
    arguments: list[str] = field(default_factory=list)

    def followed_by(self, part: CalledTool) -> bool:
        """Whether a part of the same index is of the next call. Some servers repeat the name in every part."""
        if not self.name or not part.function.name:
            return False
        if self.id and part.id:
            return part.id != self.id
        if part.index is not None or not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False
        return ToolCall.parse("", "".join(self.arguments)).arguments is not None

    def add(self, part: CalledTool) -> None:
        self.name, self.id = part.function.name or self.name, part.id or self.id
        given = part.function.arguments
        if given is not None:
            self.arguments.append(given if isinstance(given, str) else json.dumps(given))


class StreamedAnswer:
    """Collects text, reasoning, tool calls, finish_reason and token counts. A response without finish_reason is not
    complete."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[_Call]] = {}
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
        """A call comes in parts, by its index: the name and the id once, the arguments piece by piece. Some servers give no
        index, or the same one to all calls: there another one begins with its name."""
        parts = (choice.delta.tool_calls if choice.delta is not None else None) or []
        for position, part in enumerate(parts):
            calls = self._calls.setdefault(position if part.index is None else part.index, [_Call()])
            if calls[-1].followed_by(part):
                calls.append(_Call())
            calls[-1].add(part)
        return bool(parts)

    def whole(self) -> dict[str, Any]:
        if self._finish is None:
            raise Failure("cut", "the server ended the stream before the answer was complete: it gave no finish_reason")
        text = "".join(self._texts)
        message: dict[str, Any] = {"content": text, "reasoning_content": "".join(self._reasoning) or None}
        if not text and self._finish == "tool_calls":
            message["content"] = None  # calls that did not come are not an empty answer
        if self._calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": "".join(call.arguments)}}
                for index in sorted(self._calls)
                for call in self._calls[index]
            ]
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return {"choices": [choice], "usage": self._usage, "model": self._model}


def _texts(choice: Choice) -> tuple[str, str]:
    message = choice.delta or choice.message or ChatMessage()
    reasoning = message.reasoning_content or message.reasoning or ""
    if not isinstance(reasoning, str):
        raise Failure("garbage", f"the reasoning of the server's answer is {shown(reasoning, 40)}, not a text")
    return choice.text or message.content or "", reasoning
