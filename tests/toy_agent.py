"""A model that calls tools, well and badly, and a task with tools of every behaviour. Usable through --task_paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mill.api.registry import register_model, register_task
from mill.api.request import Request
from mill.api.response import Response
from mill.api.task import Sample, Value
from mill.api.tools import ToolCall
from mill.tasks.agent import AgentTask, FunctionTool, text_parameters
from tests.toy import ToyToolModel

CALLS = (
    (ToolCall.parse("add", '{"a": "1", "b": "2"}'),),
    (ToolCall.parse("add", '{"a": "3", "b": "4"}'), ToolCall.parse("tick", "{}")),  # two at once
    (ToolCall.parse("add", '{"a": "1", '),),  # not JSON
    (ToolCall.parse("subtract", "{}"),),  # no such tool
    (ToolCall.parse("add", '{"a": "one", "b": "2"}'),),  # the tool fails
    (ToolCall.parse("add", '{"c": "1"}'),),  # wrong arguments
    (ToolCall.parse("hang", "{}"),),
    (ToolCall.parse("much", "{}"),),
)


@register_model("toy-agent")
class ToyAgent(ToyToolModel):
    """Calls a tool two or three times, each chosen by the prompt, and then answers."""

    def _one(self, request: Request) -> Response:
        drawn = self._note(request)
        before = sum(message.role == "tool" for message in request.context if not isinstance(message, str))
        if request.tools and before < 3:
            return Response(text="Let me see.", tool_calls=CALLS[drawn % len(CALLS)], output_tokens=4)
        return Response(text=f"answer {drawn % 5}", reasoning="three tools were enough", output_tokens=2)


@register_task("toy_agent")
class ToyAgentTask(AgentTask):
    description = "Use the tools.\n\n"
    max_tool_output = 100

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(i), {"question": f"{self.name} {i}"}) for i in range(int(os.environ.get("TOY_N", 40)))]

    def prompt(self, sample: Sample) -> str:
        return str(sample.doc["question"])

    def target(self, sample: Sample) -> str:
        return "answer 1"

    def tools(self, sample: Sample) -> Sequence[FunctionTool]:
        return (
            FunctionTool("add", "Adds.", text_parameters(a="a number", b="a number"), lambda a, b: str(int(a) + int(b))),
            FunctionTool("tick", "Counts.", text_parameters(), tick),
            FunctionTool("hang", "Ends at its own time limit.", text_parameters(), hang),
            FunctionTool("much", "Says much.", text_parameters(), lambda: "x" * 10_000),
        )

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        right = float(responses[-1].text == self.target(sample))
        return {"exact_match": right, **self.call_counts(responses)}


def hang() -> str:
    raise TimeoutError("it took too long")


def tick() -> str:
    """Another answer at each call, where TOY_TICK names a file: a resumed run must not call it again."""
    file = os.environ.get("TOY_TICK")
    if not file:
        return "tick"
    with Path(file).open("a") as handle:
        handle.write(".")
    return str(Path(file).stat().st_size)
