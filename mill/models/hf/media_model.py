"""What backends with a processor share: requests with media go their own way, in batches of one shape, decoded ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from mill.api.batching import BatchLimits, Observer, Unit, as_response
from mill.api.model import watched
from mill.api.request import Request
from mill.api.response import Response
from mill.models.hf import loading, multimodal
from mill.models.hf.multimodal import MediaRow
from mill.models.media.decode import failure
from mill.models.media.prefetch import Prefetch
from mill.models.tokens.token_model import TokenModel

DEFAULT_VIDEO_FRAMES = 8
TEXT_ONLY = ("text",)  # the default, which means: as the processor says
MEDIA_AHEAD = 16  # rows whose media are decoded before their turn

Answers = Callable[[Sequence[Request], Observer], list[Response]]
AnswerRows = Callable[[list[MediaRow], list[Any]], list[list[Response]]]


class MediaModel(TokenModel):
    """A subclass has `source`, `tokens`, and what a person gave as modalities."""

    source: loading.Source
    trust_remote_code: bool
    modalities: Sequence[str]
    video_frames: int

    def set_concurrency(self, width: int | None) -> bool:
        self.batch_size = width or self.arguments.get("batch_size")
        return True

    def rendered_prompt(self, request: Request) -> str:
        return self.media.render(request.context) if request.media else super().rendered_prompt(request)

    def weight_bytes(self) -> int | None:
        return self.source.size

    @cached_property
    def processor(self) -> Any:
        return loading.load_processor(self.source, trust_remote_code=self.trust_remote_code)

    @cached_property
    def media(self) -> multimodal.MediaInputs:
        return multimodal.MediaInputs(self.processor, self.tokens, video_frames=self.video_frames)

    @property
    def multimodal(self) -> bool:
        return self.capabilities.modalities != {"text"}

    def _modalities(self, config: Callable[[], Any]) -> set[str]:
        """What a config file names; where it names none, what the processor takes."""
        if self.modalities is TEXT_ONLY and not self.source.gguf and loading.has_towers(config()):
            return multimodal.read_modalities(self.processor)
        return set(self.modalities)

    def _answer_apart(
        self, kind: str, requests: Sequence[Request], observer: Observer | None, texts: Answers, media: Answers
    ) -> list[Response]:
        """Requests of text alone need no processor."""
        found: dict[int, Response] = {}
        with watched(kind, requests, observer) as watching:
            for answer, wanted in ((texts, False), (media, True)):
                part = [request for request in requests if bool(request.media) is wanted]
                if part:
                    found |= zip(map(id, part), answer(part, watching), strict=True)
        return [found[id(request)] for request in requests]

    def _answer_media(
        self,
        kind: str,
        requests: Sequence[Request],
        rows: list[MediaRow],
        answer: AnswerRows,
        limits: BatchLimits,
        observer: Observer,
    ) -> list[Response]:
        """Rows in batches of one shape, their media decoded ahead; what cannot be read is an error of its own."""
        groups: dict[Any, list[MediaRow]] = {}
        for row in sorted(rows, key=lambda row: -row.cost):  # the order in which batches are taken
            groups.setdefault((row.shape, options_key(row.request)), []).append(row)
        found: dict[int, Response] = {}
        for group in groups.values():
            with Prefetch(self.media.load, group, ahead=MEDIA_AHEAD) as loaded:
                hook = partial(_answer_loaded, kind, answer, loaded)
                found |= self._run_units(multimodal.row_units(group), hook, limits, observer)
        return [found[id(request)] for request in requests]


def options_key(request: Request) -> str:
    return repr(sorted(request.options.items()))


def _answer_loaded(
    kind: str, answer: AnswerRows, loaded: Prefetch[MediaRow, Any], batch: list[Unit]
) -> list[list[Response]]:
    rows: list[MediaRow] = [unit.data for unit in batch]
    found = loaded.take_each(rows)
    good = [(row, one) for row, one in zip(rows, found, strict=True) if not isinstance(one, Exception)]
    answers = answer([row for row, _ in good], [one for _, one in good]) if good else []
    known = {
        id(row): [as_response(one, kind) for one in responses] for (row, _), responses in zip(good, answers, strict=True)
    }
    for row in rows:
        loaded.drop(row)
    return [
        [failure(one)] * len(unit.requests) if isinstance(one, Exception) else known[id(row)]
        for unit, row, one in zip(batch, rows, found, strict=True)
    ]
