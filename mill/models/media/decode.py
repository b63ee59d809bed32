"""From media to pixels, frames and samples, or to content parts of the OpenAI API. Unreadable media raise DataError.

Pillow reads images and animations; audio and video files need the extra `media` (soundfile, soxr, av).
"""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, MillError, MissingPackage
from mill.api.message import AUDIO, VIDEO, Blob, Media, orientation
from mill.support.terminal import describe, warn

FETCH_TIMEOUT_S = 30.0
MOST_FRAMES = 64  # of an animation that is sent to a server
INLINED = 16  # media that are kept as they are sent: requests with the same ones follow each other
CLIPPED = (
    "images of 16-bit greys are clipped at 255 as transformers does it, so most of them may be white; "
    "convert them to 8 bits to keep their contrast"
)
_SENT_UNCHANGED = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


def load_image(media: Media) -> Any:
    """An RGB image, as transformers loads it: turned upright by its EXIF, alpha dropped, greys of 16 bits clipped at 255.
    An animation is its first frame."""
    return _upright(_open_image(media), media)


@dataclass(frozen=True)
class Video:
    """Frames of a video as RGB images: those at `indices`, of `total` at `fps` a second (None for frames without times)."""

    frames: list[Any]
    indices: list[int]
    total: int
    fps: float | None


def load_video(media: Media, choose: Callable[[int, float | None], Sequence[int]]) -> Video:
    """The frames whose indices `choose` picks, given the number of all frames and their rate."""
    source = media.source
    with _reading(media):
        total, fps, read = _listed(source, media.rate) if isinstance(source, (list, tuple)) else _encoded(_bytes(media))
    if not total:
        raise DataError(f"the video {media.name} has no frames")
    indices = list(choose(total, fps))
    with _reading(media):
        frames = dict(read(indices))
    return Video([_as_rgb(frames[index], media) for index in indices], indices, total, fps)


def load_audio(media: Media, rate: int) -> Any:
    """Mono float32 samples at `rate` a second, channels averaged."""
    import numpy as np

    if isinstance(media.source, (str, bytes, Path, Blob)):
        samples, own_rate = _read_audio(media)
    else:
        samples, own_rate = np.asarray(media.source, dtype=np.float32), media.rate or rate
    if samples.ndim == 2:
        samples = samples.mean(axis=1)
    if not samples.size:
        raise DataError(f"the audio {media.name} is empty")
    if not np.isfinite(samples).all():
        raise DataError(f"the audio {media.name} has samples that are not numbers")
    if own_rate != rate:
        _need("soxr", "resampling audio")
        import soxr

        samples = soxr.resample(samples, own_rate, rate)
    return np.asarray(samples, dtype=np.float32)


def even_indices(total: int, count: int) -> list[int]:
    """`count` evenly spaced indices below `total`, first and last included."""
    if count >= total:
        return list(range(total))
    if count == 1:
        return [0]
    return [round(step * (total - 1) / (count - 1)) for step in range(count)]


def content_part(media: Media) -> dict[str, Any]:
    """A content part of the OpenAI API; URLs are sent unchanged, other media inline, encoded once for equal ones."""
    if media.is_url and media.kind != AUDIO:
        return _url_part(media.kind, media.source)
    inline = _inline(media)
    if media.kind == AUDIO:
        return {"type": "input_audio", "input_audio": {"data": inline, "format": "wav"}}
    return _url_part(media.kind, inline)


@lru_cache(maxsize=INLINED)
def _inline(media: Media) -> str:
    """Audio in base64, images and videos as data URLs."""
    if media.kind == AUDIO:
        return _base64(wav_bytes(media))
    if media.kind == VIDEO:
        framed = isinstance(media.source, (list, tuple)) or _is_animation(_bytes(media))
        if not framed:
            return f"data:video/mp4;base64,{_base64(_bytes(media))}"
        frames = load_video(media, lambda total, _: even_indices(total, MOST_FRAMES)).frames
        return f"data:video/jpeg;base64,{','.join(_base64(_encode(frame, 'JPEG')) for frame in frames)}"
    kind, raw = image_bytes(media)
    return f"data:{kind};base64,{_base64(raw)}"


def _url_part(kind: str, url: str) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def image_bytes(media: Media) -> tuple[str, bytes]:
    """What is sent to a server: the file itself if all decoders read it the same way, else its pixels as PNG."""
    image = _open_image(media)  # also detects a truncated file, which some servers would fill with grey
    raw = None if media.is_url else media.encoded()
    if raw is not None and image.mode in ("RGB", "L") and image.format in _SENT_UNCHANGED and orientation(image) == 1:
        return _SENT_UNCHANGED[image.format], raw
    return "image/png", _encode(_upright(image, media), "PNG")


