"""The images, audio and videos of samples, so that `mill view` can show them after the run.

A sample names each with the digest of its content. Those of files are read from there again. What has no file, such as an
image that a task has drawn, is copied to `media/<digest>` in the run's folder, up to a limit.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable
from typing import Any

from mill.api.errors import MillError
from mill.api.message import AUDIO, IMAGE, Media
from mill.api.storage import write_atomically
from mill.api.warnings import warn
from mill.runs.folder import RunFolder

FOLDER = "media"
MOST_STORED = 1 << 28  # bytes of one run


def media_entries(media: Iterable[Media]) -> list[dict[str, str]]:
    return [{"type": one.kind, "name": one.name, "digest": one.digest} for one in media]


def store_unnamed(folder: RunFolder, media: Iterable[Media]) -> None:
    """Copy what cannot be read again from a file; a copy that fails costs an image in the viewer, never the run."""
    target = folder.path / FOLDER
    stored = sum(file.stat().st_size for file in target.glob("*")) if target.is_dir() else 0
    for one in media:
        if not one.name.startswith("<") or (target / one.digest).exists():
            continue
        try:
            content = _encoded(one)
            if content is None:
                continue
            stored += len(content)
            if stored > MOST_STORED:
                warn(f"{target} is full: the {one.kind}s of further samples are not stored for `mill view`")
                return
            write_atomically(target / one.digest, content, root=folder.root, sync=False)
        except (MillError, OSError, ValueError, SyntaxError):  # Pillow reports a broken file as a SyntaxError
            continue


def _encoded(media: Media) -> bytes | None:
    """The bytes of a file, of an image as PNG, of samples of audio as WAV; None for frames of a video."""
    given = media.encoded()
    if given is not None:
        return given
    source = media.source
    if media.kind == IMAGE and hasattr(source, "save"):
        buffer = io.BytesIO()
        source.convert("RGB").save(buffer, "PNG")
        return buffer.getvalue()
    return _wav(source, int(media.rate)) if media.kind == AUDIO and media.rate else None


def _wav(samples: Any, rate: int) -> bytes:
    import numpy as np

    mono = np.asarray(samples, dtype=np.float64)
    mono = mono.mean(axis=0) if mono.ndim > 1 else mono
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.clip(mono, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()
