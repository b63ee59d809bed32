"""Tool calls in generated text, in the forms of the common chat templates.

Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one for each call.
Llama 3.1: the text is `{"name": ..., "parameters": {...}}`, several separated by semicolons, or follows `<|python_tag|>`.
Mistral: `[TOOL_CALLS]` and a list of calls, or for each call `[TOOL_CALLS]name[ARGS]{...}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from mill.api.message import Message
from mill.api.tools import Tool, ToolCall
from mill.support.files import json_text

WARNING = "the chat template takes no tools: they are described in the system message"
_INTRODUCTION = """You may call these functions, given by their JSON schemas:
{tools}
To call a function, write a JSON object with its name and its arguments between tags, and nothing after it:
<tool_call>{{"name": "NAME", "arguments": {{...}}}}</tool_call>"""


def describe_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """The same dialog without tools: a system message that describes them, calls and results as text."""
    about = _INTRODUCTION.format(tools="\n".join(json_text(tool.to_dict()["function"]) for tool in tools))
    system = messages[0].text if messages and messages[0].role == "system" else ""
    rest = messages[1:] if system else messages
    return (Message("system", f"{system}\n\n{about}".strip()), *_joined([_as_text(message) for message in rest]))


def _as_text(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>{message.text}</tool_response>")
    if not message.tool_calls:
        return message
    calls = (json_text({"name": call.name, "arguments": dict(call.arguments or {})}) for call in message.tool_calls)
    parts = [message.text, *(f"<tool_call>{call}</tool_call>" for call in calls)]
    return Message(message.role, "\n".join(filter(None, parts)))


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Results of several calls as one message: templates refuse two messages of the user in a row."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.role == joined[-1].role == "user" and not (message.media or joined[-1].media):
            joined[-1] = Message("user", f"{joined[-1].text}\n{message.text}")
        else:
            joined.append(message)
    return joined


MARKERS = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
"""Those that may be special tokens, which decoding would remove."""
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_NAMED = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_decoder = json.JSONDecoder()


def split_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its calls, and the calls. What is marked as a call and cannot be read is a malformed one."""
    if "<tool_call>" in text:
        calls = [_read(match.group(1)) for match in _HERMES.finditer(text)]
        return _HERMES.sub("", text).strip(), tuple(calls)
    if "[TOOL_CALLS]" in text:
        before, *parts = text.split("[TOOL_CALLS]")
        return before.strip(), tuple(call for part in parts for call in _mistral(part))
    before, marked, after = text.partition("<|python_tag|>")
    if marked:
        return before.strip(), tuple(_objects(after)) or (_malformed(after),)
    calls = list(_objects(text)) if text.lstrip().startswith("{") else []
    return ("", tuple(calls)) if calls and all(call.name for call in calls) else (text, ())


def _read(text: str) -> ToolCall:
    """A call from its JSON object."""
    try:
        return _call(json.loads(text)) or _malformed(text)
    except (ValueError, RecursionError):
        return _malformed(text)


def _call(data: Any) -> ToolCall | None:
    """A call from an object with a name and arguments, which Llama calls parameters."""
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return None
    return ToolCall.parse(data["name"], data.get("arguments", data.get("parameters", {})))


def _malformed(text: str) -> ToolCall:
    name = _NAME.search(text)
    return ToolCall(name.group(1) if name else "", None, text.strip())


def _objects(text: str) -> Iterator[ToolCall]:
    """Calls that stand one after another, separated by semicolons; nothing where one of them is no call."""
    calls, position = [], 0
    while position < len(text):
        while position < len(text) and (text[position].isspace() or text[position] == ";"):
            position += 1
        if position == len(text):
            break
        try:
            data, position = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        call = _call(data) if isinstance(data, dict) and ("parameters" in data or "arguments" in data) else None
        if call is None:
            return
        calls.append(call)
    yield from calls


def _mistral(text: str) -> Iterator[ToolCall]:
    """The calls after a marker: a list of objects, or a name with its arguments."""
    named = _NAMED.match(text)
    if named:
        try:
            arguments, _ = _decoder.raw_decode(text, named.end())
            yield ToolCall.parse(named.group(1), arguments)
        except (ValueError, RecursionError):
            yield ToolCall(named.group(1), None, text[named.end() :].strip())
        return
    start = len(text) - len(text.lstrip())
    try:
        data, _ = _decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        yield _malformed(text)
        return
    for entry in data if isinstance(data, list) else [data]:
        yield _call(entry) or _malformed(json.dumps(entry))
