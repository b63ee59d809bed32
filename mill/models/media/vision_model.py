"""The base of image classifiers: images are prefetched, an unreadable one is an error of its request, labels are ranked."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import BatchLimits, Completed, Unit, as_response
from mill.api.errors import SpecError, UnknownName
from mill.api.message import IMAGE, Media
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.response import Response
from mill.models import memory
from mill.models.media.decode import failure, load_image
from mill.models.media.prefetch import Prefetch

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")
RANKED = 10  # labels in each response: enough for recall@10
BATCHES_AHEAD = 2


class VisionModel(MillModel):
    """A subclass implements preprocessing and the classification of a batch."""

    batch_size: int

    def _check_options(self, backend: str, dtype: str) -> None:
        if self.batch_size < 1:
            raise SpecError(f"{backend}[batch_size={self.batch_size}]: at least 1 is needed")
        if dtype not in DTYPES:
            raise UnknownName(f"dtype of {backend}", dtype, DTYPES, hint=f"it takes {', '.join(DTYPES)}")

    @abstractmethod
    def _pixels(self, image: Any) -> torch.Tensor:
        """A decoded RGB image after the model's preprocessing. Called in threads."""

    @abstractmethod
    def _answer_batch(self, kind: str, requests: Sequence[Request], pixels: Sequence[Any]) -> list[Response]:
        """Responses to requests with readable images; `pixels` is None for a request without an image."""

    def _free_memory(self) -> None:
        gc.collect()
        memory.empty_caches()

    def _load_request(self, request: Request) -> Any:
        images = [media for media in request.media if media.kind == IMAGE]
        if len(images) > 1:
            raise ValueError(f"{len(images)} images in one request, where one is needed")
        return self._load_image(images[0]) if images else None

    def _load_image(self, media: Media) -> Any:
        return self._pixels(load_image(media))

    def _stream(self, kind: str, requests: Sequence[Request]) -> Iterator[Completed]:
        self.load()  # before the prefetching threads, which all need it
        with Prefetch(self._load_request, requests, ahead=BATCHES_AHEAD * self.batch_size) as loaded:

            def hook(batch: list[Unit]) -> list[list[Response]]:
                done = len(batch) == 1  # a larger batch that fails is retried in parts
                try:
                    responses = self._answer_loaded(kind, [unit.requests[0] for unit in batch], loaded)
                    done = True
                finally:
                    if done:
                        for unit in batch:
                            loaded.drop(unit.requests[0])
                return [[response] for response in responses]

            units = [Unit([request], 1) for request in requests]
            yield from self._stream_units(units, hook, BatchLimits(requests=self.batch_size))

    def _answer_loaded(self, kind: str, batch: list[Request], loaded: Prefetch[Request, Any]) -> list[Response]:
        """An unreadable image is an error of its request; the others go through the model together."""
        images = loaded.take_each(batch)
        readable = [
            (request, image) for request, image in zip(batch, images, strict=True) if not isinstance(image, Exception)
        ]
        scored: list[Response] = []
        if readable:
            scored = self._answer_batch(kind, [request for request, _ in readable], [image for _, image in readable])
        responses = iter(scored)
        return [failure(image) if isinstance(image, Exception) else as_response(next(responses), kind) for image in images]


def ranked(names: Sequence[str], scores: torch.Tensor) -> list[Response]:
    """The best labels of each row of scores; of equal ones the first wins, as with argmax."""
    count = min(RANKED, len(names))
    values, indices = scores.float().sort(dim=1, descending=True, stable=True)
    rows = zip(values[:, :count].tolist(), indices[:, :count].tolist(), strict=True)
    rankings = [tuple((names[index], value) for value, index in zip(*row, strict=True)) for row in rows]
    return [Response(label=ranking[0][0], ranking=ranking) for ranking in rankings]
