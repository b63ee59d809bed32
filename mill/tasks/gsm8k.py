"""GSM8K: grade-school word problems, answered in steps; in a dialog where the model reviews its answer; and with Python."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mill.api.judge import Judge
from mill.api.message import Message
from mill.api.registry import register_task
from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Value
from mill.tasks.agent import AgentTask, FunctionTool, python_tool
from mill.tasks.data import Dataset
from mill.tasks.prompted import Doc, GenerativeTask

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")


@register_task("gsm8k")
class GSM8K(GenerativeTask):
    """`exact_match` wants the number after `####`; `exact_match_flexible` takes the last number of the answer."""

    dataset = Dataset("openai/gsm8k", "main", mirrors=("gsm8k",))
    shot_splits = ("train",)
    n_shots = 5
    generation = {"until": ("Question:", "</s>", "<|im_end|>")}
    metrics = {"exact_match": "mean", "exact_match_flexible": "mean"}

    def question(self, doc: Doc) -> str:
        return f"Question: {doc['question']}\nAnswer:"

    def answer_text(self, doc: Doc) -> str:
        return str(doc["answer"])

    def target(self, sample: Sample) -> str:
        return normal_number(sample.doc["answer"].rpartition("#### ")[2])

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        text = responses[-1].text or ""
        return strict_number(text) or last_number(text)

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        text, right = responses[0].text or "", self.target(sample)
        return {
            "exact_match": float(strict_number(text) == right),
            "exact_match_flexible": float(last_number(text) == right),
        }


@register_task("gsm8k_judged")
class GSM8KJudged(GSM8K):
    """The same with a judge. The right number is known, so the judge's agreement with it is measured."""

    judge = Judge(rubric="The answer is CORRECT when its final number is that of the reference, whatever the way to it.")

    def gold_verdict(self, sample: Sample, responses: Sequence[Response]) -> float | None:
        return float(self.extracted(sample, responses) == self.target(sample))


@register_task("gsm8k_review")
class GSM8KReview(GSM8K):
    """Two rounds: the model answers, gets the request to check its steps, and answers again. Both answers are scored."""

    kind = MULTI_ROUND
    n_shots = 0
    takes_shots = False
    description = "Solve the problem step by step. End with a line that holds #### and the number alone.\n\n"
    review = "Check every step of your answer. Correct what is wrong, then end again with #### and the number alone."
    metrics = {"exact_match_first": "mean", "exact_match": "mean", "changed": "mean"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        prompt = self.description + self.question(sample.doc)
        system = (Message("system", settings.system_prompt),) if settings.system_prompt else ()
        return [self._round((*system, Message("user", prompt)), settings)]

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        if len(responses) > 1:
            return None
        (first,) = self.requests(sample, settings)
        assert not isinstance(first.context, str)
        dialog = (*first.context, Message("assistant", responses[0].text or ""), Message("user", self.review))
        return self._round(dialog, settings)

    def _round(self, dialog: tuple[Message, ...], settings: RenderSettings) -> Request:
        return Request(MULTI_ROUND, context=dialog, options=settings.options(**self.generation))

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        right = self.target(sample)
        first, last = (last_number(response.text or "") for response in responses)
        return {
            "exact_match_first": float(first == right),
            "exact_match": float(last == right),
            "changed": float(first != last),
        }


def normal_number(text: str) -> str:
    """Without thousands commas, dollar signs and a final stop, so that $1,234. equals 1234."""
    return text.replace(",", "").replace("$", "").strip().removesuffix(".")


def strict_number(text: str) -> str | None:
    match = _STRICT.search(text)
    return normal_number(match.group(1)) if match else None


def last_number(text: str) -> str | None:
    numbers = _FLEXIBLE.findall(text)
    return normal_number(numbers[-1]) if numbers else None


@register_task("gsm8k_python")
class GSM8KPython(AgentTask, GSM8K):
    """The last number of the last answer counts."""

    kind = AgentTask.kind
    n_shots = 0
    takes_shots = False
    runs_code = True
    isolates_code = True
    description = (
        "Solve the problem. Use the tool python for calculations: its program must print the result. "
        "End with a line that holds #### and the number alone.\n\n"
    )
    generation = {"max_gen_toks": 512, "until": ("Question:",)}
    metrics = {**AgentTask.metrics}

    def prompt(self, sample: Sample) -> str:
        return self.question(sample.doc).removesuffix("\nAnswer:")

    def tools(self, sample: Sample) -> Sequence[FunctionTool]:
        return (python_tool(),)

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        return last_number(responses[-1].text or "")

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        right = float(self.extracted(sample, responses) == self.target(sample))
        return {"exact_match": right, **self.call_counts(responses)}
