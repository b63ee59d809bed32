"""How the cells of a data file are read: choices, the answer among them, how answers are extracted, and media.

Choices are a list; in a text cell a JSON list (`["red", "blue"]`) or texts separated by `|`; or one column each (`choice_a`,
`choice_b`, ...). The answer to a choice question is the text of a choice, its letter, or its index from 0: one of these for
the whole file. A file that can be read in two ways that disagree is refused.

A column whose name looks like a known one is refused: ignored, it would change what a file runs as.
"""

from __future__ import annotations

import difflib
import io
import json
import re
import string
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, MissingValue
from mill.api.message import MEDIA_KINDS, VIDEO, Blob, Media
from mill.metrics import extract
from mill.support.terminal import describe
from mill.tasks.data import MEDIA_SUFFIXES, Row

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
    absent = {known for known in OPTIONAL if known not in columns} - ({"choices"} if single else set())
    similar = {column: known for column, plain in others.items() if (known := _similar(plain, absent, is_text))}
    if "choices" not in columns and not is_text:
        letters = [column for column, plain in others.items() if plain in tuple("abcdefgh")]
        choices = letters if len(letters) > 1 and not single else []
        choices += [column for column, plain in others.items() if _ONE_CHOICE.fullmatch(plain)]
        similar = dict.fromkeys(choices[:1], "choice_a, choice_b, ...") or similar
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
    known = {_plain(name): name for name in absent}
    synonyms = (name for name in absent if not is_text and plain in _SYNONYMS.get(name, ()))
    near = [name for name in known if len(plain) >= _SHORTEST and abs(len(plain) - len(name)) <= 1]
    close = difflib.get_close_matches(plain, near, n=1, cutoff=_CUTOFF)
    return known.get(plain) or next(synonyms, "") or (known[close[0]] if close else "")


LETTERS = string.ascii_uppercase
INDICES = "indices from 0"


def is_missing(value: Any) -> bool:
    """None, and the NaN that data frames write for it."""
    return value is None or (isinstance(value, float) and value != value)


