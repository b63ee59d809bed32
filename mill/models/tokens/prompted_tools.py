"""Tools for chat templates that take none: described in the system message, in the form of Hermes.

The calls that a model writes are those that `split_tool_calls` reads; results follow as messages of the user.
"""

from __future__ import annotations

from collections.abc import Sequence

from mill.api.message import Message
from mill.api.storage import json_text
from mill.api.tools import Tool

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
