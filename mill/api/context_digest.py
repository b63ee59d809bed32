"""The digest of a request's context. Questions after the same examples and choices of one question follow each other: what a
context has in common with the one before it is digested once."""

from __future__ import annotations

import hashlib
import json
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from mill.api.message import Context, Message


class _Digested(NamedTuple):
    kind: str
    context: Context | None
    digest: Any
    start: str
    """What the context has in common with an earlier one."""
    start_digest: Any


_NOTHING = _Digested("", None, None, "", None)
_last = _NOTHING  # replaced as a whole: threads may hash requests


def context_digest(kind: str, context: Context) -> Any:
    """The state of a digest after the first two parts of a request as a JSON list; the caller may update it."""
    global _last
    last = _last
    if last.context is not context or last.kind != kind:
        last = _last = _digested(kind, context, last if last.kind == kind else _NOTHING)
    return last.digest.copy()


def encode_json(value: Any) -> str:
    """JSON that is the same for equal values."""
    return _ENCODER.encode(value)


def _digested(kind: str, context: Context, last: _Digested) -> _Digested:
    if not isinstance(context, str):
        return _Digested(kind, context, _digest(encode_json([kind, context])[:-1]), "", None)
    start, start_digest = last.start, last.start_digest
    short = 2 * len(start) < len(context)  # such as the words that all subjects begin with
    if start_digest is None or short or not context.startswith(start):
        start = context[: _equal_characters(last.context, context)] if isinstance(last.context, str) else ""
        start_digest = _digest(f"[{encode_basestring(kind)}, {encode_basestring(start)[:-1]}")
    digest = start_digest.copy()
    digest.update(_utf8(encode_basestring(context[len(start) :])[1:]))
    return _Digested(kind, context, digest, start, start_digest)


def _equal_characters(one: str, other: str) -> int:
    """How many characters two texts have in common from the start on."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(text: str) -> Any:
    return hashlib.blake2b(_utf8(text), digest_size=16)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    raise TypeError(f"a request option of type {type(value).__name__} cannot be hashed: {value!r}")


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_plain)
