"""The names of columns in data files. One that looks like a known name is refused: ignored, it would change what a file
runs as."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

from mill.api.errors import DataError
from mill.api.message import MEDIA_KINDS

QUESTION = ("question", "prompt")
OPTIONAL = ("answer", "choices", "id", "category", "system", *MEDIA_KINDS, "extract", "max_tokens")
CHOICE_COLUMN = re.compile(r"choice_([a-z])")
_INPUTS = (*QUESTION, "text")
_KNOWN = (*_INPUTS, *OPTIONAL)
_SYNONYMS = {
    "choices": ("option", "options", "alternatives"),
    "answer": ("target", "gold", "goldanswer", "correctanswer", "answerkey", "referenceanswer", "expectedanswer"),
}
_ONE_CHOICE = re.compile(r"(?!(choice|option)s$)(choice|option)s?([a-z]|\d+)")
_CUTOFF, _SHORTEST = 0.82, 5  # below these, names are similar by chance: extra and extract, ids and id


def check_names(name: str, columns: Sequence[str]) -> None:
    """Refuse choices in two forms, and ignored columns that look like a known one that the file does not have."""
    single = [column for column in columns if CHOICE_COLUMN.fullmatch(column)]
    if "choices" in columns and single:
        raise DataError(f"{name} has both choices and {single[0]}: keep one")
    others = {column: _plain(column) for column in columns if column not in _KNOWN and column not in single}
    is_text = "text" in columns
    if "choices" not in columns and not is_text:
        _refuse_choice_columns(name, others, single)
    absent = {known for known in OPTIONAL if known not in columns} - ({"choices"} if single else set())
    similar = {column: known for column, plain in others.items() if (known := _similar(plain, absent, is_text))}
    if similar:
        hint = ", ".join(f"{known} for {column!r}" for column, known in list(similar.items())[:5])
        raise DataError(f"{name}: did you mean {hint}? Rename or remove a column that is not meant as one of these")


def misspelled_inputs(columns: Sequence[str]) -> dict[str, str]:
    """Columns that look like the one with the question or the text."""
    close = {column: difflib.get_close_matches(_plain(column), _INPUTS, n=1) for column in columns[:100]}
    return {column: known[0] for column, known in close.items() if known and column != known[0]}


def _plain(column: str) -> str:
    return re.sub(r"[\s_-]", "", column).lower()


def _similar(plain: str, absent: Collection[str], is_text: bool) -> str:
    """The absent known name that a column looks like. In a file of documents a synonym is an ordinary column."""
    for name in sorted(absent):
        known = _plain(name)
        if plain == known or (not is_text and plain in _SYNONYMS.get(name, ())):
            return name
        near = len(plain) >= _SHORTEST and abs(len(plain) - len(known)) <= 1 and len({*known} - {*plain}) <= 2
        if near and difflib.SequenceMatcher(None, plain, known).ratio() >= _CUTOFF:
            return name
    return ""


def _refuse_choice_columns(name: str, others: dict[str, str], single: Sequence[str]) -> None:
    choices = [column for column, plain in others.items() if _ONE_CHOICE.fullmatch(plain)]
    letters = [column for column, plain in others.items() if plain in tuple("abcdefgh")]
    if not single and len(letters) > 1:
        choices += letters
    if choices:
        listed = ", ".join(choices[:4])
        raise DataError(
            f"{name} has the columns {listed}: name the choices choice_a, choice_b, ..., or use one column choices"
        )
