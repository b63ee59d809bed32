"""The base of image classifiers: each distinct image is prefetched and computed once, and labels are ranked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import BatchLimits, Completed, Unit, as_response, run_batches
from mill.api.errors import SpecError, UnknownName
from mill.api.message import IMAGE, Media
from mill.api.model import MillModel, StreamContext
from mill.api.request import Request
from mill.api.response import Response
from mill.models.media.decode import failure, load_image
from mill.models.media.prefetch import Prefetch
from mill.support.clocks import FORWARD, phase

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
    def _answer_batch(self, groups: Sequence[Sequence[Request]], pixels: Sequence[Any]) -> list[list[Response]]:
        """Responses to requests with readable images: those of a group share one, whose `pixels` are a row of the network's
        batch. They are None for a request without an image, which is a group of its own."""

    def _load_unit(self, unit: Unit) -> Any:
        images = _images(unit.requests[0])
        if len(images) > 1:
            raise ValueError(f"{len(images)} images in one request, where one is needed")
        return self._load_image(images[0]) if images else None

    def _load_image(self, media: Media) -> Any:
        return self._pixels(load_image(media))

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Completed]:
        """A request that fails beside others of its image is answered again by itself: the cause may be its labels, or the
        labels of another, and the error of an unreadable image has the name of each request's own file."""
        self.load()  # before the prefetching threads, which all need it
        groups = _by_image(requests)
        shared = {request.key for group in groups if len(group) > 1 for request in group}
        failed: list[Request] = []
        for request, response in self._stream_groups(kind, groups, context):
            if response.failed and request.key in shared:
                failed.append(request)
            else:
                yield request, response
        yield from self._stream_groups(kind, [[request] for request in failed], context)

    def _stream_groups(self, kind: str, groups: Sequence[list[Request]], context: StreamContext) -> Iterator[Completed]:
        units = [Unit(group, 1) for group in groups]
        with Prefetch(self._load_unit, units, ahead=BATCHES_AHEAD * self.batch_size) as loaded:

            def hook(batch: list[Unit]) -> list[list[Response]]:
                done = len(batch) == 1  # a larger batch that fails is retried in parts
                try:
                    responses = self._answer_loaded(kind, batch, loaded)
                    done = True
                finally:
                    if done:
                        for unit in batch:
                            loaded.drop(unit)
                return responses

            limits = BatchLimits(requests=self.batch_size)
            yield from run_batches(units, hook, limits=limits, healthy=context.canary is not None)

    def _answer_loaded(self, kind: str, batch: list[Unit], loaded: Prefetch[Unit, Any]) -> list[list[Response]]:
        """An unreadable image is an error of its requests; the others go through the model together."""
        images = loaded.take_each(batch)
        readable = [(unit, image) for unit, image in zip(batch, images, strict=True) if not isinstance(image, Exception)]
        scored: list[list[Response]] = []
        if readable:
            with phase(FORWARD):
                scored = self._answer_batch([unit.requests for unit, _ in readable], [image for _, image in readable])
        responses = iter(scored)
        return [
            [failure(image)] * len(unit.requests)
            if isinstance(image, Exception)
            else [as_response(response, kind) for response in next(responses)]
            for unit, image in zip(batch, images, strict=True)
        ]


def _images(request: Request) -> list[Media]:
    return [media for media in request.media if media.kind == IMAGE]


def _by_image(requests: Sequence[Request]) -> list[list[Request]]:
    """Requests with equal images together; one without an image, or with several, by itself."""
    groups: dict[str, list[Request]] = {}
    for request in requests:
        images = _images(request)
        groups.setdefault(images[0].digest if len(images) == 1 else f"request {request.key}", []).append(request)
    return list(groups.values())


def ranked(names: Sequence[str], scores: torch.Tensor) -> list[Response]:
    """The best labels of each row of scores; of equal ones the first wins, as with argmax."""
    count = min(RANKED, len(names))
    values, indices = scores.float().sort(dim=1, descending=True, stable=True)
    rows = zip(values[:, :count].tolist(), indices[:, :count].tolist(), strict=True)
    rankings = [tuple((names[index], value) for value, index in zip(*row, strict=True)) for row in rows]
    return [Response(label=ranking[0][0], ranking=ranking) for ranking in rankings]
