"""What can go wrong with a call to a server, told apart: who is to blame, and whether trying again may help."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from mill.api.printing import one_line
from mill.api.secrets import excerpt, scrub, split_password

_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_THROTTLED = {429, 503}
_NO_ERROR: tuple[Any, ...] = (None, False, "", 0, {}, [])


class Failure(Exception):
    """A failed call.

    `kind` is connection, timeout, cut, http (an error status, which is `status`), garbage (not what was asked for), large
    (more than is read) or reported (an error that came with a good status).
    """

    def __init__(self, kind: str, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(one_line(scrub(message)))
        self.kind, self.status, self.retry_after = kind, status, retry_after

    @property
    def transient(self) -> bool:
        """Whether the same call may pass later."""
        return self.status in _TRANSIENT if self.status else self.kind not in ("http", "large")

    @property
    def away(self) -> bool:
        """Whether the server may not be there: nobody listens, or whoever stands before it finds nobody."""
        return self.kind in ("connection", "cut") or self.status in (502, 504)

    @property
    def throttled(self) -> bool:
        """Whether the server asks for less."""
        return self.status in _THROTTLED


def http_failure(status: int, body: bytes, headers: Mapping[str, str]) -> Failure:
    """An answer with an error status, with the server's own words where it has some."""
    hint = {401: "check the API key", 403: "check the API key's rights", 404: "check the model name and the URL"}
    words = f"HTTP {status}: {error_message(body)}"
    if status in hint:
        words += f" ({hint[status]})"
    return Failure("http", words, status=status, retry_after=parse_retry_after(headers.get("Retry-After")))


def redirect_failure(status: int, target: str) -> Failure:
    """A redirect is not followed: another host would get the key, and its answers would count as those of this one."""
    named = excerpt(split_password(re.split("[?#]", target)[0])[0], 200)
    hint = f" to {named}; redirects are not followed: give that address as base_url" if named else ", and does not say where"
    return Failure("http", f"HTTP {status}: the server redirects{hint}", status=status)


def raise_reported(body: Any) -> None:
    """Raise where a JSON answer with a good status holds an error, alone or beside an answer, or is one itself, as some
    servers write it: `{"object": "error", ...}`, `{"detail": ...}`."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(body, dict) and any(error == nothing for nothing in _NO_ERROR):
        error = body if body.get("object") == "error" else None if "choices" in body else body.get("detail")
    if any(error == nothing for nothing in _NO_ERROR):
        return
    code = error.get("code", error.get("status")) if isinstance(error, dict) else None
    status = int(code) if isinstance(code, (int, str)) and str(code).isdecimal() and 400 <= int(code) <= 599 else 0
    raise Failure("reported", f"the server reported an error: {_words_of(error)}", status=status)


def error_message(body: bytes) -> str:
    """The message inside an error body: OpenAI's shape, FastAPI's, or the start of the text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return excerpt(text, 200) or "no message"
    if isinstance(found, dict):
        return _words_of(found.get("error", found.get("detail", found.get("message", found))))
    return excerpt(text, 200)


def _words_of(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message", error)
    return shown(error, 300)


def shown(value: Any, length: int) -> str:
    """The beginning of whatever a server sent, for a message."""
    try:
        return one_line(excerpt(str(value), length))
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return f"a {type(value).__name__} that cannot be shown"


def parse_retry_after(text: str | None) -> float | None:
    """Seconds from now, from a number of seconds or a date; None for what is neither."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError, IndexError):
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)
