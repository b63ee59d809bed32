"""Perplexity of whole documents, per word and per byte."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from mill.api.request import ROLLING, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value


class PerplexityTask(Task):
    """A subclass gives its samples, the text that is scored and the text whose words and bytes are counted."""

    task_type = TaskType.PERPLEXITY
    metrics: Mapping[str, str] = {
        "word_perplexity": "perplexity",
        "byte_perplexity": "perplexity",
        "bits_per_byte": "bits_per_unit",
    }

    @abstractmethod
    def scored_text(self, sample: Sample) -> str: ...

    def counted_text(self, sample: Sample) -> str:
        return self.scored_text(sample)

    def count_words(self, text: str) -> int:
        return len(text.split())

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(ROLLING, context=self.scored_text(sample), repeats=settings.repeats)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        text = self.counted_text(sample)
        score = responses[0].score if responses[0].score is not None else float("nan")
        words, size = float(max(1, self.count_words(text))), float(max(1, len(text.encode())))
        return {"word_perplexity": (score, words), "byte_perplexity": (score, size), "bits_per_byte": (score, size)}
