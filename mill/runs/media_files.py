"""The images, audio and videos of samples, so that `mill view` can show them after the run.

A sample names each with the digest of its content. Those of files are read from there again. What has no file, such as an
image that a task has drawn, is copied to `media/<digest>` in the run's folder, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from mill.api.errors import MillError
from mill.api.message import AUDIO, IMAGE, Media
from mill.models.media.decode import image_bytes, wav_bytes
from mill.runs.folder import RunFolder
from mill.support.files import write_atomically
from mill.support.terminal import warn

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
    """The bytes of a file, of an image or of samples of audio; None for addresses, frames, and samples without a rate."""
    given = media.encoded()
    if given is not None or media.is_url:
        return given
    if media.kind == IMAGE:
        return image_bytes(media)[1]
    return wav_bytes(media) if media.kind == AUDIO and media.rate else None
