"""Rows of lmms-eval's tasks as they are recorded: images, video and audio by a digest of their content."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

_MEDIA = ("Image", "Audio", "Video", "Pdf")
_BATCH = 64


def plain_rows(docs: Any) -> Iterator[dict[str, Any]]:
    """The rows of a dataset. Media are read and not decoded, which would take longer than all the rest."""
    features = getattr(docs, "features", None)
    if not isinstance(features, Mapping) or not hasattr(docs, "with_format"):
        yield from (_plain(row) for row in docs)
        return
    media = [name for name, feature in features.items() if _has_media(feature)]
    others = [name for name in features if name not in media]
    digests = _digests(docs.select_columns(media)) if media else ({} for _ in range(len(docs)))
    rows = docs.select_columns(others) if others else ({} for _ in range(len(docs)))
    for row, digest in zip(rows, digests, strict=True):
        yield {name: value for name, value in (_plain(row) | digest).items() if value is not None or name in row}


def _digests(docs: Any) -> Iterator[dict[str, str | None]]:
    for batch in docs.with_format("arrow").iter(batch_size=_BATCH):
        columns = {name: batch.column(name) for name in batch.column_names}
        for number in range(batch.num_rows):
            yield {name: _digest(column[number].as_py()) for name, column in columns.items()}


def _digest(value: Any) -> str | None:
    """Of the bytes of a cell, or of the path in their stead; None where the cell is empty."""
    hasher = hashlib.blake2b(digest_size=8)
    found = [_update(hasher, part) for part in (value if isinstance(value, list) else [value])]
    return f"blake2b:{hasher.hexdigest()}" if any(found) else None


def _update(hasher: Any, value: Any) -> bool:
    given = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
    if given is None:
        return False
    hasher.update(given if isinstance(given, bytes) else str(given).encode())
    return True


def _has_media(feature: Any) -> bool:
    if type(feature).__name__ in _MEDIA:
        return True
    if isinstance(feature, Mapping):
        return any(map(_has_media, feature.values()))
    if isinstance(feature, (list, tuple)):
        return any(map(_has_media, feature))
    inner = getattr(feature, "feature", None)
    return inner is not None and _has_media(inner)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple, Mapping, datetime.date))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items() if _is_plain(inner)}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value if _is_plain(inner)]
    return value.isoformat() if isinstance(value, datetime.date) else value
