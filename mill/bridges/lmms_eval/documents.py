"""Rows of lmms-eval's tasks as they are recorded: without images, video and audio."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

_MEDIA = ("Image", "Audio", "Video", "Pdf")


def plain_rows(docs: Any) -> Iterator[dict[str, Any]]:
    """The rows of a dataset. Columns of media are not read: decoding them takes longer than all the rest."""
    features = getattr(docs, "features", None)
    if isinstance(features, Mapping) and hasattr(docs, "remove_columns"):
        media = [name for name, feature in features.items() if _has_media(feature)]
        if len(media) == len(features):
            yield from ({} for _ in range(len(docs)))
            return
        docs = docs.remove_columns(media)
    for row in docs:
        yield {str(name): _plain(value) for name, value in row.items() if _is_plain(value)}


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
