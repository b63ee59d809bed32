"""What a server sends back: its failures, classified by whether a retry may help, and bodies, which are read in chunks up to
a cap, so that no server decides how much memory they take, and checked against a schema."""

from __future__ import annotations

import contextlib
import email.utils
import json
import math
import re
import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from mill.api.errors import DataError
from mill.api.response import ROUNDING
from mill.support.secrets import excerpt, scrub, split_password
from mill.support.terminal import one_line
from mill.support.validate import convert, parse_json

_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_THROTTLED = {429, 503}
_HINTS = {401: "check the API key", 403: "check the API key's rights", 404: "check the model name and the URL"}
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


MIB = 1 << 20
BODY_CAP = 16 * MIB  # of a text response; all caps count decompressed bytes
SCORES_CAP = 256 * MIB  # with the log-probabilities of a long prompt or a whole vocabulary
ERROR_CAP = MIB
LINE_CAP = 16 * MIB
STREAM_CAP = 64 * MIB

_LINE_END = re.compile(rb"\r?\n|\r(?=.)", re.DOTALL)  # a CR at the end of a chunk may be half of a line end


async def refuse_status(answer: Any) -> None:
    """Raise for every status but success, with the server's error message."""
    if answer.status >= 400:
        hint = f" ({_HINTS[answer.status]})" if answer.status in _HINTS else ""
        message = f"HTTP {answer.status}: {error_message(await _read_error(answer))}{hint}"
        retry_after = parse_retry_after(answer.headers.get("Retry-After"))
        raise Failure("http", message, status=answer.status, retry_after=retry_after)
    if answer.status >= 300:
        raise redirect_failure(answer.status, answer.headers.get("Location", ""))


async def read_json(answer: Any, cap: int) -> Any:
    """The whole body, which is JSON or empty."""
    raw = await read_body(answer, cap)
    return parsed(raw, "the server's answer") if raw else None


async def read_body(answer: Any, cap: int) -> bytes:
    return b"".join([chunk async for chunk in _chunks(answer, cap)]).removeprefix(b"\xef\xbb\xbf")


def parsed(raw: bytes, what: str) -> Any:
    try:
        return parse_json(raw, what)
    except DataError as error:
        raise Failure("garbage", f"{what} is not JSON: {excerpt(repr(raw[:400]), 80)}") from error


async def read_events(answer: Any) -> AsyncIterator[tuple[str, bytes]]:
    """The server-sent events of a body, each with its name (mostly empty). An event ends with an empty line and may have
    several data lines."""
    name, data = "", list[bytes]()
    async for line in _lines(answer):
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
        elif not line.strip():
            if data:
                yield name, b"\n".join(data)
            name, data = "", []
    if data:
        yield name, b"\n".join(data)


async def _lines(answer: Any) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in _chunks(answer, STREAM_CAP):
        data = rest + chunk
        *lines, rest = _LINE_END.split(data) if b"\r" in data else data.split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_CAP:
            raise Failure("large", f"a line of the stream is longer than {_mib(LINE_CAP)}")
    if rest:
        yield rest


async def _read_error(answer: Any) -> bytes:
    """As much of an error's body as can be read. Its status is known, so a bad body is no second error."""
    import aiohttp

    body = b""
    with contextlib.suppress(Failure, aiohttp.ClientError):
        async for chunk in _chunks(answer, ERROR_CAP):
            body += chunk
    return body


async def _chunks(answer: Any, cap: int) -> AsyncIterator[bytes]:
    """The chunks of a body as they arrive, decompressed; raises where it is larger than `cap`."""
    total = 0
    async for chunk in answer.content.iter_any():
        total += len(chunk)
        if total > cap:
            raise Failure("large", f"the server's answer is larger than {_mib(cap)}, and is not read further")
        yield chunk


def _mib(count: int) -> str:
    return f"{count / MIB:g} MiB"


T = TypeVar("T")
MAX_TOKENS = 1 << 53


def shaped(data: Any, kind: type[T], what: str) -> T:
    """A server's response as an instance of its schema; a mismatch is a Failure that names the field."""
    try:
        return convert(data, kind, what)
    except DataError as error:
        raise Failure("garbage", str(error)) from error


def log_probability(value: float) -> float:
    """The value, at most 0; minus infinity is valid."""
    if math.isnan(value):
        raise Failure("garbage", "a log-probability of the server's answer is NaN")
    if value > ROUNDING:
        raise Failure("garbage", f"a log-probability of the server's answer is {value:g}, which is above 0")
    return min(value, 0.0)


def token_count(value: Any) -> int | None:
    """A token count; None where the value is not one."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
