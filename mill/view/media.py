"""The bytes of an image, audio or video of a sample, from where the run had it.

A samples file may come from someone else, and names any path. So a file is sent only if its content has the digest that the
run recorded, and if it begins as an image, audio or video does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mill.api.errors import MillError, RunError
from mill.api.message import MEDIA_KINDS, Media
from mill.store.samples import MEDIA
from mill.support.files import MOST_LINE, open_regular
from mill.tasks.data import ParquetBlobs
from mill.view.index import ResultsIndex
from mill.view.queries import find_run, read_sample

_IN_TABLE = re.compile(r"(.+\.parquet) \((.+) of row (\d+)\)")
_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
)


def read_media(index: ResultsIndex, run: str, task: str, name: str, number: int) -> tuple[bytes, str]:
    """The bytes and their content type."""
    listed = read_sample(index, run, task, name).get("media") or []
    if not 0 <= number < len(listed):
        raise RunError(f"sample {name[:80]} has {len(listed)} images, audio or videos")
    entry = listed[number]
    if not isinstance(entry, dict) or entry.get("type") not in MEDIA_KINDS:
        raise RunError(f"the media of sample {name[:80]} are not valid")
    content = _content(find_run(index, run).path, entry)
    kind = content_type(content)
    if kind is None:
        raise RunError(f"{entry['name'][:200]} is no image, audio or video that a browser shows")
    return content, kind


def _content(folder: Path, entry: dict[str, Any]) -> bytes:
    digest, name = str(entry.get("digest", "")), str(entry.get("name", ""))
    if re.fullmatch("[0-9a-f]{32}", digest):
        stored = _read(folder / MEDIA / digest)
        if stored is not None:
            return stored
    cell = _IN_TABLE.fullmatch(name)
    found = _from_table(*cell.groups()) if cell else _read(Path(name)) if not name.startswith("<") else None
    if found is None:
        raise RunError(f"{name[:200]} is not here any more")
    if Media(entry["type"], found).digest != digest:
        raise RunError(f"{name[:200]} has changed since the run")
    return found


def _read(file: Path) -> bytes | None:
    try:
        with open_regular(file) as handle:
            content = handle.read(MOST_LINE + 1)
    except (OSError, ValueError, MillError):
        return None
    return content if len(content) <= MOST_LINE else None


def _from_table(file: str, column: str, row: str) -> bytes | None:
    """A cell of a Parquet file, as the names of its media say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        open_regular(Path(file)).close()
        with pq.ParquetFile(file, memory_map=True) as table:
            return ParquetBlobs(table, file, paths=False).blob(column, int(row)).read()
    except (OSError, ValueError, IndexError, KeyError, MillError, pa.ArrowException):
        return None


def content_type(content: bytes) -> str | None:
    return next((kind for at, mark, kind in _SIGNATURES if content[at : at + len(mark)] == mark), None)
