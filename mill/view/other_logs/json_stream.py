"""Reads a large JSON object member by member, and a list in it element by element."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mill.api.errors import RunError
from mill.api.storage import MOST_LINE

_CHUNK = 1 << 20
_BLANKS = " \t\r\n"


class JsonStream:
    """A JSON object in a file of any size. One member, or one element of a list, is in memory at a time; it may be as
    large as MOST_LINE."""

    def __init__(self, handle: IO[bytes], file: Path) -> None:
        self._handle, self._file = handle, file
        self._text, self._position, self._ended = "", 0, False
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()

    def members(self) -> Iterator[str]:
        """The names of the object's members. The caller reads each value, by `value` or `elements`, before the next."""
        self._expect("{")
        if self._skip("}"):
            return
        while True:
            name, _ = self.value()
            if not isinstance(name, str):
                raise self._invalid("a name is needed")
            self._expect(":")
            yield name
            if not self._skip(","):
                self._expect("}")
                return

    def elements(self) -> Iterator[tuple[Any, str]]:
        """The elements of a list, each as a value and as its text; nothing of a value that is no list."""
        if self._next() != "[":
            self.value()
            return
        self._expect("[")
        if self._skip("]"):
            return
        while True:
            yield self.value()
            if not self._skip(","):
                self._expect("]")
                return

    def value(self) -> tuple[Any, str]:
        """The next value and its text. It is parsed again with twice the text where it does not end yet."""
        self._next()
        while True:
            try:
                found, end = self._json.raw_decode(self._text, self._position)
                if end < len(self._text) or self._ended:  # a number may continue
                    text = self._text[self._position : end]
                    self._position = end
                    return found, text
            except RecursionError as error:
                raise self._invalid("it is nested too deeply") from error
            except ValueError as error:
                if self._ended or len(self._text) - self._position > MOST_LINE:
                    raise self._invalid(str(error)) from error
            self._more()

    def _next(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self._position < len(self._text) and self._text[self._position] in _BLANKS:
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._more()

    def _skip(self, character: str) -> bool:
        found = self._next() == character
        self._position += found
        return found

    def _expect(self, character: str) -> None:
        if not self._skip(character):
            raise self._invalid(f"{character!r} is needed, not {self._next()!r}")

    def _more(self) -> None:
        rest = self._text[self._position :]
        try:
            raw = self._handle.read(max(_CHUNK, len(rest)))
            self._ended = not raw
            self._text, self._position = rest + self._utf8.decode(raw, final=self._ended), 0
        except OSError as error:
            raise RunError(f"cannot read {self._file}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self._invalid("it is not UTF-8") from error

    def _invalid(self, why: str) -> RunError:
        return RunError(f"{self._file} is not valid JSON: {' '.join(why.split())[:200]}")
