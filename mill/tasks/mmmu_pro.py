"""MMMU-Pro: college-level questions with images and up to ten choices; for image-text models as a zero-shot ranking."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from mill.api.errors import DataError
from mill.api.message import IMAGE, Labels, Media
from mill.api.registry import tasks
from mill.api.request import GENERATE, ZERO_SHOT, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.tasks.data import Dataset, load_split
from mill.tasks.prompted import LETTERS

_IMAGE_TAG = re.compile(r"<image (\d)>")
_ENDING = 'Think step by step, and end with a line "Answer: X", where X is the letter of the right choice.'


class MMMUPro(Task):
    """The standard rendering with ten choices and a chain of thought; images are inserted where the text names them."""

    task_type = TaskType.MULTIPLE_CHOICE
    kind = GENERATE
    modalities = frozenset({"text", IMAGE})
    metrics: Mapping[str, str] = {"exact_match": "mean"}
    alternatives: tuple[str, ...] = ("mmmu_pro_clip",)
    dataset = Dataset("MMMU/MMMU_Pro", "standard (10 options)")
    splits = ("test",)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return load_split(self.dataset, self.splits)[1]

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(row.get("id", index)), row) for index, row in enumerate(self._rows)]

    def options(self, sample: Sample) -> list[str]:
        """The choices; on the hub they are the text of a list."""
        options = sample.doc["options"]
        options = ast.literal_eval(options) if isinstance(options, str) else options
        if not isinstance(options, list) or not 1 < len(options) <= len(LETTERS):
            raise DataError(f"{self.name}: the options of sample {sample.id} are not a list of choices")
        return [str(option) for option in options]

    def image(self, sample: Sample, number: str) -> Media:
        source = sample.doc.get(f"image_{number}")
        if source is None:
            raise DataError(f"{self.name}: sample {sample.id} names image {number}, which it does not have")
        return Media(IMAGE, source)

    def target(self, sample: Sample) -> str:
        return str(sample.doc["answer"])

    def with_images(self, sample: Sample, text: str) -> list[str | Media]:
        """A text split where it names images, with the images between."""
        pieces = _IMAGE_TAG.split(text)  # texts and numbers in turn
        parts = [self.image(sample, piece) if index % 2 else piece for index, piece in enumerate(pieces)]
        return [part for part in parts if part != ""]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, self.options(sample), strict=False)]
        text = "\n".join((str(sample.doc["question"]), *lines, _ENDING))
        context = settings.dialog(*self.with_images(sample, text))
        options = settings.options(max_gen_toks=1024)
        return [Request(GENERATE, context, options=options, repeats=settings.repeats)]

    def extracts(self, sample: Sample) -> bool:
        return True

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        letters = re.findall(r"[Aa]nswer(?: is)?\W{0,8}([A-J])\b(?! [a-z])", responses[0].text or "")
        return letters[-1] if letters else None

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(self.extracted(sample, responses) == self.target(sample))}


class MMMUProClip(MMMUPro):
    """The question's first image against the text of each choice with its question."""

    task_type = TaskType.ZERO_SHOT_CLASSIFICATION
    kind = ZERO_SHOT
    modalities = frozenset({IMAGE})
    metrics = {"acc": "mean"}
    alternatives = ()

    def warnings(self) -> list[str]:
        return ["only the first image of a question is used; choices that are images differ only by their letter"]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        question = _IMAGE_TAG.sub("", str(sample.doc["question"])).strip()
        options = self.options(sample)
        texts = tuple(f"{question} {_IMAGE_TAG.sub('', option).strip()}" for option in options)
        labels = Labels(tuple(LETTERS[: len(options)]), texts, ("{c}",))
        first = settings.dialog(self.image(sample, "1"))[-1:]
        return [Request(ZERO_SHOT, first, labels=labels, repeats=settings.repeats)]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        return responses[0].label

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(responses[0].label == self.target(sample))}


tasks.add("mmmu_pro", MMMUPro)
tasks.add("mmmu_pro_clip", MMMUProClip)
