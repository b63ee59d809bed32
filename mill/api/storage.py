"""Reading and writing files in folders that others may have filled: no link is followed, no device is read, and a file is
whole or not there."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import stat
import time
from pathlib import Path

from mill.api.errors import MillError, RunError

MOST_BYTES = 1 << 30  # of one file that is read as a whole


def read_bytes(file: Path, error: type[MillError] = RunError) -> bytes:
    """The content of a regular file. A pipe or a device (`/dev/zero` behind a link) is refused instead of read for ever.

    Raises FileNotFoundError where there is none.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe waits for its writer
        with os.fdopen(descriptor, "rb") as handle:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise error(f"{file} is not a regular file")
            if status.st_size > MOST_BYTES:
                raise error(f"{file} is larger than {MOST_BYTES >> 30} GiB")
            return handle.read()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as cause:
        raise error(f"cannot read {file}: {getattr(cause, 'strerror', None) or cause}") from cause


def write_atomically(file: Path, text: str, *, root: Path | None = None) -> None:
    """A reader, or the next run after a crash, finds the old content or the new, never half of it.

    With `root`, the folder that a person named, `file` is one that mill chose below it: links between the two are refused,
    and a link in the place of the file is replaced. Without, the person named the file itself: a link is followed, and what
    is no regular file (a pipe, a device) is written to as it is.

    The text is written as UTF-8; a lone surrogate becomes `\\udXXX`, which every JSON reader takes.
    """
    content = text.encode("utf-8", "backslashreplace")
    draft: Path | None = None
    try:
        if root is None:
            file = file.resolve()
            if file.exists() and not file.is_file():
                file.write_bytes(content)
                return
        else:
            refuse_links(file.parent, root)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{unique_name()}")
        with draft.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        draft.replace(file)
    except OSError as error:
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.unlink()  # a disk that is full needs its room
        raise RunError(f"cannot write {file}: {error.strerror or error}") from error


def refuse_links(folder: Path, root: Path) -> None:
    """Raise where a folder below `root` is a link: whoever made it chose where mill would write."""
    while folder != root:
        if folder.is_symlink():
            raise RunError(f"{folder} is a link: mill does not write through links inside a result folder")
        if folder == folder.parent:
            raise RunError(f"{folder} is not below {root}")
        folder = folder.parent


def unique_name() -> str:
    """A file name that no other process takes, on this machine or another; it begins with the time, for people."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{slug(socket.gethostname())}-{os.getpid()}-{secrets.token_hex(4)}"


def slug(text: str) -> str:
    """A name that is safe as a file name anywhere."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", text).strip("._") or "_"
