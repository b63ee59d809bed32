"""Messages of a dialog: text, images, videos and audio."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import DataError
from mill.api.tools import ToolCall

IMAGE, VIDEO, AUDIO = "image", "video", "audio"
MEDIA_KINDS = (IMAGE, VIDEO, AUDIO)


@dataclass(frozen=True, eq=False)
class Blob:
    """Encoded bytes that are read on demand, such as those of one row of a large file."""

    name: str
    read: Callable[[], bytes]

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Media:
    """An image, a video or audio.

    `source` is a path, an http(s) or data URL, encoded bytes or a Blob of them, or something decoded: a PIL image, a
    sequence of PIL images (a video's frames, `rate` a second), an array of samples between -1 and 1 (audio, with its
    sampling `rate`).
    Media are equal when their content is: that of a path is the bytes of its file, that of a web address the address.
    """

    kind: str
    source: Any
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in MEDIA_KINDS:
            raise ValueError(f"media are {', '.join(MEDIA_KINDS)}, not {self.kind!r}")

    @property
    def is_url(self) -> bool:
        return isinstance(self.source, str) and self.source.startswith(("http://", "https://"))

    @property
    def name(self) -> str:
        """Its name in messages: a path or an address, else its kind."""
        inline = isinstance(self.source, str) and self.source.startswith("data:")
        return str(self.source) if isinstance(self.source, (str, Path, Blob)) and not inline else f"<{self.kind}>"

    def encoded(self) -> bytes | None:
        """The bytes of a file, a data URL or bytes; None for what is decoded already and for web addresses."""
        if isinstance(self.source, bytes):
            return self.source
        if isinstance(self.source, Blob):
            return self.source.read()
        if not isinstance(self.source, (str, Path)) or self.is_url:
            return None
        if str(self.source).startswith("data:"):
            return _data_url(str(self.source))
        try:
            return Path(self.source).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {self.source}: {error.strerror}") from error
        except ValueError as error:  # a NUL in the path
            raise DataError(f"cannot read {self.source!r}: {error}") from error

    def unchanged(self) -> bytes | None:
        """As `encoded`, but refused where a file has another content than when its digest was taken, by which answers are
        recorded."""
        raw = self.encoded()
        if raw is not None and isinstance(self.source, (str, Path, Blob)) and self._digest_of([raw, b""]) != self.digest:
            raise DataError(f"{self.name} was changed during the run")
        return raw

    @cached_property
    def digest(self) -> str:
        """The same for equal content. A file that cannot be read is hashed by its name: reading it reports the error."""
        try:
            parts = [self.encoded() or b"", *_decoded_bytes(self.source), self.name.encode() if self.is_url else b""]
        except (DataError, OSError, SyntaxError):  # Pillow opens files lazily, and finds them broken here
            parts = [b"unreadable", self.name.encode(errors="replace")]
        return self._digest_of(parts)

    def _digest_of(self, parts: Sequence[bytes]) -> str:
        hasher = hashlib.blake2b(f"{self.kind}/{self.rate}".encode(), digest_size=16)
        for part in parts:
            hasher.update(hashlib.blake2b(part, digest_size=16).digest())
        return hasher.hexdigest()

    def __repr__(self) -> str:
        return f"Media({self.kind}, {self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Media) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a dialog: `role` is system, user, assistant or tool; `content` is text, or texts and media in their order.

    `tool_calls` are those of the assistant; a message of a tool has the id and the name of the call that it answers.
    """

    role: str
    content: str | tuple[str | Media, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    @property
    def parts(self) -> tuple[str | Media, ...]:
        return (self.content,) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """For display: media as their kind in angle brackets."""
        return "".join(part if isinstance(part, str) else f"<{part.kind}>" for part in self.parts)

    @property
    def text_with_calls(self) -> str:
        """For display: the text and the calls of tools, a line each."""
        return "\n".join(filter(None, [self.text, *(f"{call.name}({call.text})" for call in self.tool_calls)]))

    @property
    def media(self) -> list[Media]:
        return [part for part in self.parts if isinstance(part, Media)]

    def to_json(self) -> dict[str, Any]:
        """For display: media by name."""
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content, **self.tool_fields()}
        return {
            "role": self.role,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind, part.kind: part.name}
                for part in self.content
            ],
            **self.tool_fields(),
        }

    def tool_fields(self) -> dict[str, Any]:
        """What a message about tools has beside role and content, in OpenAI's format."""
        fields: dict[str, Any] = {"tool_calls": [call.message() for call in self.tool_calls]} if self.tool_calls else {}
        fields |= {"tool_call_id": self.tool_call_id} if self.tool_call_id else {}
        return fields | ({"name": self.name} if self.name else {})

    def to_dict(self) -> dict[str, Any]:
        """For hashing: media by content."""
        content: Any = self.content
        if not isinstance(content, str):
            content = [part if isinstance(part, str) else {"kind": part.kind, "digest": part.digest} for part in content]
        fields: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            fields["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return fields | {name: value for name in ("tool_call_id", "name") if (value := getattr(self, name))}


Context = str | tuple[Message, ...]


def orientation(image: Any) -> int:
    """EXIF's number for how a Pillow image must be turned to be upright; 1 is not at all."""
    number = image.getexif().get(0x0112)
    return number if number in range(2, 9) else 1


def _data_url(text: str) -> bytes:
    head, comma, body = text.partition(",")
    if not comma or not head.endswith(";base64"):
        raise DataError(f"{head[:40]!r} is not a base64 data URL")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise DataError("a data URL does not hold base64") from error


def _decoded_bytes(source: Any) -> list[bytes]:
    """The raw bytes of decoded media, with their shape; nothing for encoded ones."""
    if isinstance(source, (str, Path, bytes, Blob)):
        return []
    if isinstance(source, (list, tuple)) and any(hasattr(frame, "getpalette") for frame in source):
        return [part for frame in source for part in _decoded_bytes(frame)]
    if hasattr(source, "getpalette"):  # a Pillow image: its colours may be in a palette
        palette = source.getpalette() if source.mode == "P" else None
        turned = "" if orientation(source) == 1 else f"/{orientation(source)}"
        return [f"{source.mode}/{source.size}/{palette}{turned}".encode(), source.tobytes()]
    import numpy as np

    samples = np.asarray(source)
    if samples.dtype == object:
        raise DataError(f"a {type(source).__name__} is no image, video or audio")
    return [f"{samples.dtype}/{samples.shape}".encode(), samples.tobytes()]


@dataclass(frozen=True, eq=False)
class Labels:
    """Names in a fixed order. A text tower reads `texts` instead where they are given (names are unique, texts need not
    be), each put into every one of `templates` ("a photo of a {c}."); without templates the model uses its own. `media`
    are the candidates themselves where they are images.

    Equal labels have equal digests, which are computed once: a thousand classes are not hashed for every image.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"the label {twice!r} is there twice")
        for what, given in (("texts", self.texts), ("images", self.media)):
            if given and len(given) != len(self.names):
                raise ValueError(f"{len(given)} {what} for {len(self.names)} names")

    @cached_property
    def digest(self) -> str:
        parts = [self.names, self.texts, self.templates, [media.digest for media in self.media]]
        return hashlib.blake2b(json.dumps(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Labels) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


NO_LABELS = Labels(())
