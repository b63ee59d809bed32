"""Response bodies, read in chunks up to a cap: no server decides how much memory it takes."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from mill.api.errors import DataError
from mill.api.response import ROUNDING
from mill.models.http.failures import Failure, http_failure, redirect_failure
from mill.support.secrets import excerpt
from mill.support.validate import convert, parse_json

MIB = 1 << 20
BODY_CAP = 16 * MIB  # of a text response; all caps count decompressed bytes
SCORES_CAP = 256 * MIB  # with the log-probabilities of a long prompt or a whole vocabulary
ERROR_CAP = MIB
LINE_CAP = 16 * MIB
STREAM_CAP = 64 * MIB

_LINE_END = re.compile(rb"\r?\n|\r(?=.)", re.DOTALL)  # a CR at the end of a chunk may be half of a line end


async def refuse_status(answer: Any) -> None:
    """Raise for every status but success."""
    if answer.status >= 400:
        raise http_failure(answer.status, await _read_error(answer), answer.headers)
    if answer.status >= 300:
        raise redirect_failure(answer.status, answer.headers.get("Location", ""))


async def read_json(answer: Any, cap: int) -> Any:
    """The whole body, which is JSON or empty."""
    raw = b"".join([chunk async for chunk in _chunks(answer, cap)]).removeprefix(b"\xef\xbb\xbf")
    return parsed(raw, "the server's answer") if raw else None


def parsed(raw: bytes, what: str) -> Any:
    try:
        return parse_json(raw, what)
    except DataError as error:
        raise Failure("garbage", f"{what} is not JSON: {excerpt(repr(raw[:400]), 80)}") from error


async def read_events(answer: Any) -> AsyncIterator[tuple[str, bytes]]:
    """The server-sent events of a body, each with its name (mostly empty). An event ends with an empty line and may have
    several data lines; servers that omit the empty line send one event a line."""
    name, data = "", list[bytes]()
    async for line in _lines(answer):
        if line.startswith(b"data:"):
            if data and _is_whole(b"\n".join(data)):
                yield name, b"\n".join(data)
                data = []
            data.append(line[5:].strip())
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
        elif not line.strip():
            if data:
                yield name, b"\n".join(data)
            name, data = "", []
    if data:
        yield name, b"\n".join(data)


def _is_whole(data: bytes) -> bool:
    """Whether data is a complete event, so that the next data line starts another."""
    if data == b"[DONE]":
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


async def _lines(answer: Any) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in _chunks(answer, STREAM_CAP):
        *lines, rest = _split_lines(rest + chunk) if b"\n" in chunk or b"\r" in chunk else (rest + chunk,)
        for line in lines:
            yield line
        if len(rest) > LINE_CAP:
            raise Failure("large", f"a line of the stream is longer than {_mib(LINE_CAP)}")
    if rest:
        yield rest


def _split_lines(data: bytes) -> list[bytes]:
    return _LINE_END.split(data) if b"\r" in data else data.split(b"\n")


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


def log_of(probability: float) -> float:
    """The logarithm of a probability, which must be between 0 and 1."""
    if not 0 <= probability <= math.exp(ROUNDING):
        raise Failure("garbage", f"a probability of the server's answer is {probability:g}")
    return min(0.0, math.log(probability)) if probability > 0 else -math.inf


def token_count(value: Any) -> int | None:
    """A token count; None where the value is not one."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
