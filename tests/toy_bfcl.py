"""A package like bfcl-eval with a small API, and a model that makes the calls that its user writes, for --task_paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mill.api.registry import register_model
from mill.api.request import Request
from mill.api.response import Response
from mill.api.tools import ToolCall
from mill.tasks.bfcl.simulation import CODE, MODULES
from tests.toy import ToyToolModel

TICKETS = """
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context import MORE

class TicketAPI:
    def _load_scenario(self, scenario, long_context=False):
        self.tickets = scenario.get("tickets", []) + (MORE if long_context else [])
        self._opened = 0

    def open_ticket(self, title, tags=None):
        self.tickets.append(title)
        self._opened += 1
        if tags is not None:
            tags.append("new")
        return {"id": len(self.tickets), "opened": self._opened}

    def close_ticket(self, number):
        del self.tickets[number - 1]

    def list_tickets(self):
        return {"tickets": self.tickets}
"""


def function(name: str, *required: str) -> dict[str, Any]:
    properties = {one: {"type": "integer" if one == "number" else "string", "description": one} for one in required}
    parameters = {"type": "dict", "properties": properties, "required": list(required)}
    return {
        "name": name,
        "description": f"{name}.",
        "parameters": parameters,
        "response": {"type": "dict", "properties": {}},
    }


FUNCTIONS = [function("open_ticket", "title"), function("close_ticket", "number"), function("list_tickets")]


def user(*steps: list[tuple[str, Any]]) -> list[dict[str, str]]:
    """A message with the calls that the model makes, response by response; arguments may be a text that is not JSON."""
    return [{"role": "user", "content": json.dumps(steps)}]


def opens(title: str) -> list[tuple[str, Any]]:
    return [("open_ticket", {"title": title})]


def dialog(number: int, category: str, *turns: Any, **more: Any) -> dict[str, Any]:
    config = {"TicketAPI": {"tickets": ["first"]}}
    known = {"id": f"{category}_{number}", "question": list(turns), "initial_config": config}
    return {**known, "involved_classes": ["TicketAPI"], **more}


def write_package(
    folder: Path, category: str, rows: list[dict[str, Any]], expected: list[list[list[str]]], code: str = TICKETS
) -> Path:
    """The files of a category, of the functions, and of all APIs; those without a code here are empty classes."""
    package = folder / "bfcl_eval"
    data, modules = package / "data", package / CODE
    for made in (data / "possible_answer", data / "multi_turn_func_doc", modules):
        made.mkdir(parents=True, exist_ok=True)
    answers = [{"id": row["id"], "ground_truth": calls} for row, calls in zip(rows, expected, strict=True)]
    (data / f"BFCL_v4_{category}.json").write_text("\n".join(map(json.dumps, rows)))
    (data / "possible_answer" / f"BFCL_v4_{category}.json").write_text("\n".join(map(json.dumps, answers)))
    for name, module in MODULES.items():
        (modules / f"{module}.py").write_text(f"class {name}:\n    pass\n")
        (data / "multi_turn_func_doc" / f"{module}.json").write_text("")
    (modules / "ticket_api.py").write_text(code)
    (modules / "long_context.py").write_text("MORE = ['more'] * 3\n")
    (data / "multi_turn_func_doc/ticket_api.json").write_text("\n".join(map(json.dumps, FUNCTIONS)))
    return folder


@register_model("toy-caller")
class ToyCaller(ToyToolModel):
    """Makes the calls of the last message with calls, one list after another, and answers after the last."""

    def _one(self, request: Request) -> Response:
        self._note(request)
        messages = [message for message in request.context if not isinstance(message, str)]
        users = [index for index, message in enumerate(messages) if message.role == "user"]
        scripts = [messages[index].text for index in users if messages[index].text.startswith("[")]
        steps = json.loads(scripts[-1])
        step = sum(message.role == "assistant" for message in messages[users[-1] :])
        if step >= len(steps):
            return Response(text="Done.", output_tokens=1)
        return Response(text="", tool_calls=tuple(ToolCall.parse(*call) for call in steps[step]), output_tokens=1)
