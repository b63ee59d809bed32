"""Requests with images, video or audio: through the model's processor, never truncated, in batches of one shape, decoded
ahead of the model."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from mill.api.batching import Completed, Hook, Unit, as_response
from mill.api.errors import CannotServe, DataError, MillError, MissingPackage
from mill.api.message import AUDIO, IMAGE, MEDIA_KINDS, VIDEO, Media, Message
from mill.api.model import options_text
from mill.api.request import Request
from mill.api.response import Response
from mill.metrics.divergence import common_start
from mill.models.media.decode import Video, even_indices, load_audio, load_image, load_video
from mill.models.tokens.rows import move_spaces
from mill.models.tokens.tokenizer import TemplateFailed, Tokens
from mill.support.terminal import describe

DEFAULT_VIDEO_FRAMES = 8
MEDIA_AHEAD = 16  # rows whose media are decoded in advance
TOKENS_PER_MEDIA = 1024  # an estimate for batching; only the processor knows


@dataclass(frozen=True, eq=False)
class MediaRow:
    """A text with media, and the requests whose continuations (`spans`) are scored on it.

    `tail` is how many tokens at the end of the text belong to the continuation; with 0 the continuation follows the text.
    """

    request: Request
    text: str
    spans: list[list[int]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    tail: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows with equal numbers of images, videos and audio clips can share a batch."""
        return tuple(sum(media.kind == kind for media in self.request.media) for kind in MEDIA_KINDS)

    @property
    def digests(self) -> str:
        """Which media it has, in order."""
        return "/".join(media.digest for media in self.request.media)

    @property
    def cost(self) -> int:
        return len(self.text) // 3 + TOKENS_PER_MEDIA * len(self.request.media)


AnswerRows = Callable[[list[MediaRow], list[Any]], list[list[Response]]]


