"""Tools that a model may call: their description in a request, the calls in a response, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

OK, ERROR, TIMED_OUT, UNKNOWN, MALFORMED = "ok", "error", "timed out", "unknown tool", "malformed"
CallOutcome = Literal["ok", "error", "timed out", "unknown tool", "malformed"]
OUTCOMES = get_args(CallOutcome)
MOST_CALLS = 64  # of one response: the others are refused


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}}, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """In OpenAI's format, which chat templates take too."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it. `arguments` is None where `text`, the arguments as written, is not a JSON object."""

    name: str
    arguments: Mapping[str, Any] | None = field(default_factory=dict, hash=False)
    text: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        """A call that is made in Python has its arguments alone, as an object or as a JSON text. The text is what is
        recorded."""
        if isinstance(self.arguments, str) or (self.arguments and not self.text):
            made = ToolCall.parse(self.name, self.arguments, self.id)
            object.__setattr__(self, "arguments", made.arguments)
            object.__setattr__(self, "text", made.text)

    @classmethod
    def parse(cls, name: str, arguments: Any, call_id: str = "") -> ToolCall:
        """A call whose arguments are a JSON text, or an object already; anything else is malformed."""
        if isinstance(arguments, Mapping):
            return cls(name, dict(arguments), json.dumps(arguments, ensure_ascii=False, default=str), call_id)
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments, default=str)
        try:
            found = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            found = None
        return cls(name, found if isinstance(found, dict) else None, text, call_id)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": self.text, **({"id": self.id} if self.id else {})}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolCall:
        return cls.parse(data["name"], data["arguments"], data.get("id", ""))

    def message(self) -> dict[str, Any]:
        """In OpenAI's format, as part of a message of the assistant. Servers refuse arguments that are not JSON."""
        text = self.text if self.arguments is not None and self.text.strip() else "{}"
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": text}}


@dataclass(frozen=True)
class ToolResult:
    """What came of a call: the text that the model gets, and how it ended (one of OUTCOMES)."""

    name: str
    output: str
    outcome: str = OK
    id: str = ""

    def to_dict(self) -> dict[str, Any]:
        shown = {"name": self.name, "output": self.output, "outcome": self.outcome}
        return {**shown, **({"id": self.id} if self.id else {})}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolResult:
        return cls(data["name"], data["output"], data["outcome"], data.get("id", ""))
