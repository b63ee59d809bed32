"""Flickr30k retrieval: the caption of an image among all captions, and the image of a caption among all images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from mill.api.message import IMAGE, Labels, Media, Message
from mill.api.registry import tasks
from mill.api.request import ZERO_SHOT, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.tasks.data import Dataset, load_split

RECALLS = (1, 5, 10)


class Retrieval(Task):
    """`recall@k` counts the samples with a right answer among the first k."""

    task_type = TaskType.ZERO_SHOT_CLASSIFICATION
    modalities = frozenset({IMAGE})
    metrics: Mapping[str, str] = {f"recall@{k}": "mean" for k in RECALLS}
    dataset = Dataset("nlphuji/flickr_1k_test_image_text_retrieval", mirrors=("nlphuji/flickr30k",))
    splits = ("test",)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return load_split(self.dataset, self.splits)[1]

    @cached_property
    def captions(self) -> list[tuple[str, int, str]]:
        """(name, row of its image, text) of every caption."""
        texts = ((row, row_captions(self.rows[row])) for row in range(len(self.rows)))
        return [(f"{row}.{index}", row, text) for row, captions in texts for index, text in enumerate(captions)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        names = [name for name, _ in responses[0].ranking or ()]
        return {f"recall@{k}": float(any(self.fits(sample, name) for name in names[:k])) for k in RECALLS}

    def fits(self, sample: Sample, name: str) -> bool:
        """Whether a candidate is one of the sample's right answers: both begin with the row of the image."""
        return name.partition(".")[0] == sample.id.partition(".")[0]


class ImageToText(Retrieval):
    @cached_property
    def labels(self) -> Labels:
        return Labels(tuple(name for name, _, _ in self.captions), tuple(text for _, _, text in self.captions), ("{c}",))

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(row), self.rows[row]) for row in range(len(self.rows))]

    def target(self, sample: Sample) -> list[str]:
        return row_captions(sample.doc)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        image = Message("user", (Media(IMAGE, sample.doc["image"]),))
        return [Request(ZERO_SHOT, (image,), labels=self.labels, repeats=settings.repeats)]


class TextToImage(Retrieval):
    @cached_property
    def labels(self) -> Labels:
        images = tuple(Media(IMAGE, row["image"]) for row in self.rows)
        return Labels(tuple(str(row) for row in range(len(self.rows))), media=images)

    def samples(self) -> Sequence[Sample]:
        return [Sample(name, {"caption": text, "picture": str(row)}) for name, row, text in self.captions]

    def target(self, sample: Sample) -> str:
        return str(sample.doc["picture"])

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(ZERO_SHOT, sample.doc["caption"], labels=self.labels, repeats=settings.repeats)]


def row_captions(row: Mapping[str, Any]) -> list[str]:
    captions = row["caption"]
    return [captions] if isinstance(captions, str) else [str(text) for text in captions]


tasks.add("flickr30k_i2t", ImageToText)
tasks.add("flickr30k_t2i", TextToImage)