def decoded(value: Any, where: str) -> Any:
    """A cell of a binary Parquet column as text, and a decimal as a number; lists and structs item by item."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{where} is binary and not UTF-8 text: {error.reason}") from error
    if isinstance(value, list):
        return [decoded(item, where) for item in value]
    if isinstance(value, dict):
        return {key: decoded(item, where) for key, item in value.items()}
    return value


def optional_text(row: Row, column: str, where: str) -> str:
    """The text of an optional column; empty where the row has none."""
    value = row.get(column)
    if is_missing(value):
        return ""
    if isinstance(value, (str, int, float, bool)):
        return str(value).strip() if column in ("id", "category") else str(value)
    raise DataError(f"{where}: {column} is a {type(value).__name__}, not text")


def read_choices(row: Row, where: str) -> list[str]:
    """The choices of a row; at least two, none empty, none twice."""
    if "choices" in row:
        choices = _listed_choices(row["choices"], where)
    else:
        choices = _column_choices(row, where)
    texts = [_choice_text(choice, where) for choice in choices]
    if len(texts) < 2:
        raise DataError(f"{where} has {len(texts)} choices: at least 2 are needed, as a JSON list or separated by |")
    if len(texts) > len(LETTERS):
        raise DataError(f"{where} has {len(texts)} choices: at most {len(LETTERS)} are possible")
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise DataError(f"{where} has the choice {twice[:60]!r} twice")
    return texts


def _listed_choices(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            hint = 'write ["x", "y"], with double quotes, or x|y'
            raise DataError(f"{where}: choices is not a JSON list: {str(error)[:100]}; {hint}") from error
    if isinstance(value, str):
        return [part.strip() for part in value.split("|")] if value.strip() else []
    if not isinstance(value, (list, tuple)):
        kind = "missing" if is_missing(value) else f"a {type(value).__name__}"
        raise DataError(f"{where}: choices is {kind}, not a list")
    return value


def _column_choices(row: Row, where: str) -> list[Any]:
    """choice_a, choice_b, ...; a row may have fewer than the others, but none may be left out in between."""
    names = sorted(name for name in row if CHOICE_COLUMN.fullmatch(name))
    given = [name for name in names if not is_missing(row[name]) and row[name] != ""]
    for index, name in enumerate(given):
        if name != f"choice_{LETTERS[index].lower()}":
            raise DataError(f"{where} has {name} and no choice_{LETTERS[index].lower()}")
    return [row[name] for name in given]


def _choice_text(choice: Any, where: str) -> str:
    if isinstance(choice, bool) or not isinstance(choice, (str, int, float)):
        raise DataError(f"{where}: a choice is a {type(choice).__name__}, not text")
    text = str(choice)
    if not text.strip():
        raise DataError(f"{where} has an empty choice")
    return text


def _by_text(answer: Any, choices: Sequence[str]) -> int | None:
    if isinstance(answer, bool):  # JSON's true is the choice True or Yes
        words = ("true", "yes") if answer else ("false", "no")
        named = [index for index, choice in enumerate(choices) if choice.strip().lower() in words]
        return named[0] if len(named) == 1 else None
    return choices.index(str(answer)) if str(answer) in choices else None


def _by_letter(answer: Any, choices: Sequence[str]) -> int | None:
    text = answer.strip().upper() if isinstance(answer, str) else ""
    index = LETTERS.find(text) if len(text) == 1 else -1
    return index if 0 <= index < len(choices) else None


def _by_index(answer: Any, choices: Sequence[str]) -> int | None:
    if isinstance(answer, bool):
        return None
    if isinstance(answer, float) and answer.is_integer():  # an integer column with nulls, as pandas writes it
        answer = int(answer)
    if not isinstance(answer, (int, str)) or not re.fullmatch(r"\d{1,2}", str(answer).strip()):
        return None
    return int(answer) if int(answer) < len(choices) else None


_READINGS: Mapping[str, Callable[[Any, Sequence[str]], int | None]] = {
    "texts": _by_text,
    "letters": _by_letter,
    INDICES: _by_index,
}


def right_choices(answers: Sequence[Any], choices: Sequence[Sequence[str]], name: str) -> tuple[str, list[int]]:
    """How the answers of a file name a choice, and the index of the right one in each row."""
    readings = {
        how: [read(answer, given) for answer, given in zip(answers, choices, strict=True)] for how, read in _READINGS.items()
    }
    fitting = {how: indices for how, indices in readings.items() if None not in indices}
    if not fitting:
        raise DataError(_no_reading(answers, choices, readings, name))
    how, indices = next(iter(fitting.items()))
    for other, others in fitting.items():
        for number, (first, second) in enumerate(zip(indices, others, strict=True), 1):
            if first != second:
                raise DataError(
                    f"{name}: answers can be read as {how} or as {other}, which disagree in row {number} "
                    f"({str(answers[number - 1])[:60]!r}): write the text of the choice"
                )
    return how, [index for index in indices if index is not None]


def _no_reading(
    answers: Sequence[Any], choices: Sequence[Sequence[str]], readings: Mapping[str, Sequence[int | None]], name: str
) -> str:
    """The row that spoils the reading which fits the most rows."""
    how, indices = max(readings.items(), key=lambda reading: sum(index is not None for index in reading[1]))
    row = indices.index(None)
    answer, given = f"{name}, row {row + 1}: the answer {str(answers[row])[:60]!r}", " | ".join(choices[row])[:120]
    if any(index is not None for index in indices):
        return f"{answer} is not among the {how} of the choices, as the other answers are; the choices are {given}"
    return f"{answer} is neither the text nor the letter nor the index (from 0) of a choice; the choices are {given}"


def is_number(answer: Any) -> bool:
    """Whether a gold answer reads as a number: .csv has only texts, so 5 and "5" are the same."""
    if isinstance(answer, str):
        return extract.is_number(answer)
    return isinstance(answer, (int, float)) and not isinstance(answer, bool)


def text_extractor(answers: Sequence[Any]) -> str:
    """How answers that are texts and no numbers are extracted, the same for all of a file. Beside numbers, letters are texts
    like others."""
    texts = [answer.strip() for answer in answers if isinstance(answer, str) and not is_number(answer)]
    if not texts:
        return "line"
    for extractor, words in (("yes_no", ("yes", "no")), ("true_false", ("true", "false"))):
        if all(text.lower() in words for text in texts):
            return extractor
    letters = all(text in LETTERS[:5] and len(text) == 1 for text in texts)
    return "choice" if letters and not any(map(is_number, answers)) else "line"


def read_media(row: Row, kind: str, folder: Path, where: str) -> Media | None:
    """The image, video or audio of a row: a path relative to the file and below its folder, or bytes of a Parquet column.

    None where the row has none; a null among bytes is found by `is_null`.
    """
    value = row.get(kind)
    if is_missing(value) or value == "":
        return None
    if isinstance(value, (Blob, bytes)):
        return Media(kind, value)
    if not isinstance(value, str):
        raise DataError(f"{where}: {kind} is a {type(value).__name__}, not a path")
    path, shown = folder / value, f"{kind} {value[:80]!r}"
    if "://" in value or value.startswith("data:"):
        raise DataError(f"{where}: {shown} is an address; give a path relative to the file")
    suffix = path.suffix.lower()
    if MEDIA_SUFFIXES.get(suffix) != kind and (kind, suffix) != (VIDEO, ".gif"):
        raise DataError(f"{where}: {shown} does not have the suffix of {kind} files")
    try:
        inside = not Path(value).is_absolute() and path.resolve().is_relative_to(folder.resolve())
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL character, a name that is too long
        raise DataError(f"{where}: {shown} is no path: {type(error).__name__}") from error
    if not inside:
        raise DataError(f"{where}: {shown} is outside of the folder of the file; give a path relative to the file")
    if not is_file:
        raise DataError(f"{where}: {kind} {str(path)[:200]!r} does not exist")
    return Media(kind, path)


def is_null(media: Media, where: str) -> bool:
    """Whether media are a null cell of a Parquet column: its bytes are read only here."""
    try:
        if isinstance(media.source, Blob):
            media.source.read()
    except MissingValue:
        return True
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return False


def check_image(image: Media, where: str) -> None:
    """Refuse an image that Pillow cannot identify, before a model is loaded. Pixels are decoded only when they are sent."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(image.encoded() or b"")) as opened:
                opened.verify()
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    except Exception as error:  # Pillow raises many types for damaged files
        reason = "Pillow does not know its format" if isinstance(error, UnidentifiedImageError) else describe(error)
        raise DataError(f"{where}: the image {image.name[:200]!r} cannot be read: {reason}") from error
