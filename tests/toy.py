"""A backend and tasks without a framework, for tests of everything around a model. Usable through --task_paths."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mill.api.message import Message
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model, register_task, tasks
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request
from mill.api.response import Response
from mill.api.task import Benchmark, RenderSettings, Sample, Task, TaskType, Value
from tests.waiting import hold

N = 40
TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"


@register_model("toy")
class ToyModel(MillModel):
    """Answers by hashing the prompt; fails where the prompt contains TOY_FAILS.

    Every computed request is a line in the file TOY_LOG and takes TOY_DELAY seconds.
    Request number TOY_HOLD of a process is not answered, or not before there is a larger number in the file TOY_HOLD.
    """

    computed = 0

    def __init__(self, path: str, batch_size: int = 4, scale: float = 1.0, api_key: str = ""):
        self.path, self.batch_size, self.scale = path, batch_size, scale
        self.capabilities = ModelCapabilities(supports_logprobs=True, supports_chat_template=True)

    @property
    def model_name(self) -> str:
        return self.path

    def _note(self, request: Request) -> int:
        time.sleep(float(os.environ.get("TOY_DELAY", 0)))
        if log := os.environ.get("TOY_LOG"):
            with Path(log).open("a") as handle:
                handle.write(request.key + "\n")
        ToyModel.computed += 1
        hold(ToyModel.computed, os.environ.get("TOY_HOLD", ""))
        fails = os.environ.get("TOY_FAILS")
        if fails and fails in request.text:
            raise ValueError(f"cannot read {fails}")
        return int(hashlib.sha256(request.key.encode()).hexdigest()[:6], 16)

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [Response(text=f"answer {self._note(request) % 5}", prompt_tokens=3, output_tokens=2) for request in batch]

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        return [(-self.scale * (self._note(request) % 997) / 100 - 1, False) for request in batch]

    def _loglikelihood_rolling_single(self, request: Request) -> float:
        return -float(self._note(request) % 997)


class ToyToolModel(ToyModel):
    """Calls tools: a subclass says which."""

    def __init__(self, path: str, batch_size: int = 4) -> None:
        super().__init__(path, batch_size)
        self.capabilities = ModelCapabilities(supports_chat_template=True, supports_tools=True)

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [self._one(request) for request in batch]

    def _one(self, request: Request) -> Response:
        raise NotImplementedError


class ToyTask(Task):
    task_type = TaskType.GENERATIVE_QA
    metrics = {"exact_match": "mean"}

    def samples(self) -> Sequence[Sample]:
        return [
            Sample(str(i), {"question": f"{self.name} {i}", "answer": i % 5}) for i in range(int(os.environ.get("TOY_N", N)))
        ]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        options = settings.options(max_gen_toks=8)
        return [Request(GENERATE, context=sample.doc["question"], options=options, repeats=settings.repeats)]

    def target(self, sample: Sample) -> str:
        return f"answer {sample.doc['answer']}"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(responses[0].text == self.target(sample))}


@register_task("toy_gen")
class ToyGeneration(ToyTask):
    pass


@register_task("toy_choice")
class ToyChoice(ToyTask):
    task_type = TaskType.MULTIPLE_CHOICE
    metrics = {"acc": "mean"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        question = sample.doc["question"]
        return [Request(LOGLIKELIHOOD, question, f" choice {i}", repeats=settings.repeats) for i in range(3)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        scores = [response.score or 0.0 for response in responses]
        return {"acc": float(scores.index(max(scores)) == sample.doc["answer"] % 3)}


@register_task("toy_text")
class ToyText(ToyTask):
    task_type = TaskType.PERPLEXITY
    metrics = {"word_perplexity": "perplexity"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(ROLLING, sample.doc["question"])]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"word_perplexity": (responses[0].score or 0.0, 100.0)}


@register_task("toy_dialog")
class ToyDialog(ToyTask):
    """Three rounds; each repeats the previous answers."""

    kind = MULTI_ROUND
    metrics = {"rounds": "mean", "remembered": "mean"}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [self._round((Message("user", sample.doc["question"]),), settings)]

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        if len(responses) == 3:
            return None
        turns = [Message("user", sample.doc["question"])]
        for output in (response.text or "" for response in responses):
            turns += [Message("assistant", output), Message("user", f"you said {output}; go on")]
        return self._round(tuple(turns), settings)

    def _round(self, dialog: tuple[Message, ...], settings: RenderSettings) -> Request:
        options = settings.options(max_gen_toks=8)
        return Request(MULTI_ROUND, context=dialog, options=options, repeats=settings.repeats)

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"rounds": float(len(responses)), "remembered": 1.0}


tasks.add("toy_all", Benchmark("toy_all", ("toy_gen", "toy_gen2")))
tasks.add("toy_gen2", ToyGeneration)
