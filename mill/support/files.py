"""Reads and writes files in folders that other users may have filled: links are not followed, devices are not read, and a
file is written whole or not at all."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from mill.api.errors import MillError, RunError, SpecError
from mill.support.secrets import scrub
from mill.support.terminal import utf8

LONGEST_NAME = 100  # bytes of a name in a file name

MOST_BYTES = 1 << 30  # of one file that is read as a whole
MOST_LINE = 1 << 28  # bytes of one line of a file that is read by lines
BUFFER = 1 << 20  # bytes that are collected before a file that is replaced gets them

Content = str | bytes | Callable[[IO[bytes]], object]


def open_regular(file: Path, error: type[MillError] = RunError) -> IO[bytes]:
    """A regular file, open for reading. A pipe or a device (`/dev/zero` behind a link) is refused, never waited for.

    Raises FileNotFoundError where there is none.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe waits for its writer
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as cause:
        raise error(f"cannot read {file}: {getattr(cause, 'strerror', None) or cause}") from cause
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{file} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(file: Path, error: type[MillError] = RunError, *, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of `most` bytes; raises FileNotFoundError where there is none."""
    with open_regular(file, error) as handle:
        if os.fstat(handle.fileno()).st_size > most:
            raise error(f"{file} is larger than {most >> 20:,} MiB")
        try:
            return handle.read()
        except OSError as cause:
            raise error(f"cannot read {file}: {cause.strerror or cause}") from cause


def read_lines(file: Path, start: int = 0, error: type[MillError] = RunError) -> Iterator[tuple[int, bytes]]:
    """The lines of a regular file with their offsets, each with its newline; the last may have none.

    Raises FileNotFoundError where there is no file.
    """
    with open_regular(file, error) as handle:
        try:
            handle.seek(start)
            while line := handle.readline(MOST_LINE):
                if len(line) == MOST_LINE:
                    raise error(f"{file} has a line longer than {MOST_LINE >> 20} MiB at byte {start}")
                yield start, line
                start += len(line)
        except OSError as cause:
            raise error(f"cannot read {file}: {cause.strerror or cause}") from cause


def write_atomically(file: Path, content: Content, *, root: Path | None = None, sync: bool = True) -> None:
    """A reader, or the next run after a crash, finds the old content or the new, never half of it.

    With `root`, a folder that the user named, `file` is a path that mill chose below it: links between the two are refused,
    and a link at the path is replaced. Without, the user named the file itself: a link is followed, and a pipe or a device
    is written to directly.

    Text is written as UTF-8; a lone surrogate becomes `\\udXXX`, which JSON readers take. `content` may also be bytes, or a
    function that writes to an open file. Without `sync` the file may be lost when the machine stops, never torn.
    """
    draft: Path | None = None
    try:
        if root is None:
            file = file.resolve()
            if file.exists() and not file.is_file():
                with file.open("wb") as handle:
                    _fill(handle, content)
                return
        make_folder(file.parent, root=root)
        draft = file.with_name(f".{unique_name()}")
        with draft.open("xb", buffering=BUFFER) as handle:
            _fill(handle, content)
            if sync:
                handle.flush()
                os.fsync(handle.fileno())
        draft.replace(file)
    except BaseException as error:
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.unlink()  # a full disk needs the space
        if not isinstance(error, (OSError, ValueError)):
            raise
        raise RunError(f"cannot write {file}: {getattr(error, 'strerror', None) or error}") from error


def _fill(handle: IO[bytes], content: Content) -> None:
    if callable(content):
        content(handle)
    else:
        handle.write(utf8(scrub(content)) if isinstance(content, str) else content)


def make_folder(folder: Path, *, root: Path | None) -> None:
    """A folder below `root` and those above it, none of them a link."""
    if root is not None:
        refuse_links(folder, root)
    folder.mkdir(parents=True, exist_ok=True)


def refuse_links(folder: Path, root: Path) -> None:
    """Raise where a folder below `root` is a link: its author would choose where mill writes."""
    while folder != root:
        if folder.is_symlink():
            raise RunError(f"{folder} is a link: mill does not write through links inside a result folder")
        if folder == folder.parent:
            raise RunError(f"{folder} is not below {root}")
        folder = folder.parent


def write_json(file: Path, data: Any, *, root: Path | None, indent: int | None = None) -> None:
    write_atomically(file, json_text(data, indent=indent) + "\n", root=root)


def json_text(data: Any, *, indent: int | None = None) -> str:
    """JSON that every reader accepts: NaN and infinity are strings, and types that JSON does not have are text."""
    try:
        try:
            return json.dumps(data, ensure_ascii=False, default=str, allow_nan=False, indent=indent)
        except ValueError:
            return json.dumps(_finite(data), ensure_ascii=False, default=str, indent=indent)
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{type(data).__name__} cannot be written as JSON: {error}") from error


_encode_doc = json.JSONEncoder(sort_keys=True, default=repr).encode


def hash_docs(docs: Iterable[Mapping[str, Any]]) -> str:
    """A digest of rows of data, in order, whatever the order of the keys of each."""
    digest = hashlib.blake2b(digest_size=16)
    for doc in docs:
        digest.update(_encode_doc(doc).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return encode_float(data) if isinstance(data, float) else data


def unique_name() -> str:
    """A file name that no other process uses, on any machine; it begins with the time, so that later ones are greater."""
    now = time.time_ns()
    started = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now // 10**9))}.{now % 10**9 // 1000:06}"
    return f"{started}-{slug(socket.gethostname())}-{os.getpid()}-{secrets.token_hex(4)}"


def time_of(name: str) -> float:
    """When a `unique_name` was made, in seconds since the epoch; 0 of another name."""
    try:
        return float(calendar.timegm(time.strptime(name[:15], "%Y%m%dT%H%M%S")))
    except ValueError:
        return 0.0


def slug(text: str) -> str:
    """A name that is safe as a file name anywhere."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", text).strip("._") or "_"


def short_name(name: str) -> str:
    """A part of a file name: a long one is cut, with a digest of the whole, so that no two become one."""
    encoded = utf8(name)
    if len(encoded) <= LONGEST_NAME:
        return name
    return f"{encoded[:LONGEST_NAME].decode(errors='ignore')}-{hashlib.blake2b(encoded, digest_size=4).hexdigest()}"


def cache_folder() -> Path:
    """The folder of files that mill can recreate: MILL_CACHE, or a folder in the user's cache."""
    given = os.environ.get("MILL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mill"


def check_path(text: str) -> None:
    """Refuse what cannot be a path on this system: too long, a loop of links, with a NUL. It need not exist."""
    try:
        Path(text).expanduser().stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{text[:60]!r}{'...' * (len(text) > 60)} is not a path: {why}") from error


def is_file(text: str, *, folder: bool = False) -> bool:
    """Whether a text names an existing file, or a `folder`; one that cannot be a path does not."""
    try:
        return Path(text).is_dir() if folder else Path(text).is_file()
    except (OSError, ValueError):
        return False


def encode_float(value: float) -> float | str:
    """JSON has no NaN or infinity: those are written as strings that `float()` reads back."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
