"""The base of image classifiers: images are prefetched, and labels are ranked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import BatchLimits, Completed, Unit, run_batches
from mill.api.errors import SpecError, UnknownName
from mill.api.message import IMAGE, Media
from mill.api.model import MillModel, StreamContext
from mill.api.request import Request
from mill.api.response import Response
from mill.models.media.decode import load_image
from mill.models.media.inputs import loaded_ahead
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
    def _answer_batch(self, requests: Sequence[Request], pixels: Sequence[Any]) -> list[Response]:
        """Responses to requests with readable images, whose `pixels` are rows of the network's batch; None for a request
        without an image."""

    def _load_image(self, media: Media) -> Any:
        return self._pixels(load_image(media))

    def _load_request(self, request: Request) -> Any:
        images = [media for media in request.media if media.kind == IMAGE]
        if len(images) > 1:
            raise ValueError(f"{len(images)} images in one request, where one is needed")
        return self._load_image(images[0]) if images else None

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Completed]:
        self.load()  # before the prefetching threads, which all need it
        units = [Unit([request], 1, request) for request in requests]

        def answer(batch: list[Request], pixels: list[Any]) -> list[list[Response]]:
            with phase(FORWARD):
                return [[response] for response in self._answer_batch(batch, pixels)]

        with loaded_ahead(self._load_request, units, kind, answer, ahead=BATCHES_AHEAD * self.batch_size) as hook:
            limits = BatchLimits(requests=self.batch_size)
            yield from run_batches(units, hook, limits=limits, healthy=context.canary is not None)


def ranked(names: Sequence[str], scores: torch.Tensor) -> list[Response]:
    """The best labels of each row of scores; of equal ones the first wins, as with argmax."""
    count = min(RANKED, len(names))
    values, indices = scores.float().sort(dim=1, descending=True, stable=True)
    rows = zip(values[:, :count].tolist(), indices[:, :count].tolist(), strict=True)
    rankings = [tuple((names[index], value) for value, index in zip(*row, strict=True)) for row in rows]
    return [Response(label=ranking[0][0], ranking=ranking) for ranking in rankings]
