"""What can go wrong with a call to a server, told apart: who is to blame, and whether trying again may help."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping

from mill.api.secrets import excerpt, scrub

_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_THROTTLED = {429, 503}
LONGEST_WAIT_S = 120.0


class Failure(Exception):
    """A failed call. `kind` is connection, timeout, cut, http or garbage; `status` is set for http alone."""

    def __init__(self, kind: str, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(scrub(message))
        self.kind, self.status, self.retry_after = kind, status, retry_after

    @property
    def transient(self) -> bool:
        """Whether the same call may pass later."""
        return self.kind != "http" or self.status in _TRANSIENT

    @property
    def away(self) -> bool:
        """Whether the server may not be there: nobody listens, or whoever stands before it finds nobody."""
        return self.kind in ("connection", "cut") or self.status in (502, 504)

    @property
    def throttled(self) -> bool:
        """Whether the server asks for less."""
        return self.kind == "http" and self.status in _THROTTLED


def http_failure(status: int, body: bytes, headers: Mapping[str, str]) -> Failure:
    """An answer with an error status, with the server's own words where it has some."""
    hint = {401: "check the API key", 403: "check the API key's rights", 404: "check the model name and the URL"}
    words = f"HTTP {status}: {server_words(body)}"
    if status in hint:
        words += f" ({hint[status]})"
    return Failure("http", words, status=status, retry_after=parse_retry_after(headers.get("Retry-After")))


def server_words(body: bytes) -> str:
    """The message inside an error body: OpenAI's shape, FastAPI's, or the start of the text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return excerpt(text, 200) or "no message"
    if isinstance(found, dict):
        error = found.get("error", found.get("detail", found.get("message", found)))
        if isinstance(error, dict):
            error = error.get("message", error)
        return excerpt(str(error), 300)
    return excerpt(text, 200)


def parse_retry_after(text: str | None) -> float | None:
    """Seconds from now, from a number of seconds or a date; never more than `LONGEST_WAIT_S`."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return min(max(0.0, seconds), LONGEST_WAIT_S)
