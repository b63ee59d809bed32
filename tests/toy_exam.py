"""A large exam in three subjects, and a model of a known accuracy, for tests of samples and early decisions."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model, register_task, tasks
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import Benchmark, RenderSettings, Sample, Task, TaskType, Value

SIZES = {"toy_exam_law": 2000, "toy_exam_math": 700, "toy_exam_art": 300}
LIFTS = {"toy_exam_law": 0.0, "toy_exam_math": -0.25, "toy_exam_art": 0.2}
"""By how much the accuracy of a subject differs from the model's."""
TOPICS = ("first", "second", "third")
_LOG = threading.Lock()


def draw(*parts: object) -> float:
    """A number from 0 to 1 for these parts."""
    return int(hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:12], 16) / 16**12


def is_right(subject: str, index: int, accuracy: float, changed: float, name: str) -> bool:
    """Whether a model answers a question: a question is as difficult for all models, but for the `changed` ones."""
    difficulty = draw(name, subject, index) if draw("changed", name, subject, index) < changed else draw(subject, index)
    return difficulty < accuracy + LIFTS[subject]


@register_model("exam")
class ExamModel(MillModel):
    """Right on a share `accuracy` of the questions. Every computed request is a line in the file EXAM_LOG. Each
    EXAM_FAILS-th question fails."""

    def __init__(self, name: str = "exam", accuracy: float = 0.65, changed: float = 0.0, batch_size: int = 64):
        self.name, self.accuracy, self.changed, self.batch_size = name, accuracy, changed, batch_size
        self.capabilities = ModelCapabilities()

    @property
    def model_name(self) -> str:
        return self.name

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [self._one(request) for request in batch]

    def _one(self, request: Request) -> Response:
        subject, number = request.text.split()
        if log := os.environ.get("EXAM_LOG"):
            with _LOG, Path(log).open("a") as handle:
                handle.write(f"{self.name} {request.text}\n")
        if (fails := os.environ.get("EXAM_FAILS")) and int(number) % int(fails) == 0:
            return Response(error="cannot answer this one")
        right = is_right(subject, int(number), self.accuracy, self.changed, self.name)
        return Response(text="right" if right else "wrong", prompt_tokens=3, output_tokens=1)


class ExamTask(Task):
    task_type = TaskType.GENERATIVE_QA
    metrics = {"acc": "mean"}

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(i), {"question": f"{self.name} {i}", "topic": TOPICS[i % 3]}) for i in range(SIZES[self.name])]

    def category(self, sample: Sample) -> str:
        return str(sample.doc["topic"])

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(GENERATE, context=sample.doc["question"], options=settings.options(max_gen_toks=4))]

    def target(self, sample: Sample) -> str:
        return "right"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(responses[0].text == "right")}


for _name in SIZES:
    register_task(_name)(ExamTask)
if "toy_exam" not in tasks:
    tasks.add("toy_exam", Benchmark("toy_exam", tuple(SIZES)))