class MediaInputs:
    """A processor with the rules of rendering and batching."""

    def __init__(self, processor: Any, tokens: Tokens, *, video_frames: int) -> None:
        self.processor, self.tokens, self.video_frames = processor, tokens, video_frames

    def rendered(self, request: Request) -> str:
        """Through the chat template; without one, texts and the processor's placeholders concatenated."""
        context = request.context
        turns = (Message("user", context),) if isinstance(context, str) else context
        if self.tokens.has_template:
            return self.tokens.rendered(replace(request, context=turns))
        parts = [part for turn in turns for part in turn.parts]
        return "".join(part if isinstance(part, str) else self._placeholder(part) for part in parts)

    def misplaced(self, request: Request) -> str:
        """How the placeholders of a request do not fit its media; empty if they do."""
        text = self.rendered(request)
        for kind in MEDIA_KINDS:
            count = sum(media.kind == kind for media in request.media)
            token = getattr(self.processor, f"{kind}_token", None)
            found = (text + request.continuation).count(token) if token else 0
            if found and found != count:
                return f"the prompt has the placeholder {token} {found} times for {count} media of the kind {kind}"
            # A template may have other placeholders than the processor: then it shows what it shows.
            if count and not found and text == self.rendered(replace(request, context=_without(request, kind))):
                return f"the chat template leaves out the {kind} of the prompt"
        return ""

    def _placeholder(self, media: Media) -> str:
        token = getattr(self.processor, f"{media.kind}_token", None)
        if token is None:
            raise CannotServe(f"the processor of this model has no placeholder for {media.kind}")
        return str(token)

    def rows(self, requests: Sequence[Request], *, share: bool = True) -> list[MediaRow]:
        """Scored rows: with `share`, choices of one token share the row of their context; longer ones have a row each."""
        rows: dict[tuple[str, str, int], MediaRow] = {}
        for request in requests:
            context, continuation = move_spaces(self.rendered(request), request.continuation)
            before, whole = self.tokens.encode(context), self.tokens.encode(context + continuation)
            common = common_start(before, whole)
            span = whole[min(common, len(whole) - 1) :]  # one merged into the context's last token is scored with it
            single = share and len(span) == 1 and common == len(before)
            text = context if single else context + continuation
            tail = 0 if single else len(span)
            new = MediaRow(request, text, tail=tail)
            row = rows.setdefault((text, new.digests, tail), new)
            row.spans.append(span)
            row.requests.append(request)
        return list(rows.values())

    def load(self, row: MediaRow) -> list[Any]:
        """The decoded media of a row, in order. Called in threads."""
        return [self._decode(media) for media in row.request.media]

    def _decode(self, media: Media) -> Any:
        if media.kind == IMAGE:
            return load_image(media)
        if media.kind == VIDEO:
            return load_video(media, self.sampled_frames)
        extractor = self.processor.feature_extractor
        samples = load_audio(media, extractor.sampling_rate)
        most = getattr(extractor, "n_samples", None)
        if most and len(samples) > most:
            seconds, limit = len(samples) / extractor.sampling_rate, most / extractor.sampling_rate
            raise DataError(f"the audio {media.name} lasts {seconds:.1f} s, and the model takes {limit:.1f} s at most")
        return samples

    def sampled_frames(self, total: int, fps: float | None) -> Sequence[int]:
        """At most `video_frames` indices: those that the model's own video processor samples, else evenly spaced ones."""
        if total > self.video_frames:
            with contextlib.suppress(Exception):  # some need a rate, or have limits that do not fit
                metadata = _metadata(total, fps)
                indices = self.processor.video_processor.sample_frames(metadata=metadata, num_frames=self.video_frames)
                if 0 < len(indices) <= self.video_frames:
                    return [int(index) for index in indices]
        return even_indices(total, self.video_frames)

    def batch(self, rows: Sequence[MediaRow], decoded: Sequence[list[Any]], *, side: str, model: Any) -> Any:
        """The processor's tensors for rows of one shape, on the model's device; floats in the model's dtype."""
        by_kind: dict[str, list[list[Any]]] = {kind: [] for kind in MEDIA_KINDS}
        for row, loaded in zip(rows, decoded, strict=True):
            for kind in MEDIA_KINDS:
                paired = zip(row.request.media, loaded, strict=True)
                by_kind[kind].append([item for media, item in paired if media.kind == kind])
        arguments: dict[str, Any] = {}
        if any(by_kind[IMAGE]):
            arguments["images"] = by_kind[IMAGE]
        if any(by_kind[VIDEO]):
            videos: list[list[Video]] = by_kind[VIDEO]
            arguments["videos"] = [[video.frames for video in shown] for shown in videos]
            times = [video_metadata(video) for shown in videos for video in shown]
            arguments["video_metadata"] = times if len(times) > 1 else times[0]  # not every processor takes a list
            arguments["do_sample_frames"] = False
        if any(by_kind[AUDIO]):
            rate = self.processor.feature_extractor.sampling_rate
            arguments |= {"audio": [clip for clips in by_kind[AUDIO] for clip in clips], "sampling_rate": rate}
        tokenizer = self.processor.tokenizer
        tokenizer.padding_side = side
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        texts = [self._with_bos(row.text) for row in rows]
        inputs = self.processor(text=texts, padding=True, return_tensors="pt", add_special_tokens=False, **arguments)
        return inputs.to(model.device, next(model.parameters()).dtype)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids as the processor has them, with one placeholder for each of the media."""
        ids: list[list[int]] = self.processor.tokenizer(list(map(self._with_bos, texts)), add_special_tokens=False)[
            "input_ids"
        ]
        return ids

    def ids_after(self, token: int, texts: Sequence[str]) -> list[list[int]] | None:
        """Token ids of texts that follow this token; None for a token that could merge with them."""
        tokenizer = self.processor.tokenizer
        added = tokenizer.added_tokens_decoder.get(token)
        if added is None:
            return None
        encoded = tokenizer([f"{added.content}{text}" for text in texts], add_special_tokens=False)["input_ids"]
        return [ids[1:] for ids in encoded]

    def split(self, row: MediaRow) -> tuple[str, str] | None:
        """The text up to the end of its last placeholder, and what follows; None where one is not found."""
        ends = []
        for kind in {media.kind for media in row.request.media}:
            token = getattr(self.processor, f"{kind}_token", None)
            if not token or token not in row.text:
                return None
            ends.append(row.text.rindex(token) + len(token))
        return row.text[: max(ends)], row.text[max(ends) :]

    def _with_bos(self, text: str) -> str:
        """BOS once, as for text; many chat templates contain it."""
        bos = self.processor.tokenizer.bos_token
        return f"{bos}{text}" if self.tokens.adds_bos and bos and not text.startswith(bos) else text

    def too_long(self, length: int) -> str:
        limit = self.tokens.window
        return f"with its media the request needs {length} tokens, the context has {limit}; media are never truncated"


def video_metadata(video: Video) -> Any:
    """The times of frames, in transformers' form."""
    metadata = _metadata(video.total, video.fps)
    metadata.width, metadata.height = video.frames[0].size
    metadata.frames_indices = video.indices
    return metadata


def _metadata(total: int, fps: float | None) -> Any:
    from transformers.video_utils import VideoMetadata

    return VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps if fps else None)


