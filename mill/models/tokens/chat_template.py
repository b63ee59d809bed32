"""The chat template of a model: its messages with tools, its variables, and whether it uses what a run sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mill.api.errors import CannotServe, ModelError
from mill.api.message import Message
from mill.api.request import Request

THINKING = ("enable_thinking", "thinking")  # what templates call the switch for reasoning
EFFORT = "reasoning_effort"
TEMPLATE_OPTIONS = ("chat_template_kwargs", EFFORT)


class TemplateFailed(ModelError):
    """A chat template that raises an exception for the messages of a request, such as for a role that it does not know."""


def template_text(chat_template: Any) -> str:
    """A chat template as one text; some models have several, by name."""
    if isinstance(chat_template, Mapping):
        return "\n".join(map(str, chat_template.values()))
    return str(chat_template or "")


def uses(template: str, variable: str) -> bool:
    return re.search(rf"\b{re.escape(variable)}\b", template) is not None


def template_variables(request: Request, template: str) -> dict[str, Any]:
    """The variables that a request gives the template. A reasoning effort of none switches reasoning off, also in templates
    that know no other."""
    variables = dict(request.options.get("chat_template_kwargs", {}))
    effort = request.options.get(EFFORT)
    if effort is None:
        return variables
    if uses(template, EFFORT):
        return {EFFORT: effort, **variables}
    switch = next((name for name in THINKING if uses(template, name)), None)
    return {switch: False, **variables} if switch and effort == "none" else variables


def check_variables(request: Request, template: str, who: str) -> None:
    """Refuse variables that the template does not use, and an effort that has no effect on it."""
    refuse_plain_text(request)
    unused = [name for name in request.options.get("chat_template_kwargs", {}) if not uses(template, name)]
    if unused:
        raise CannotServe(f"the chat template of {who} does not use {_names(unused)} of chat_template_kwargs")
    effort = request.options.get(EFFORT)
    if effort is None or uses(template, EFFORT):
        return
    switch = next((name for name in THINKING if uses(template, name)), None)
    if switch is None:
        raise CannotServe(f"reasoning_effort={effort} has no effect on {who}: its chat template knows no such variable")
    if effort != "none":
        raise CannotServe(
            f"reasoning_effort={effort} has no effect on {who}: its chat template only switches reasoning on and off; "
            f"use none, or chat_template_kwargs {switch}=true"
        )


def takes_tools(template: str) -> bool:
    return uses(template, "tools")


def refuse_plain_text(request: Request) -> None:
    """Refuse options that concern the chat template where the request does not go through one."""
    names = wanted(request)
    if names and isinstance(request.context, str):
        need = "needs" if len(names) == 1 else "need"
        raise CannotServe(f"{' and '.join(names)} {need} a chat template: add --apply_chat_template")


def wanted(request: Request) -> list[str]:
    """The options of a request that concern the chat template."""
    return [name for name in TEMPLATE_OPTIONS if request.options.get(name)]


def tool_fields(message: Message) -> dict[str, Any]:
    """What a message about tools has beside role and content, as templates take it: arguments as objects."""
    fields: dict[str, Any] = {}
    if message.tool_calls:
        fields["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments or {})}}
            for call in message.tool_calls
        ]
    given = {"tool_call_id": message.tool_call_id, "name": message.name}
    return fields | {name: value for name, value in given.items() if value}


def _names(names: Iterable[str]) -> str:
    return " and ".join(names)
