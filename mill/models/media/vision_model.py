"""What image classifiers share: pictures read ahead, a bad one an error of its own request, the best labels told."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import Answered, BatchLimits, Unit, as_response
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
RANKED = 10  # labels kept of each answer: enough for recall@10
BATCHES_AHEAD = 2


class VisionModel(MillModel):
    """A subclass says how a picture becomes pixels and how a batch of requests with pixels is answered."""

    batch_size: int

    def _check_options(self, backend: str, dtype: str) -> None:
        if self.batch_size < 1:
            raise SpecError(f"{backend}[batch_size={self.batch_size}]: at least 1 is needed")
        if dtype not in DTYPES:
            raise UnknownName(f"dtype of {backend}", dtype, DTYPES, hint=f"it takes {', '.join(DTYPES)}")

    @abstractmethod
    def _pixels(self, picture: Any) -> torch.Tensor:
        """A decoded RGB picture as the model's own preprocessing makes it. Called in threads."""

    @abstractmethod
    def _answer_batch(self, kind: str, requests: Sequence[Request], pixels: Sequence[Any]) -> list[Response]:
        """Responses of requests whose pictures could be read; `pixels` holds None for a request without one."""

    def _free_memory(self) -> None:
        gc.collect()
        memory.empty_caches()

    def _load_request(self, request: Request) -> Any:
        pictures = [media for media in request.media if media.kind == IMAGE]
        if len(pictures) > 1:
            raise ValueError(f"{len(pictures)} pictures in one request, where one is needed")
        return self._load_picture(pictures[0]) if pictures else None

    def _load_picture(self, media: Media) -> Any:
        return self._pixels(load_image(media))

    def _stream(self, kind: str, requests: Sequence[Request]) -> Iterator[Answered]:
        self.load()  # before the prefetching threads, which all need it
        with Prefetch(self._load_request, requests, ahead=BATCHES_AHEAD * self.batch_size) as loaded:

            def hook(batch: list[Unit]) -> list[list[Response]]:
                done = len(batch) == 1  # a larger batch that fails is tried again in parts
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
        """An image that cannot be decoded is its own request's error; the others go through the model together."""
        images = loaded.take_each(batch)
        good = [(request, image) for request, image in zip(batch, images, strict=True) if not isinstance(image, Exception)]
        responses = self._answer_batch(kind, [request for request, _ in good], [image for _, image in good]) if good else []
        scored = iter(responses)
        return [failure(image) if isinstance(image, Exception) else as_response(next(scored), kind) for image in images]


def ranked(names: Sequence[str], scores: torch.Tensor) -> list[Response]:
    """The best labels of each row of scores; the first of equal ones wins, as argmax has it."""
    kept = min(RANKED, len(names))
    values, places = scores.float().sort(dim=1, descending=True, stable=True)
    rows = zip(values[:, :kept].tolist(), places[:, :kept].tolist(), strict=True)
    found = [tuple((names[place], value) for value, place in zip(*row, strict=True)) for row in rows]
    return [Response(label=ranking[0][0], ranking=ranking) for ranking in found]
