"""Messages of inspect_ai: their text, reasoning and tool calls, and as mill's samples have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mill.api.message import MEDIA_KINDS
from mill.api.tools import ERROR, MALFORMED, OK, TIMED_OUT, ToolCall, ToolResult
from mill.view.other_logs.inspect_schema import InspectContent, InspectMessage

_OUTCOMES = {"timeout": TIMED_OUT, "parsing": MALFORMED}


def text_of(message: InspectMessage) -> str:
    """The text of a message, its parts joined as inspect_ai does."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or "" for part in message.content if part.type == "text")


def reasoning_of(message: InspectMessage) -> str | None:
    """What the model wrote before its answer; the summary of it where the provider hides it."""
    parts = [] if isinstance(message.content, str) else [part for part in message.content if part.type == "reasoning"]
    if not parts:
        return None
    return "\n".join(
        (part.summary or "[redacted]") if part.redacted else part.reasoning or part.summary or "" for part in parts
    )


def tool_calls(message: InspectMessage) -> tuple[ToolCall, ...]:
    return tuple(ToolCall.parse(call.function, call.arguments, call.id) for call in message.tool_calls or ())


def tool_results(message: InspectMessage, later: Sequence[InspectMessage]) -> tuple[ToolResult, ...]:
    """The results of a message's calls, in their order; none where one of them has no result."""
    answers = {one.tool_call_id: one for one in later if one.role == "tool" and isinstance(one.tool_call_id, str)}
    calls = message.tool_calls or []
    if any(call.id not in answers for call in calls):
        return ()
    return tuple(_tool_result(call.function, answers[call.id]) for call in calls)


def _tool_result(name: str, message: InspectMessage) -> ToolResult:
    error = message.error
    outcome = _OUTCOMES.get(error.type, ERROR) if error else OK
    output = text_of(message) or (error.message if error else "")
    return ToolResult(name, output, outcome, str(message.tool_call_id or ""))


def has_media(messages: Sequence[InspectMessage]) -> bool:
    return any(
        part.type in MEDIA_KINDS for message in messages if isinstance(message.content, list) for part in message.content
    )


def as_json(message: InspectMessage, *, media: bool = True) -> dict[str, Any]:
    """A message as `Message.to_json` writes it. With `media`, images, audio and videos are data URLs or addresses."""
    shown: dict[str, Any] = {"role": message.role, "content": _content(message, media)}
    if message.tool_calls:
        shown["tool_calls"] = [call.message() for call in tool_calls(message)]
    if message.role == "tool":
        named = {"tool_call_id": message.tool_call_id, "name": message.function}
        shown |= {name: value for name, value in named.items() if isinstance(value, str)}
        if message.error and not text_of(message):
            shown["content"] = message.error.message
    return shown


def _content(message: InspectMessage, media: bool) -> str | list[dict[str, str]]:
    if isinstance(message.content, str):
        return message.content
    parts = [_part(part, media) for part in message.content if part.type != "reasoning"]
    return text_of(message) if all(part["type"] == "text" for part in parts) and _only_text(message) else parts


def _only_text(message: InspectMessage) -> bool:
    return isinstance(message.content, str) or all(part.type in ("text", "reasoning") for part in message.content)


def _part(part: InspectContent, media: bool) -> dict[str, str]:
    if part.type in MEDIA_KINDS:
        source = getattr(part, part.type) or f"<{part.type}>"
        return {"type": part.type, part.type: source if media or not source.startswith("data:") else f"<{part.type}>"}
    if part.type == "text":
        return {"type": "text", "text": part.text or ""}
    if part.type == "tool_use":  # a tool that the provider ran
        return {"type": "text", "text": f"{part.name}({part.arguments}): {part.result}"}
    return {"type": "text", "text": f"<{part.type}{f' {part.filename}' if part.filename else ''}>"}
