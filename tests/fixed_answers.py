"""Runs whose values a test chooses: a model that answers as it is given, and tasks that score it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import mill
from mill.api.model import MillModel, ModelCapabilities
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value


class FixedModel(MillModel):
    """Answers sample i with `answers[i]`: a text, the log-probabilities of its choices, or that of its text. None fails."""

    def __init__(self, name: str, answers: Mapping[str, Any], tokens: int = 10) -> None:
        self.name, self.answers, self.tokens = name, answers, tokens
        self.capabilities = ModelCapabilities(supports_logprobs=True)

    @property
    def model_name(self) -> str:
        return self.name

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        found = [self.answers[request.text] for request in batch]
        texts = [Response(text=str(one), prompt_tokens=self.tokens, output_tokens=2) for one in found]
        return [Response(error="out of memory") if one is None else text for one, text in zip(found, texts, strict=True)]

    def _loglikelihood_batch(self, batch: list[Request]) -> list[Response]:
        scores = [self.answers[request.text][int(request.continuation)] for request in batch]
        return [Response(score=score, is_greedy=False, prompt_tokens=self.tokens, output_tokens=1) for score in scores]

    def _loglikelihood_rolling_single(self, request: Request) -> float:
        return float(self.answers[request.text])


class FixedTask(Task):
    """A right answer is `right`; a number is its own value."""

    task_type = TaskType.GENERATIVE_QA
    metrics: Mapping[str, str] = {"exact_match": "mean"}

    def __init__(self, name: str, n: int) -> None:
        super().__init__(name)
        self.n = n

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(index), {"question": f"{self.name} {index}"}) for index in range(self.n)]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(GENERATE, context=sample.doc["question"], options=settings.options(max_gen_toks=8))]

    def target(self, sample: Sample) -> str:
        return "right"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        text = responses[0].text or ""
        return {"exact_match": float(text) if text[:1].isdecimal() else float(text == "right")}


class FixedChoices(FixedTask):
    """The first choice is right."""

    task_type = TaskType.MULTIPLE_CHOICE
    metrics = {"acc": "mean"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(LOGLIKELIHOOD, sample.doc["question"], str(index)) for index in range(2)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        scores = [response.score or 0.0 for response in responses]
        return {"acc": float(scores[0] > scores[1])}


class FixedText(FixedTask):
    """Texts of ten words."""

    task_type = TaskType.PERPLEXITY
    metrics = {"word_perplexity": "perplexity"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(ROLLING, sample.doc["question"])]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"word_perplexity": (responses[0].score or 0.0, 10.0)}


def run_answers(folder: Path, model: str, task: FixedTask, answers: Sequence[Any], **options: Any) -> Path:
    """Evaluate a model with these answers; returns the run's folder."""
    known = {f"{task.name} {index}": answer for index, answer in enumerate(answers)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mill.evaluate(FixedModel(model, known), task, output_dir=str(folder), **options)
    return found.outcome.folder.path


def run_right(folder: Path, model: str, right: Collection[int], n: int = 40, task: str = "quiz", **options: Any) -> Path:
    """A model that answers these of n questions correctly."""
    answers = ["right" if index in right else "wrong" for index in range(n)]
    return run_answers(folder, model, FixedTask(task, n), answers, **options)
