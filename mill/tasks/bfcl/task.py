"""A category of BFCL: the functions go to the model as tools, and its calls are compared with the expected ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mill.api.message import Message
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.api.tools import ToolCall
from mill.tasks.bfcl.checker import wrong_calls
from mill.tasks.bfcl.function_docs import JAVA, JAVASCRIPT, PYTHON, tools_of
from mill.tasks.bfcl.questions import read_questions

_NAMES = """
    simple_python simple_java simple_javascript multiple parallel parallel_multiple irrelevance
    live_simple live_multiple live_parallel live_parallel_multiple live_irrelevance live_relevance
"""
CATEGORIES = _NAMES.split()
_LANGUAGES = {"simple_java": JAVA, "simple_javascript": JAVASCRIPT}
NO_CALL, ANY_CALL = "no call", "any call"
# Categories without expected calls: what is right there.
_DETECTION = {"irrelevance": NO_CALL, "live_irrelevance": NO_CALL, "live_relevance": ANY_CALL}


class FunctionCallTask(Task):
    """`acc` is 1 where the calls are the expected ones, in any order."""

    task_type = TaskType.GENERATIVE_QA
    metrics = {"acc": "mean"}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.category_name = name.removeprefix("bfcl_")
        self.language = _LANGUAGES.get(self.category_name, PYTHON)
        self.detection = _DETECTION.get(self.category_name)

    def samples(self) -> Sequence[Sample]:
        rows = read_questions(self.category_name, with_answers=self.detection is None)
        return [Sample(row["id"], row) for row in rows]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [
            Request(
                GENERATE,
                context=with_system_prompt(turn_messages(sample, 0), settings.system_prompt),
                options=settings.options(max_gen_toks=4096),
                tools=tools_of(sample.doc["function"], self.language),
                repeats=settings.repeats,
            )
        ]

    def target(self, sample: Sample) -> Any:
        return self.detection or sample.doc["ground_truth"]

    def extracts(self, sample: Sample) -> bool:
        return True

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str:
        """All calls in one spelling: their order and that of their arguments do not matter."""
        return f"[{', '.join(sorted(map(spelled, responses[0].tool_calls)))}]"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(not self.wrong(sample, responses[0]))}

    def details(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Any]:
        reason = self.wrong(sample, responses[0])
        return {"reason": reason} if reason else {}

    def wrong(self, sample: Sample, response: Response) -> str:
        """Why a response is wrong; empty where it is right."""
        calls = response.tool_calls
        if self.detection is None:
            return wrong_calls(calls, sample.doc["ground_truth"], sample.doc["function"], self.language)
        # As on the leaderboard, a response with a call that cannot be parsed makes none.
        called = bool(calls) and all(call.arguments is not None for call in calls)
        if called == (self.detection == ANY_CALL):
            return ""
        return f"{len(calls)} calls, where none is expected" if called else "no call that can be read"


def turn_messages(sample: Sample, turn: int) -> tuple[Message, ...]:
    return tuple(Message(message["role"], message["content"]) for message in sample.doc["question"][turn])


def with_system_prompt(messages: tuple[Message, ...], system_prompt: str | None) -> tuple[Message, ...]:
    """The question's messages; the run's system prompt is in front of its own."""
    if not system_prompt:
        return messages
    if messages and messages[0].role == "system":
        system_prompt, messages = f"{system_prompt}\n\n{messages[0].text}", messages[1:]
    return (Message("system", system_prompt), *messages)


def spelled(call: ToolCall) -> str:
    """A call as text; the order of its arguments does not matter."""
    if call.arguments is None:
        return f"{call.name}({call.text})"
    arguments = (
        f"{name}={json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)}"
        for name, value in sorted(call.arguments.items())
    )
    return f"{call.name}({', '.join(arguments)})"
