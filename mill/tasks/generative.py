"""Tasks with generated text: the answer is extracted and compared."""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, TaskType, Value
from mill.tasks.prompted import PromptedTask

LETTERS = string.ascii_uppercase


class GenerativeTask(PromptedTask):
    """A subclass adds `generation` (decoding options) and `score`."""

    task_type = TaskType.GENERATIVE_QA
    metrics: Mapping[str, str] = {"exact_match": "mean"}
    generation: Mapping[str, Any] = {}

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = self.context(sample, settings)
        return [Request(GENERATE, context=context, options=settings.options(**self.generation), repeats=settings.repeats)]


class LetterTask(GenerativeTask):
    """Multiple choice by the generated letter: the prompt asks it to end with `the answer is (X)`."""

    task_type = TaskType.MULTIPLE_CHOICE
    kind = GENERATE
    pattern = r"answer is \(?([A-J])(?![A-Za-z])"

    def extracts(self, sample: Sample) -> bool:
        return True

    @abstractmethod
    def right_letter(self, sample: Sample) -> str: ...

    def target(self, sample: Sample) -> str:
        return self.right_letter(sample)

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        match = re.search(self.pattern, responses[0].text or "")
        return match.group(1).upper() if match else None

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(self.extracted(sample, responses) == self.right_letter(sample))}