def _without(request: Request, kind: str) -> tuple[Message, ...]:
    """The messages of a request without media of this kind."""
    turns = (Message("user", request.context),) if isinstance(request.context, str) else request.context
    return tuple(
        replace(turn, content=tuple(part for part in turn.parts if isinstance(part, str) or part.kind != kind))
        for turn in turns
    )


def media_unit(row: MediaRow, cost: int) -> Unit:
    return Unit(row.requests or [row.request], cost, row)


def split_media(
    requests: Sequence[Request], media: Callable[[], MediaInputs]
) -> tuple[list[Request], list[Request], list[Completed]]:
    """Requests of text alone, which need no processor, and those with media. Placeholders that do not fit the media of a
    request, and a template that cannot render it, are its error."""
    texts, shown, errors = [], [], list[Completed]()
    for request in requests:
        if not request.media:
            texts.append(request)
            continue
        try:
            error = media().misplaced(request)
        except TemplateFailed as failed:
            error = str(failed)
        if error:
            errors.append((request, Response(error=error)))
        else:
            shown.append(request)
    return texts, shown, errors


def media_groups(rows: Sequence[MediaRow]) -> Iterable[list[Unit]]:
    """Rows of one shape and with the same options, in the order in which batches are computed: the longest first."""
    groups: dict[Any, list[Unit]] = {}
    for row in sorted(rows, key=lambda row: (-row.cost, row.digests)):
        groups.setdefault((row.shape, options_text(row.request)), []).append(media_unit(row, row.cost))
    return groups.values()


def decoded_ahead(
    inputs: MediaInputs, units: Sequence[Unit], kind: str, answer: AnswerRows
) -> contextlib.AbstractContextManager[Hook]:
    """A hook for batches of these, whose media are decoded in advance. Unreadable media are an error of their request."""
    return loaded_ahead(inputs.load, units, kind, answer, ahead=MEDIA_AHEAD)


In = TypeVar("In")
Out = TypeVar("Out")


class Prefetch(Generic[In, Out]):
    """Runs `load` for every item in order, with at most `ahead` results in advance.

    A result stays until it is dropped, so that a batch that did not fit memory can be taken again. `take` raises what `load`
    raised. Decoding releases the GIL, so threads are as fast as processes and need no copies.
    """

    def __init__(self, load: Callable[[In], Out], items: Iterable[In], *, ahead: int) -> None:
        self._load, self._waiting, self._ahead = load, deque(items), ahead
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(min(16, cores), thread_name_prefix="prefetch")
        self._running: dict[int, Future[Out]] = {}
        self._fill()

    def take(self, item: In) -> Out:
        while id(item) not in self._running:  # taken out of order: start items until this one is started
            self._start_next()
        return self._running[id(item)].result()

    def drop(self, item: In) -> None:
        """Free the result of an item that is done."""
        self._running.pop(id(item), None)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._ahead:
            self._start_next()

    def _start_next(self) -> None:
        item = self._waiting.popleft()
        self._running[id(item)] = self._pool.submit(self._load, item)

    def __enter__(self) -> Prefetch[In, Out]:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def loaded_ahead(
    load: Callable[[In], Out],
    units: Sequence[Unit],
    kind: str,
    answer: Callable[[list[In], list[Out]], list[list[Response]]],
    *,
    ahead: int,
) -> Iterator[Hook]:
    """A hook for batches of these units, whose data are loaded in advance. `answer` gets the data of a batch, and what was
    loaded for each; what cannot be loaded is an error of its requests."""
    with Prefetch(load, [unit.data for unit in units], ahead=ahead) as loaded:

        def hook(batch: list[Unit]) -> list[list[Response]]:
            contents: dict[int, Out] = {}
            failures: dict[int, Response] = {}
            for index, unit in enumerate(batch):
                try:
                    contents[index] = loaded.take(unit.data)
                except MissingPackage:  # of all units
                    raise
                except Exception as error:
                    failures[index] = failure(error)
            done = len(batch) == 1  # a larger batch that fails is retried in parts
            try:
                answered = answer([batch[index].data for index in contents], [*contents.values()]) if contents else []
                done = True
            finally:
                if done:
                    for unit in batch:
                        loaded.drop(unit.data)
            answers = dict(zip(contents, answered, strict=True))
            return [
                [as_response(response, kind) for response in answers[index]]
                if index in answers
                else [failures[index]] * len(unit.requests)
                for index, unit in enumerate(batch)
            ]

        yield hook


def failure(error: Exception) -> Response:
    """The response to a request whose media cannot be read."""
    return Response(error=str(error) if isinstance(error, MillError) else describe(error))
