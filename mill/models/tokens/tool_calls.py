"""Tool calls in generated text, in the forms of the common chat templates.

Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one for each call.
Llama 3.1: the text is `{"name": ..., "parameters": {...}}`, several separated by semicolons, or follows `<|python_tag|>`.
Mistral: `[TOOL_CALLS]` and a list of calls, or for each call `[TOOL_CALLS]name[ARGS]{...}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mill.api.tools import ToolCall

MARKERS = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
"""Those that may be special tokens, which decoding would remove."""
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_NAMED = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_decoder = json.JSONDecoder()


def split_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its calls, and the calls. What is marked as a call and cannot be read is a malformed one."""
    if "<tool_call>" in text:
        calls = [_read(found.group(1)) for found in _HERMES.finditer(text)]
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
        found = json.loads(text)
    except (ValueError, RecursionError):
        return _malformed(text)
    return _call(found) or _malformed(text)


def _call(found: Any) -> ToolCall | None:
    """A call from an object with a name and arguments, which Llama calls parameters."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    return ToolCall.parse(found["name"], arguments)


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
            found, position = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        call = _call(found) if isinstance(found, dict) and ("parameters" in found or "arguments" in found) else None
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
        found, _ = _decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        yield _malformed(text)
        return
    for one in found if isinstance(found, list) else [found]:
        yield _call(one) or _malformed(json.dumps(one))