def _open_image(media: Media) -> Any:
    from PIL import Image, UnidentifiedImageError

    with _reading(media):
        try:
            image = media.source if isinstance(media.source, Image.Image) else Image.open(io.BytesIO(_bytes(media)))
        except UnidentifiedImageError as error:
            raise DataError(f"the image {media.name} cannot be read: Pillow does not know its format") from error
        image.load()
        return image


def _upright(image: Any, media: Media) -> Any:
    from PIL import ImageOps

    with _reading(media):
        return _as_rgb(ImageOps.exif_transpose(image), media)


def _as_rgb(image: Any, media: Media) -> Any:
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        raise DataError(f"the image {media.name} has floating-point pixels, whose range is not known")
    if image.mode.startswith("I"):
        warn(CLIPPED)
    return image.convert("RGB")


Indexed = Iterable[tuple[int, Any]]
_Frames = tuple[int, float | None, Callable[[Sequence[int]], Indexed]]
"""How many frames a video has, their rate, and how to read those at some indices."""


def _listed(frames: Sequence[Any], fps: float | None) -> _Frames:
    return len(frames), fps, lambda indices: _at(frames, indices)


def _encoded(raw: bytes) -> _Frames:
    """Frames are decoded twice: the length in a container may be wrong, and all of them may not fit memory."""
    if not _is_animation(raw):
        return _container(raw)
    shown_ms = [frame.info.get("duration", 0) for frame in _animation(raw)]
    fps = 1000 * len(shown_ms) / sum(shown_ms) if sum(shown_ms) else None
    return len(shown_ms), fps, lambda indices: _at(_animation(raw), indices)


def _animation(raw: bytes) -> Iterator[Any]:
    from PIL import Image, ImageSequence

    for frame in ImageSequence.Iterator(Image.open(io.BytesIO(raw))):
        yield frame.copy()  # the iterator changes and returns the same object


def _container(raw: bytes) -> _Frames:
    _need("av", "reading video")
    import av

    def read(indices: Sequence[int]) -> Indexed:
        with av.open(io.BytesIO(raw)) as container:
            return [(index, frame.to_image()) for index, frame in _at(container.decode(video=0), indices)]

    with av.open(io.BytesIO(raw)) as container:
        fps = container.streams.video[0].average_rate
        return sum(1 for _ in container.decode(video=0)), float(fps) if fps else None, read


def _at(frames: Iterable[Any], indices: Sequence[int]) -> Indexed:
    """The frames at these indices; those after the last one are not decoded."""
    wanted = set(indices)
    return ((index, frame) for index, frame in enumerate(islice(frames, max(wanted) + 1)) if index in wanted)


@contextmanager
def _reading(media: Media) -> Iterator[None]:
    """Pillow and FFmpeg raise many types for damaged files: one error with the file's name."""
    try:
        yield
    except MillError:
        raise
    except Exception as error:
        raise DataError(f"the {media.kind} {media.name} cannot be read: {describe(error)[:160]}") from error


def _is_animation(raw: bytes) -> bool:
    """GIF, PNG and WebP contain animations; anything else is a video container."""
    return raw.startswith((b"GIF8", b"\x89PNG")) or raw[8:12] == b"WEBP"


def _read_audio(media: Media) -> tuple[Any, float]:
    _need("soundfile", "reading audio")
    import soundfile

    raw = _bytes(media)
    if not raw:
        raise DataError(f"the audio {media.name} is empty")
    try:
        return soundfile.read(io.BytesIO(raw), dtype="float32")  # type: ignore[no-any-return]
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise DataError(f"the audio {media.name} cannot be read: {error}") from error


def wav_bytes(media: Media) -> bytes:
    """16-bit PCM, which every server reads."""
    import wave

    import numpy as np

    rate = int(media.rate or 16_000)
    samples = load_audio(media, rate)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * 32767).astype(np.int16).tobytes())
    return out.getvalue()


def _bytes(media: Media) -> bytes:
    import urllib.request

    if not media.is_url:
        raw = media.unchanged()
        if raw is None:
            raise DataError(f"a {type(media.source).__name__} is no {media.kind}")
        return raw
    try:
        with urllib.request.urlopen(media.source, timeout=FETCH_TIMEOUT_S) as response:
            return bytes(response.read())
    except OSError as error:
        raise DataError(f"cannot fetch {media.source}: {error}") from error


def _encode(image: Any, file_format: str) -> bytes:
    out = io.BytesIO()
    image.save(out, file_format)
    return out.getvalue()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _need(package: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingPackage(purpose, package, "media")
