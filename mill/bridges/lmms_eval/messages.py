"""Prompts of lmms-eval as mill's messages. Images and audio are rendered again when they are sent: all those of a large task
would not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mill.api.errors import DataError
from mill.api.message import AUDIO, IMAGE, MEDIA_KINDS, VIDEO, Media, Message

DEFAULT_MAX_GEN_TOKS = 1024  # of most of lmms-eval's models, for tasks that give no limit
# Options that change nothing: at these values, for any model but LLaVA (image_aspect_ratio), or for all of lmms-eval's.
_WITHOUT_EFFECT: Mapping[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}
_UNUSED = ("image_aspect_ratio", "stop_sequences")


def decoding_options(given: Mapping[str, Any] | None, delimiter: str, *, plain: bool) -> dict[str, Any]:
    """lmms-eval adds the delimiter of few-shot examples as a stop string where a task has none; its chat models do not stop
    at it, so it counts for `plain` text alone."""
    options = {
        name: value
        for name, value in (given or {}).items()
        if name not in _UNUSED and not (name in _WITHOUT_EFFECT and value == _WITHOUT_EFFECT[name])
    }
    if not plain and options.get("until") == [delimiter]:
        del options["until"]
    if not {"max_new_tokens", "max_gen_toks", "max_tokens"} & options.keys():
        options["max_gen_toks"] = DEFAULT_MAX_GEN_TOKS
    return options


Messages = tuple[Message, ...]
_IMAGE_FILES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tiff", ".webp"}  # as in lmms-eval
_AUDIO_FILES = {".wav", ".mp3", ".m4a", ".aac", ".flac", ".ogg", ".opus"}
_CLIP = ("video_start", "video_end", "start_time", "end_time")


class RenderedMedia(Media):
    """An image or audio of a document, decoded each time its `source` is used. Its content is known by its digest."""

    _read: Callable[[], Media]
    _where: str

    def __init__(self, first: Media, read: Callable[[], Media], where: str) -> None:
        for name, value in {"kind": first.kind, "rate": first.rate, "digest": first.digest}.items():
            self.__dict__[name] = value
        self.__dict__["_read"], self.__dict__["_where"] = read, where

    @property
    def source(self) -> Any:
        media = self._read()
        if media.digest != self.digest:
            raise DataError(f"{self._where} has another {self.kind} each time that it is rendered")
        return media.source

    @property
    def is_url(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return f"<{self.kind}>"

    def __reduce__(self) -> Any:
        """Workers on other machines get the content."""
        return Media, (self.kind, self.source, self.rate)


def deferred(messages: Messages, render: Callable[[], Messages], where: str) -> Messages:
    """The same messages, with decoded media that are rendered again when they are used."""
    number, found = 0, []
    for message in messages:
        parts: list[str | Media] = []
        for part in message.parts:
            if isinstance(part, Media):
                named = isinstance(part.source, (str, Path))
                parts.append(part if named else RenderedMedia(part, _nth_media(render, number), where))
                number += 1
            else:
                parts.append(part)
        found.append(Message(message.role, tuple(parts)) if message.media else message)
    return tuple(found)


def _nth_media(render: Callable[[], Messages], number: int) -> Callable[[], Media]:
    return lambda: [media for message in render() for media in message.media][number]


def from_lmms_eval(messages: Any) -> Messages:
    """Messages in lmms-eval's format: `{"role": ..., "content": [{"type": "image", "url": ...}, ...]}`."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError(f"doc_to_messages gives a {type(messages).__name__}, not a list of messages")
    return tuple(as_message(message, _part) for message in messages)


def user_turn(visuals: Any, text: str) -> Messages:
    """A prompt of a task without messages: what it shows, then its text."""
    shown = visuals if isinstance(visuals, (list, tuple)) else [visuals] if visuals is not None else []
    return (Message("user", (*(media_of(visual) for visual in shown if visual is not None), text)),)


def as_message(message: Mapping[str, Any], read_part: Callable[[Any], str | Media]) -> Message:
    """A message whose content is a text or a list of parts."""
    content = message["content"]
    return Message(str(message["role"]), content if isinstance(content, str) else tuple(map(read_part, content)))


def _part(part: Any) -> str | Media:
    if isinstance(part, str):
        return part
    kind = part.get("type")
    if kind == "text":
        return str(part["text"])
    if kind not in MEDIA_KINDS:
        raise DataError(f"a message has a part of the type {kind!r}, which mill does not have")
    _refuse_clip(part)
    return media_of(part.get("url", part.get(kind)), kind)


def media_of(visual: Any, kind: str | None = None) -> Media:
    """What a task shows. A kind is given in messages; without one it follows from the value, as in lmms-eval."""
    from PIL import Image

    if isinstance(visual, Image.Image):
        return Media(IMAGE, visual)
    if isinstance(visual, Mapping):
        return _described(visual, kind)
    if hasattr(visual, "get_all_samples"):  # a decoder of torchcodec, as `datasets` gives audio
        return Media(AUDIO, visual["array"], int(visual["sampling_rate"]))
    if isinstance(visual, (str, Path)):
        suffix = Path(visual).suffix.lower()
        kind = kind or (IMAGE if suffix in _IMAGE_FILES else AUDIO if suffix in _AUDIO_FILES else VIDEO)
        return Media(kind, str(visual))
    if isinstance(visual, bytes) and kind is not None:
        return Media(kind, visual)
    if isinstance(visual, (list, tuple)) and visual and all(isinstance(frame, Image.Image) for frame in visual):
        return Media(VIDEO, list(visual))
    raise DataError(f"a prompt shows a {type(visual).__name__}, which is no image, video or audio for mill")


def _described(visual: Mapping[str, Any], kind: str | None) -> Media:
    """A dictionary: audio with its samples, or a file with its type."""
    _refuse_clip(visual)
    if visual.get("array") is not None and visual.get("sampling_rate"):
        return Media(AUDIO, visual["array"], int(visual["sampling_rate"]))
    if visual.get("bytes") is not None and kind is not None:
        return Media(kind, visual["bytes"])
    inner = visual.get("url") or visual.get("path")
    if inner is None:
        raise DataError(f"a prompt shows a dictionary with {', '.join(map(str, visual))}, which mill cannot read")
    return media_of(inner, kind or visual.get("type"))


def _refuse_clip(described: Mapping[str, Any]) -> None:
    if any(described.get(name) is not None for name in _CLIP):
        raise DataError("a prompt shows a part of a video, between two times; mill sends whole videos")
