"""A custom task: multiple choice by log-likelihood.

    mill eval MODEL capitals --task_paths custom_task.py

A task yields samples, makes requests from a sample, and turns the responses into one value for each metric.
"""

from __future__ import annotations

from collections.abc import Sequence

from mill.api.registry import register_task
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima", "Norway": "Oslo", "Egypt": "Cairo"}


@register_task("capitals")
class Capitals(Task):
    task_type = TaskType.MULTIPLE_CHOICE
    metrics = {"acc": "mean"}

    def samples(self) -> Sequence[Sample]:
        return [Sample(country, {"country": country, "capital": capital}) for country, capital in CAPITALS.items()]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = settings.frame(f"The capital of {sample.doc['country']} is")
        return [Request(LOGLIKELIHOOD, context=context, continuation=f" {capital}") for capital in CAPITALS.values()]

    def target(self, sample: Sample) -> str:
        return str(sample.doc["capital"])

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        scores = [response.score for response in responses]
        best = max(zip(CAPITALS.values(), scores, strict=True), key=lambda choice: choice[1] or 0.0)
        return {"acc": float(best[0] == self.target(sample))}
