"""The base of backends with a processor: requests with media run in batches of one shape, decoded in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from mill.api.batching import BatchLimits, Completed, Unit, as_response
from mill.api.model import options_text
from mill.api.request import Request
from mill.api.response import Response
from mill.models.hf import loading, multimodal
from mill.models.hf.multimodal import MediaRow
from mill.models.media.decode import failure
from mill.models.media.prefetch import Prefetch
from mill.models.tokens.token_model import TokenModel
from mill.support.clocks import LOADING, phase

DEFAULT_VIDEO_FRAMES = 8
TEXT_ONLY = ("text",)  # the default, which means: what the processor takes
UNTEMPLATED = (
    "the model has no chat template: its prompts are their texts, with the processor's placeholders for media between them"
)
MEDIA_AHEAD = 16  # rows whose media are decoded in advance

Stream = Callable[[Sequence[Request]], Iterator[Completed]]
AnswerRows = Callable[[list[MediaRow], list[Any]], list[list[Response]]]


class MediaModel(TokenModel):
    """A subclass has `source`, `tokens`, and the modalities from the spec."""

    source: loading.Source
    trust_remote_code: bool
    modalities: Sequence[str]
    video_frames: int

    def set_concurrency(self, concurrency: int | None) -> bool:
        self.batch_size = concurrency or self.arguments.get("batch_size")
        return True

    def prompt_warnings(self, requests: Iterable[Request]) -> list[str]:
        untemplated = self.multimodal and not self.has_chat_template()
        return [UNTEMPLATED] if untemplated and any(request.media for request in requests) else []

    def rendered_prompt(self, request: Request) -> str:
        return self.media.rendered(request) if request.media else super().rendered_prompt(request)

    def weight_bytes(self) -> int | None:
        return self.source.size

    @cached_property
    def processor(self) -> Any:
        with phase(LOADING):
            return loading.load_processor(self.source, trust_remote_code=self.trust_remote_code)

    @cached_property
    def media(self) -> multimodal.MediaInputs:
        return multimodal.MediaInputs(self.processor, self.tokens, video_frames=self.video_frames)

    @property
    def multimodal(self) -> bool:
        return self.capabilities.modalities != {"text"}

    def _modalities(self) -> set[str]:
        """The modalities from the spec; without them what the processor takes."""
        given = self.modalities is not TEXT_ONLY or self.source.gguf
        if not given and loading.has_towers(self.source, trust_remote_code=self.trust_remote_code):
            return multimodal.read_modalities(self.processor)
        return set(self.modalities)

    def _split_media(self, requests: Sequence[Request], texts: Stream, media: Stream) -> Iterator[Completed]:
        """Requests of text alone need no processor. Placeholders that do not fit its media are a request's error."""
        without = [request for request in requests if not request.media]
        if without:
            yield from texts(without)
        shown = []
        for request in requests:
            if request.media and (error := self.media.misplaced(request)):
                yield request, Response(error=error)
            elif request.media:
                shown.append(request)
        if shown:
            yield from media(shown)

    def _stream_media(self, kind: str, rows: list[MediaRow], answer: AnswerRows, limits: BatchLimits) -> Iterator[Completed]:
        """Rows in batches, their media decoded in advance, once for rows with the same ones that follow each other.
        Unreadable media are an error of their request."""
        for units in self._media_groups(rows):
            group = [unit.data for unit in units]
            with Prefetch(self.media.load, group, ahead=MEDIA_AHEAD, key=lambda row: row.digests) as loaded:
                hook = partial(_answer_loaded, kind, answer, loaded)
                yield from self._stream_units(units, hook, limits)

    def _media_groups(self, rows: list[MediaRow]) -> Iterable[list[Unit]]:
        """Rows of one shape and with the same options, in the order in which batches are computed: the longest first."""
        groups: dict[Any, list[Unit]] = {}
        for row in sorted(rows, key=lambda row: (-row.cost, row.digests)):
            groups.setdefault((row.shape, options_text(row.request)), []).append(multimodal.media_unit(row, row.cost))
        return groups.values()


def _answer_loaded(
    kind: str, answer: AnswerRows, loaded: Prefetch[MediaRow, Any], batch: list[Unit]
) -> list[list[Response]]:
    rows: list[MediaRow] = [unit.data for unit in batch]
    media = loaded.take_each(rows)
    readable = [(row, decoded) for row, decoded in zip(rows, media, strict=True) if not isinstance(decoded, Exception)]
    answers = iter(answer([row for row, _ in readable], [decoded for _, decoded in readable]) if readable else [])
    for row in rows:
        loaded.drop(row)
    return [
        [failure(decoded)] * len(unit.requests)
        if isinstance(decoded, Exception)
        else [as_response(response, kind) for response in next(answers)]
        for unit, decoded in zip(batch, media, strict=True)
    ]
