"""Failures of a call to a server, classified: what failed, and whether a retry may help."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from mill.support.secrets import excerpt, scrub, split_password
from mill.support.terminal import one_line

_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_THROTTLED = {429, 503}
_NO_ERROR: tuple[Any, ...] = (None, False, "", 0, {}, [])


class Failure(Exception):
    """A failed call.

    `kind` is connection, timeout, cut, http (an error status, in `status`), garbage (an invalid body), large (a body over
    the cap) or reported (an error in a body with a success status).
    """

    def __init__(self, kind: str, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(one_line(scrub(message)))
        self.kind, self.status, self.retry_after = kind, status, retry_after

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status in _TRANSIENT if self.status else self.kind not in ("http", "large")

    @property
    def unreachable(self) -> bool:
        """Whether the server may be down: the connection failed, or a proxy reports that it cannot reach it."""
        return self.kind in ("connection", "cut") or self.status in (502, 504)

    @property
    def throttled(self) -> bool:
        """Whether the server limits the rate."""
        return self.status in _THROTTLED


def http_failure(status: int, body: bytes, headers: Mapping[str, str]) -> Failure:
    """A response with an error status, with the server's error message."""
    hint = {401: "check the API key", 403: "check the API key's rights", 404: "check the model name and the URL"}
    message = f"HTTP {status}: {error_message(body)}"
    if status in hint:
        message += f" ({hint[status]})"
    return Failure("http", message, status=status, retry_after=parse_retry_after(headers.get("Retry-After")))


def redirect_failure(status: int, target: str) -> Failure:
    """A redirect is not followed: another host would get the key, and its responses would count as those of this one."""
    address = excerpt(split_password(re.split("[?#]", target)[0])[0], 200)
    hint = f" to {address}; redirects are not followed: pass that address as base_url" if address else " without a Location"
    return Failure("http", f"HTTP {status}: the server redirects{hint}", status=status)


def raise_reported(body: Any) -> None:
    """Raise where a JSON body with a success status has an `error`, with or without an answer, or is an error itself:
    `{"object": "error", ...}`, `{"detail": ...}`."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(body, dict) and any(error == empty for empty in _NO_ERROR):
        error = body if body.get("object") == "error" else None if "choices" in body else body.get("detail")
    if any(error == empty for empty in _NO_ERROR):
        return
    code = error.get("code", error.get("status")) if isinstance(error, dict) else None
    status = int(code) if isinstance(code, (int, str)) and str(code).isdecimal() and 400 <= int(code) <= 599 else 0
    raise Failure("reported", f"the server reported an error: {_message_of(error)}", status=status)


def error_message(body: bytes) -> str:
    """The message in an error body: OpenAI's format, FastAPI's, or the start of the text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return excerpt(text, 200) or "no message"
    if isinstance(parsed, dict):
        return _message_of(parsed.get("error", parsed.get("detail", parsed.get("message", parsed))))
    return excerpt(text, 200)


def _message_of(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message", error)
    return shown(error, 300)


def shown(value: Any, length: int) -> str:
    """The start of any JSON value from a server, for a message."""
    try:
        return one_line(excerpt(str(value), length))
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return f"a {type(value).__name__} that cannot be shown"


def parse_retry_after(text: str | None) -> float | None:
    """Seconds from now, from a number of seconds or a date; None where it is neither."""
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
