"""Makes untrusted text (model output, server messages, names in files) safe to print on a terminal or in a log.

All output of mill goes through `echo`, or through the tables and the console of `mill.report.tables`.
"""

from __future__ import annotations

import re
import sys

# C0 and C1 controls but tab and newline, DEL, marks that change the text direction, and lone surrogates.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_MESSAGE = 2000  # characters
_BLANKS = re.compile(r"\s+")


def utf8(text: str) -> bytes:
    """UTF-8 of any text; a lone surrogate, which has none, as `\\udXXX`."""
    return text.encode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """The text with every control character shown as an escape (`\\x1b`), so that none reaches the terminal."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}", text)


def one_line(text: str) -> str:
    """`printable` text in a single line."""
    return printable(_BLANKS.sub(" ", text).strip())


def message_line(text: str) -> str:
    """`one_line` for messages; a long one, such as one that names what is much too long, is cut."""
    line = one_line(text)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]} [...]"


def echo(text: str, *, err: bool = False) -> None:
    """Print one line in one write, since other processes may write too. A line break in the text becomes a space."""
    stream = sys.stderr if err else sys.stdout
    stream.write(printable(" ".join(text.splitlines())) + "\n")
    stream.flush()


def echo_data(text: str) -> None:
    """Print a document (CSV, JSON, Markdown): unchanged to a file or a pipe, without control characters to a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else utf8(text).decode())
    sys.stdout.flush()
