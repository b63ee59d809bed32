"""A backend and tasks with what is hard to export: hostile text, failures, infinite values, reasoning, dialogs, tool calls,
repeats. Usable through --task_paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mill.api.message import Message
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model, register_task
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.api.tools import ToolCall
from mill.tasks.agent import AgentTask, FunctionTool, text_parameters

HOSTILE = "a\ud800b\x00c\x1b[31m<script>alert(1)</script> | `x` \u202e \\ud800 \U0001f600"
ESCAPED = HOSTILE.replace("\ud800", "\\ud800")
"""What a format without lone surrogates has of it."""
CALL = ToolCall("add", {"a": "1", "b": "2"}, id="one")
BROKEN_CALL = ToolCall.parse("add", '{"a": ', "two")
QUESTIONS = ["plain", "hostile", "fails", "long"]


@register_model("odd")
class OddModel(MillModel):
    """Answers by the question: see ANSWERS."""

    def __init__(self, path: str, batch_size: int = 4, api_key: str = "") -> None:
        self.path, self.batch_size = path, batch_size
        self.capabilities = ModelCapabilities(supports_logprobs=True, supports_chat_template=True, supports_tools=True)

    @property
    def model_name(self) -> str:
        return self.path

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [self._answer(request) for request in batch]

    def _answer(self, request: Request) -> Response:
        question = request.text
        if request.tools and "<tool>" not in question:
            return Response(text="I compute.", tool_calls=(CALL, BROKEN_CALL), prompt_tokens=5, output_tokens=4)
        if "fails" in question:
            return Response(error="the server said \x1b[2J no")
        counts: dict[str, Any] = {"prompt_tokens": 7, "output_tokens": 3, "seconds": 0.25}
        if "hostile" in question:
            return Response(text=HOSTILE, finish_reason="stop", **counts)
        if "long" in question:
            return Response(text="cut off", reasoning="first I think", reasoning_tokens=2, finish_reason="length", **counts)
        return Response(text="plain answer", finish_reason="stop", **counts)

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        values = {" yes": (-1.5, True), " no": (-2.25, False), " maybe": (-math.inf, False)}
        return [values[request.continuation] for request in batch]

    def _loglikelihood_rolling_single(self, request: Request) -> float:
        return -10.0


class OddTask(Task):
    task_type = TaskType.GENERATIVE_QA
    metrics = {"exact_match": "mean", "speed": "mean"}

    def samples(self) -> Sequence[Sample]:
        return [Sample(name, {"question": name, "note": HOSTILE}) for name in QUESTIONS]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        options = settings.options(max_gen_toks=8)
        return [Request(GENERATE, context=sample.doc["question"], options=options, repeats=settings.repeats)]

    def target(self, sample: Sample) -> str:
        return "plain answer"

    def category(self, sample: Sample) -> str:
        return "short" if len(sample.id) == 5 else ""

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> Any:
        return responses[-1].text

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(responses[-1].text == self.target(sample)), "speed": math.inf}


@register_task("odd_text")
class OddText(OddTask):
    """One of four is right, one fails; the mean of `speed` is infinite."""


@register_task("odd:choice,x")
class OddChoice(OddTask):
    """Always ` yes`, which is right for the first two of four."""

    task_type = TaskType.MULTIPLE_CHOICE
    metrics = {"acc": "mean", "pass@1,strict": "mean"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(LOGLIKELIHOOD, sample.doc["question"], f" {choice}") for choice in ("yes", "no", "maybe")]

    def choice_texts(self, sample: Sample) -> list[str]:
        return ["yes", "no", "maybe"]

    def target(self, sample: Sample) -> str:
        return "yes" if QUESTIONS.index(sample.id) < 2 else "no"

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> Any:
        return "yes"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        right = float(self.target(sample) == "yes")
        return {"acc": right, "pass@1,strict": right}


@register_task("odd_document")
class OddDocument(OddTask):
    task_type = TaskType.PERPLEXITY
    metrics = {"word_perplexity": "perplexity"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(ROLLING, sample.doc["question"])]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"word_perplexity": (responses[0].score or 0.0, 5.0)}


@register_task("odd_dialog")
class OddDialog(OddTask):
    """Two rounds; the first has a system message and an example of an answer before the question."""

    kind = MULTI_ROUND
    metrics = {"exact_match": "mean"}

    def samples(self) -> Sequence[Sample]:
        return [Sample("plain", {"question": "plain"}), Sample("long", {"question": "long"})]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [self._round(sample, (), settings)]

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        return None if len(responses) == 2 else self._round(sample, responses, settings)

    def _round(self, sample: Sample, responses: Sequence[Response], settings: RenderSettings) -> Request:
        dialog = [
            Message("system", "Be brief."),
            Message("user", "an example"),
            Message("assistant", "its answer"),
            Message("user", sample.doc["question"]),
        ]
        for response in responses:
            dialog += [Message("assistant", response.text or ""), Message("user", "go on")]
        options = settings.options(max_gen_toks=8)
        return Request(MULTI_ROUND, context=tuple(dialog), options=options, repeats=settings.repeats)

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(responses[-1].text == self.target(sample))}


@register_task("odd_agent")
class OddAgent(AgentTask):
    """One call that works, one whose arguments are no JSON, then the answer."""

    def samples(self) -> Sequence[Sample]:
        return [Sample("plain", {"question": "plain"})]

    def prompt(self, sample: Sample) -> str:
        return str(sample.doc["question"])

    def tools(self, sample: Sample) -> Sequence[FunctionTool]:
        return [FunctionTool("add", "Adds.", text_parameters(a="first", b="second"), lambda a, b: f"{a}{b}")]

    def target(self, sample: Sample) -> str:
        return "plain answer"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(responses[-1].text == "plain answer"), **self.call_counts(responses)}
