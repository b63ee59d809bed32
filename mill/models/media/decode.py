"""From media to pixels, frames and samples, or to content parts of the OpenAI API. Unreadable media raise DataError.

Pillow reads images and animations; audio and video files need the extra `media` (soundfile, soxr, av).
"""

from __future__ import annotations

import base64
import importlib.util
import io
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mill.api.batching import describe
from mill.api.errors import DataError, MillError, MissingPackage
from mill.api.message import AUDIO, VIDEO, Blob, Media
from mill.api.response import Response
from mill.models.media.text_cache import TextCache

FETCH_TIMEOUT_S = 30.0
MOST_FRAMES = 64  # of an animation that is sent to a server
_inlined = TextCache(1 << 27)
_SENT_UNCHANGED = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


def load_image(media: Media) -> Any:
    """An RGB image. Alpha is dropped, 16-bit values are scaled to 8, an animation is its first frame."""
    return _as_rgb(_open_image(media), media)


def load_frames(media: Media, count: int) -> list[Any]:
    """`count` evenly spaced RGB frames, first and last included; all frames if there are no more."""
    if isinstance(media.source, (list, tuple)):
        frames = _frames_at(media.source, even_indices(len(media.source), count))
    elif _is_animation(raw := _bytes(media)):
        frames = _animation(media, count)
    else:
        frames = _video(media, raw, count)
    if not frames:
        raise DataError(f"the video {media.name} has no frames")
    return [_as_rgb(frame, media) for frame in frames]


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
    inline = _inlined.get(media.digest, lambda: _inline(media))
    if media.kind == AUDIO:
        return {"type": "input_audio", "input_audio": {"data": inline, "format": "wav"}}
    return _url_part(media.kind, inline)


def _inline(media: Media) -> str:
    """Audio in base64, images and videos as data URLs."""
    if media.kind == AUDIO:
        return _base64(_wav(media))
    if media.kind == VIDEO:
        framed = isinstance(media.source, (list, tuple)) or _is_animation(_bytes(media))
        if not framed:
            return f"data:video/mp4;base64,{_base64(_bytes(media))}"
        frames = load_frames(media, MOST_FRAMES)
        return f"data:video/jpeg;base64,{','.join(_base64(_encode(frame, 'JPEG')) for frame in frames)}"
    kind, raw = _image_bytes(media)
    return f"data:{kind};base64,{_base64(raw)}"


def failure(error: Exception) -> Response:
    """The response to a request whose media cannot be read."""
    return Response(error=str(error) if isinstance(error, MillError) else describe(error))


def _url_part(kind: str, url: str) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def _image_bytes(media: Media) -> tuple[str, bytes]:
    """What is sent to a server: the file itself if all decoders read it the same way, else its pixels as PNG."""
    image = _open_image(media)
    rgb = _as_rgb(image, media)  # also detects a truncated file, which some servers would fill with grey
    raw = None if media.is_url else media.encoded()
    if raw is not None and image.mode in ("RGB", "L") and image.format in _SENT_UNCHANGED:
        return _SENT_UNCHANGED[image.format], raw
    return "image/png", _encode(rgb, "PNG")


def _open_image(media: Media) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        image = media.source if isinstance(media.source, Image.Image) else Image.open(io.BytesIO(_bytes(media)))
        image.load()
        return image
    except MillError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"the image {media.name} cannot be read: Pillow does not know its format") from error
    except Exception as error:  # Pillow raises many types for damaged files
        raise DataError(f"the image {media.name} cannot be read: {' '.join(str(error).split())[:120]}") from error


def _as_rgb(image: Any, media: Media) -> Any:
    if image.mode == "RGB":
        return image
    if image.mode == "F":
        raise DataError(f"the image {media.name} has floating-point pixels, whose range is not known")
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    return image.convert("RGB")


def _eight_bits(image: Any) -> Any:
    """Pillow clips 16-bit greys at 255, which would turn most of an image white."""
    import numpy as np
    from PIL import Image

    values = np.asarray(image).astype(np.int64)
    return Image.fromarray((values.clip(0, 65535) // 257).astype(np.uint8))


def _animation(media: Media, count: int) -> list[Any]:
    from PIL import ImageSequence

    image = _open_image(media)
    try:
        wanted = set(even_indices(getattr(image, "n_frames", 1), count))
        # The iterator changes and returns the same object, so frames are copied.
        return [frame.copy() for index, frame in enumerate(ImageSequence.Iterator(image)) if index in wanted]
    except (OSError, EOFError, SyntaxError, ValueError) as error:
        raise DataError(f"the video {media.name} cannot be read: {describe(error)}") from error


def _frames_at(frames: Iterable[Any], indices: list[int]) -> list[Any]:
    """The frames at these indices; the others are dropped while reading."""
    wanted = set(indices)
    return [frame for index, frame in enumerate(frames) if index in wanted]


def _is_animation(raw: bytes) -> bool:
    """GIF, PNG and WebP contain animations; anything else is a video container."""
    return raw.startswith((b"GIF8", b"\x89PNG")) or raw[8:12] == b"WEBP"


def _video(media: Media, raw: bytes, count: int) -> list[Any]:
    """Decoded twice, to count and to select: the length in a container may be wrong, and all frames may not fit memory."""
    _need("av", "reading video")
    import av

    try:
        with av.open(io.BytesIO(raw)) as container:
            total = sum(1 for _ in container.decode(video=0))
        with av.open(io.BytesIO(raw)) as container:
            return [frame.to_image() for frame in _frames_at(container.decode(video=0), even_indices(total, count))]
    except (av.FFmpegError, IndexError) as error:
        raise DataError(f"the video {media.name} cannot be read: {error}") from error


def _read_audio(media: Media) -> tuple[Any, int]:
    _need("soundfile", "reading audio")
    import soundfile

    raw = _bytes(media)
    if not raw:
        raise DataError(f"the audio {media.name} is empty")
    try:
        return soundfile.read(io.BytesIO(raw), dtype="float32")  # type: ignore[no-any-return]
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise DataError(f"the audio {media.name} cannot be read: {error}") from error


def _wav(media: Media) -> bytes:
    """16-bit PCM, which every server reads."""
    import wave

    import numpy as np

    rate = media.rate or 16_000
    samples = load_audio(media, rate)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * 32767).astype(np.int16).tobytes())
    return out.getvalue()


def _bytes(media: Media) -> bytes:
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
