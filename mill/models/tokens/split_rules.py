"""Whether the rules by which a tokenizer normalizes and splits text look across a cut: from a newline to the letter or digit
after it.

Rules with patterns may depend on words that no sample of texts shows, so they are read: what is not understood counts as a
rule that looks across.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_LETTERS = string.ascii_letters + string.digits
_LOCAL_NORMALIZERS = {
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "Precompiled", "Prepend"),
    *("BertNormalizer", "ByteLevel"),
}
_LOCAL_SPLITS = {
    *("ByteLevel", "Metaspace", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"),
    "CharDelimiterSplit",
}
_WORD_SPLITS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_WORD_MODELS = {"WordPiece", "WordLevel"}  # which take a whole word, or none of it
_ONE_AHEAD = (r"(?!\S)", r"(?=\S)", r"(?!\s)", r"(?=\s)")
_GROUPS = ("(?:", "(?i:", "(?>")
_CLASSES = "sSdDwWrntfv"


def rules_are_local(tokenizer: Any) -> bool:
    """True also for a tokenizer in Python, whose rules cannot be read."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return True
    try:
        normalizer, splitter = (_state(getattr(backend, name)) for name in ("normalizer", "pre_tokenizer"))
        splits = _flat(splitter, "pretokenizers")
        if type(backend.model).__name__ in _WORD_MODELS and not any(one["type"] in _WORD_SPLITS for one in splits):
            return False
        return all(map(_normalizes_locally, _flat(normalizer, "normalizers"))) and all(map(_splits_locally, splits))
    except Exception:  # parts in Python have no state
        return False


def _state(part: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(part.__getstate__()) if part is not None else {"type": "Sequence"}
    return read


def _flat(part: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    if part["type"] != "Sequence":
        return [part]
    return [one for inner in part.get(name, ()) for one in _flat(inner, name)]


def _normalizes_locally(part: Mapping[str, Any]) -> bool:
    """A replacement may leave something else where a text is cut, so it must not touch newlines at all."""
    if part["type"] != "Replace":
        return part["type"] in _LOCAL_NORMALIZERS
    pattern, content = part["pattern"], part["content"]
    if "\n" in content:
        return False
    return "\n" not in pattern["String"] if "String" in pattern else not _reach(pattern["Regex"]).newline


def _splits_locally(part: Mapping[str, Any]) -> bool:
    if part["type"] != "Split":
        return part["type"] in _LOCAL_SPLITS
    pattern = part["pattern"]
    if "String" in pattern:
        text = pattern["String"]
        return not any(before == "\n" and after in _LETTERS for before, after in pairwise(text))
    return not _reach(pattern["Regex"]).crosses


@dataclass(frozen=True)
class _Reach:
    """Whether a match may have a newline, whether it may have a letter or digit, and whether that may follow a newline."""

    newline: bool = False
    letter: bool = False
    crosses: bool = False

    def then(self, other: _Reach) -> _Reach:
        crosses = self.crosses or other.crosses or (self.newline and other.letter)
        return _Reach(self.newline or other.newline, self.letter or other.letter, crosses)

    def either(self, other: _Reach) -> _Reach:
        return _Reach(self.newline or other.newline, self.letter or other.letter, self.crosses or other.crosses)


class _Unknown(Exception):
    """A pattern with more than characters, classes, groups, quantifiers, and a lookahead of one character."""


_CROSSING = _Reach(newline=True, letter=True, crosses=True)


def _reach(pattern: str) -> _Reach:
    try:
        found, end = _alternatives(pattern, 0)
    except (_Unknown, IndexError, ValueError):
        return _CROSSING
    return found if end == len(pattern) else _CROSSING


def _alternatives(pattern: str, at: int) -> tuple[_Reach, int]:
    """Of the alternatives from here to the end of their group."""
    total, sequence = _Reach(), _Reach()
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            total, sequence = total.either(sequence), _Reach()
            at += 1
            continue
        one, at = _atom(pattern, at)
        repeats, at = _quantifier(pattern, at)
        sequence = sequence.then(one.then(one) if repeats else one)
    return total.either(sequence), at


def _atom(pattern: str, at: int) -> tuple[_Reach, int]:
    for ahead in _ONE_AHEAD:
        if pattern.startswith(ahead, at):
            return _Reach(), at + len(ahead)
    if pattern[at] == "(":
        opened = next((one for one in _GROUPS if pattern.startswith(one, at)), "(")
        if opened == "(" and pattern.startswith("(?", at):
            raise _Unknown(pattern)
        found, end = _alternatives(pattern, at + len(opened))
        if pattern[end] != ")":
            raise _Unknown(pattern)
        return found, end + 1
    if pattern[at] in "^$?*+{":
        raise _Unknown(pattern)
    end = _class_end(pattern, at) if pattern[at] == "[" else _escape_end(pattern, at) if pattern[at] == "\\" else at + 1
    return _characters(pattern[at:end]), end


def _class_end(pattern: str, at: int) -> int:
    """After the bracket that closes a class, which may have classes inside."""
    depth, index = 0, at
    while True:
        if pattern[index] == "\\":
            index += 1
        elif pattern[index] == "[":
            depth += 1
        elif pattern[index] == "]":
            depth -= 1
            if not depth:
                return index + 1
        index += 1


def _escape_end(pattern: str, at: int) -> int:
    letter = pattern[at + 1]
    if letter in "pP" and pattern[at + 2] == "{":
        return pattern.index("}", at) + 1
    if letter in _CLASSES or not letter.isalnum():
        return at + 2
    raise _Unknown(pattern)  # anchors, references and others


def _characters(text: str) -> _Reach:
    """Of a pattern for one character."""
    import regex  # type: ignore[import-untyped, unused-ignore]  # a dependency of transformers

    try:
        one = regex.compile(text, regex.VERSION1)
    except regex.error as error:
        raise _Unknown(text) from error
    return _Reach(one.fullmatch("\n") is not None, any(map(one.fullmatch, _LETTERS)))


def _quantifier(pattern: str, at: int) -> tuple[bool, int]:
    """Whether what is before may be there more than once, and where the pattern continues."""
    if at == len(pattern) or pattern[at] not in "?*+{":
        return False, at
    repeats, end = pattern[at] != "?", at + 1
    if pattern[at] == "{":
        end = pattern.index("}", at) + 1
        repeats = pattern[at + 1 : end - 1] not in ("0", "1", "0,1", "1,1", ",1")
    return repeats, end + (pattern[end : end + 1] in ("?", "+"))
