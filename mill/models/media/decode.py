"""From media to pixels, frames and samples, or to the content parts of OpenAI's API. What cannot be read is a DataError.

Pillow reads images and animations; sound and video files need the extra `media` (soundfile, soxr, av).
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
from mill.api.message import AUDIO, IMAGE, VIDEO, Blob, Media
from mill.api.response import Response

FETCH_TIMEOUT_S = 30.0
MOST_FRAMES = 64  # of an animation that is sent to a server
_SENT_AS_THEY_ARE = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


def load_image(media: Media) -> Any:
    """An RGB image. Alpha is dropped, 16-bit values are scaled to 8, an animation is its first frame."""
    return _as_rgb(_open_image(media), media)


def load_frames(media: Media, count: int) -> list[Any]:
    """`count` RGB frames at even distances, first and last included; all of them where there are no more."""
    if isinstance(media.source, (list, tuple)):
        frames = _picked(media.source, even_indices(len(media.source), count))
    elif _is_picture(raw := _bytes(media)):
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
        samples, own_rate = _sound(media)
    else:
        samples, own_rate = np.asarray(media.source, dtype=np.float32), media.rate or rate
    if samples.ndim == 2:
        samples = samples.mean(axis=1)
    if not samples.size:
        raise DataError(f"the sound {media.name} is empty")
    if not np.isfinite(samples).all():
        raise DataError(f"the sound {media.name} holds samples that are not numbers")
    if own_rate != rate:
        _need("soxr", "resampling sound")
        import soxr

        samples = soxr.resample(samples, own_rate, rate)
    return np.asarray(samples, dtype=np.float32)


def even_indices(total: int, count: int) -> list[int]:
    """`count` places out of `total` at even distances, first and last included."""
    if count >= total:
        return list(range(total))
    if count == 1:
        return [0]
    return [round(step * (total - 1) / (count - 1)) for step in range(count)]


def content_part(media: Media) -> dict[str, Any]:
    """A part of a message as OpenAI's API takes it; web addresses are sent as they are, the rest inline."""
    if media.kind == AUDIO:
        return {"type": "input_audio", "input_audio": {"data": _base64(_wav(media)), "format": "wav"}}
    if media.is_url:
        return _url_part(media.kind, media.source)
    if media.kind == VIDEO:
        drawn = isinstance(media.source, (list, tuple)) or _is_picture(_bytes(media))
        if not drawn:
            return _url_part(VIDEO, f"data:video/mp4;base64,{_base64(_bytes(media))}")
        frames = load_frames(media, MOST_FRAMES)
        return _url_part(VIDEO, f"data:video/jpeg;base64,{','.join(_base64(_encode(one, 'JPEG')) for one in frames)}")
    kind, raw = _image_bytes(media)
    return _url_part(IMAGE, f"data:{kind};base64,{_base64(raw)}")


def failure(error: Exception) -> Response:
    """The answer to a request whose media cannot be read."""
    return Response(error=str(error) if isinstance(error, MillError) else describe(error))


def _url_part(kind: str, url: str) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def _image_bytes(media: Media) -> tuple[str, bytes]:
    """What a server is sent: the file itself where everyone reads it alike, else the pixels as PNG."""
    picture = _open_image(media)
    rgb = _as_rgb(picture, media)  # also finds a file that ends too early, which some servers would fill with grey
    raw = None if media.is_url else media.encoded()
    if raw is not None and picture.mode in ("RGB", "L") and picture.format in _SENT_AS_THEY_ARE:
        return _SENT_AS_THEY_ARE[picture.format], raw
    return "image/png", _encode(rgb, "PNG")


def _open_image(media: Media) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = media.source if isinstance(media.source, Image.Image) else Image.open(io.BytesIO(_bytes(media)))
        picture.load()
        return picture
    except MillError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(f"the image {media.name} cannot be read: it has no form that Pillow knows") from error
    except Exception as error:  # Pillow raises many kinds for files that are not what they seem
        raise DataError(f"the image {media.name} cannot be read: {' '.join(str(error).split())[:120]}") from error


def _as_rgb(picture: Any, media: Media) -> Any:
    if picture.mode == "RGB":
        return picture
    if picture.mode == "F":
        raise DataError(f"the image {media.name} has floating-point pixels, whose range is not known")
    if picture.mode.startswith("I"):
        picture = _eight_bits(picture)
    return picture.convert("RGB")


def _eight_bits(picture: Any) -> Any:
    """Pillow clips 16-bit greys at 255, which would turn most of a picture white."""
    import numpy as np
    from PIL import Image

    values = np.asarray(picture).astype(np.int64)
    return Image.fromarray((values.clip(0, 65535) // 257).astype(np.uint8))


def _animation(media: Media, count: int) -> list[Any]:
    from PIL import ImageSequence

    picture = _open_image(media)
    try:
        wanted = set(even_indices(getattr(picture, "n_frames", 1), count))
        # The iterator gives one picture that changes, so frames are copied as they come.
        return [frame.copy() for place, frame in enumerate(ImageSequence.Iterator(picture)) if place in wanted]
    except (OSError, EOFError, SyntaxError, ValueError) as error:
        raise DataError(f"the video {media.name} cannot be read: {describe(error)}") from error


def _picked(frames: Iterable[Any], places: list[int]) -> list[Any]:
    """The frames at these places; the others are let go as they come."""
    wanted = set(places)
    return [frame for place, frame in enumerate(frames) if place in wanted]


def _is_picture(raw: bytes) -> bool:
    """GIF, PNG and WebP hold animations; everything else is a video container."""
    return raw.startswith((b"GIF8", b"\x89PNG")) or raw[8:12] == b"WEBP"


def _video(media: Media, raw: bytes, count: int) -> list[Any]:
    """Decoded twice, to count and to pick: containers lie about their length, and all frames at once may not fit memory."""
    _need("av", "reading video")
    import av

    try:
        with av.open(io.BytesIO(raw)) as container:
            total = sum(1 for _ in container.decode(video=0))
        with av.open(io.BytesIO(raw)) as container:
            return [frame.to_image() for frame in _picked(container.decode(video=0), even_indices(total, count))]
    except (av.FFmpegError, IndexError) as error:
        raise DataError(f"the video {media.name} cannot be read: {error}") from error


def _sound(media: Media) -> tuple[Any, int]:
    _need("soundfile", "reading sound")
    import soundfile

    raw = _bytes(media)
    if not raw:
        raise DataError(f"the sound {media.name} is empty")
    try:
        return soundfile.read(io.BytesIO(raw), dtype="float32")  # type: ignore[no-any-return]
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise DataError(f"the sound {media.name} cannot be read: {error}") from error


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
        raw = media.encoded()
        if raw is None:
            raise DataError(f"a {type(media.source).__name__} is no {media.kind}")
        return raw
    try:
        with urllib.request.urlopen(media.source, timeout=FETCH_TIMEOUT_S) as answer:
            return bytes(answer.read())
    except OSError as error:
        raise DataError(f"cannot fetch {media.source}: {error}") from error


def _encode(picture: Any, form: str) -> bytes:
    out = io.BytesIO()
    picture.save(out, form)
    return out.getvalue()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _need(package: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingPackage(purpose, package, "media")
