"""What backends with a processor share: requests with media are batched by shape, their media decoded ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from mill.api.batching import Answered, BatchLimits, Unit, as_response
from mill.api.model import options_text
from mill.api.request import Request
from mill.api.response import Response
from mill.models.hf import loading, multimodal
from mill.models.hf.multimodal import MediaRow
from mill.models.media.decode import failure
from mill.models.media.prefetch import Prefetch
from mill.models.tokens.token_model import TokenModel

DEFAULT_VIDEO_FRAMES = 8
TEXT_ONLY = ("text",)  # the default: what the processor takes
MEDIA_AHEAD = 16  # rows whose media are decoded before their turn

Stream = Callable[[Sequence[Request]], Iterator[Answered]]
AnswerRows = Callable[[list[MediaRow], list[Any]], list[list[Response]]]


class MediaModel(TokenModel):
    """A subclass has `source`, `tokens`, and the modalities that the user gave."""

    source: loading.Source
    trust_remote_code: bool
    modalities: Sequence[str]
    video_frames: int

    def set_concurrency(self, concurrency: int | None) -> bool:
        self.batch_size = concurrency or self.arguments.get("batch_size")
        return True

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

    def _split_media(self, requests: Sequence[Request], texts: Stream, media: Stream) -> Iterator[Answered]:
        """Requests of text alone need no processor."""
        for stream, has_media in ((texts, False), (media, True)):
            part = [request for request in requests if bool(request.media) is has_media]
            if part:
                yield from stream(part)

    def _stream_media(self, kind: str, rows: list[MediaRow], answer: AnswerRows, limits: BatchLimits) -> Iterator[Answered]:
        """Rows in batches of one shape, their media decoded ahead; a file that cannot be decoded fails its own request."""
        groups: dict[Any, list[MediaRow]] = {}
        for row in sorted(rows, key=lambda row: -row.cost):  # the order in which batches are taken
            groups.setdefault((row.shape, options_text(row.request)), []).append(row)
        for group in groups.values():
            with Prefetch(self.media.load, group, ahead=MEDIA_AHEAD) as loaded:
                hook = partial(_answer_loaded, kind, answer, loaded)
                yield from self._stream_units(multimodal.row_units(group), hook, limits)


def _answer_loaded(
    kind: str, answer: AnswerRows, loaded: Prefetch[MediaRow, Any], batch: list[Unit]
) -> list[list[Response]]:
    rows: list[MediaRow] = [unit.data for unit in batch]
    found = loaded.take_each(rows)
    good = [(row, one) for row, one in zip(rows, found, strict=True) if not isinstance(one, Exception)]
    answers = answer([row for row, _ in good], [one for _, one in good]) if good else []
    known = {row: [as_response(one, kind) for one in responses] for (row, _), responses in zip(good, answers, strict=True)}
    for row in rows:
        loaded.drop(row)
    return [
        [failure(one)] * len(unit.requests) if isinstance(one, Exception) else known[row]
        for unit, row, one in zip(batch, rows, found, strict=True)
    ]
