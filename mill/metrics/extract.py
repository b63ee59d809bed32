"""Extraction of the answer from a text: a number, letter, word or JSON value."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

# Repetitions are bounded, so that an answer of blanks or commas takes time linear in its length.
_UNSIGNED = r"(?:(?:\d{1,3}(?:,\d{3}){1,15}(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_TIMES_TEN = r"\s{0,2}[xX\u00d7*\u00b7]\s{0,2}10\s{0,2}(?:\^|\*\*)\s{0,2}\{?"
_NUMBER = rf"(?:(?<![A-Za-z0-9_.)])[-+\u2212])?(?<![A-Za-z0-9_]){_UNSIGNED}(?:{_TIMES_TEN}[-+\u2212]?\d+)?"
_NUMBERS = re.compile(_NUMBER)
_POWER = re.compile(rf"{_TIMES_TEN}([-+]?\d+)$")
_EXPONENT = re.compile(r"[eE]|10\s{0,2}(?:\^|\*\*)")
_RAISED = re.compile("(?<=10)[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_MARK = r"(?:####|\\boxed\{|(?i:\banswer)(?:\s{1,4}is\b)?\s{0,4}[:=]?)[\s*$(\[`\"']{0,8}"
_MARKED_NUMBER = re.compile(rf"{_MARK}({_NUMBER})")
_MARKED_WORD = re.compile(rf"{_MARK}(yes|no)\b", re.IGNORECASE)
_YES_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_MARKED_TRUTH = re.compile(rf"{_MARK}(true|false|yes|no)\b", re.IGNORECASE)
_TRUTH = re.compile(r"\b(true|false|yes|no)\b", re.IGNORECASE)
_ANSWER_IS = r"(?:final[ \t]{1,4})?answer[*_`]{0,3}[ \t]{0,4}(?:is)?[ \t]{0,4}[:=]\s{0,4}"
_MARKED_LINE = re.compile(rf"^[^\w\n]{{0,8}}{_ANSWER_IS}(\S.*)$", re.MULTILINE | re.IGNORECASE)
_MAX_STARTS = 64  # brackets at which a JSON value is tried
_PLAIN_DIGITS = 40  # longer numbers keep their exponent


def number(text: str) -> str | None:
    """The last marked number (`#### 5`, `\\boxed{5}`, `answer is 5`), else the last number of the text.

    Commas group thousands, as in 1,234.5. Equal values give equal strings: 5 and 5.0, 1e3 and 1000.
    """
    return _last_number(text, lambda written: True)


def plain_number(text: str) -> str | None:
    """A number that is written without an exponent: to repeat 4.5e3 from the prompt is not to write it out as 4500."""
    return _last_number(text, lambda written: not _EXPONENT.search(written))


def e_number(text: str) -> str | None:
    """A number that is written with an exponent."""
    return _last_number(text, lambda written: bool(_EXPONENT.search(written)))


def is_number(text: str) -> bool:
    """Whether a text is a number and nothing else, as `number` reads it."""
    return bool(_NUMBERS.fullmatch(_with_carets(text.strip())))


def _with_carets(text: str) -> str:
    return _RAISED.sub(lambda raised: "^" + unicodedata.normalize("NFKC", raised.group()), text)


def _last_number(text: str, accepts: Callable[[str], bool]) -> str | None:
    text = _with_carets(text)
    marked = [written for written in _MARKED_NUMBER.findall(text) if accepts(written)]
    found = marked or [written for written in _NUMBERS.findall(text) if accepts(written)]
    return _value(found[-1]) if found else None


def _value(written: str) -> str | None:
    plain = written.replace(",", "").replace("\u2212", "-")
    power = _POWER.search(plain)
    if power:
        plain = f"{plain[: power.start()]}e{power.group(1)}"
    try:
        value = Decimal(plain).normalize(Context(prec=len(plain) + 1))
    except ArithmeticError:  # an exponent out of range
        return None
    if not value:
        return "0"
    return f"{value:f}" if abs(value.adjusted()) < _PLAIN_DIGITS else str(value)


def choice(text: str, last: str = "E") -> str | None:
    """The last marked letter (`answer is (B)`), else the first that is written as a choice: (B), B. or B alone.

    Letters are A to `last`.
    """
    marked_letter, letter = _letter_patterns(last)
    marked = marked_letter.findall(text)
    if marked:
        return str(marked[-1]).upper()
    match = letter.search(text)
    return (match.group(1) or match.group(2)) if match else None


@functools.cache
def _letter_patterns(last: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    upper, lower = f"[A-{last}]", f"[a-{last.lower()}]"
    marked = rf"{_MARK}(?:\\text\{{)?({upper}(?![A-Za-z])|{lower}(?=[).,\]}}]|\s{{0,4}}$))"
    plain = rf"[(\[]({upper})[)\]]|(?<![A-Za-z'])({upper})(?=[.):,*`]|[ \t]{{0,4}}$)"
    return re.compile(marked, re.MULTILINE), re.compile(plain, re.MULTILINE)


def yes_no(text: str) -> str | None:
    words = _MARKED_WORD.findall(text)[-1:] or _YES_NO.findall(text)[:1]
    return str(words[0]).lower() if words else None


def true_false(text: str) -> str | None:
    """Yes is true and no is false."""
    words = _MARKED_TRUTH.findall(text)[-1:] or _TRUTH.findall(text)[:1]
    return {"yes": "true", "no": "false"}.get(words[0].lower(), words[0].lower()) if words else None


def json_value(text: str) -> str | None:
    """The first JSON object or array in the text, normalized: keys sorted, 5.0 as 5."""
    decoder = json.JSONDecoder()
    for start in list(re.finditer(r"[\[{]", text))[:_MAX_STARTS]:
        try:
            return spelled_json(decoder.raw_decode(text, start.start())[0])
        except (ValueError, RecursionError):
            continue
    return None


def spelled_json(value: Any) -> str:
    return json.dumps(_plain_numbers(value), sort_keys=True, ensure_ascii=False)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def line(text: str) -> str | None:
    """The line after the last `Answer:`, else the first that is not empty, without case and punctuation."""
    marked = _MARKED_LINE.findall(text)
    lines = marked[-1:] or [text_line for text_line in text.splitlines() if normal(text_line)]
    return normal(lines[0]) or None if lines else None


def normal(text: str) -> str:
    """The words, numbers and symbols of a text, without case and punctuation. Combining marks, as of Indic scripts, stay.

    Symbols are words of their own, so that `C++` is not `C` and `x = 5` is `x=5`. Signs, points and dashes at digits stay:
    `-5` is not `5`, `1/2` not `1.2`.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    chars = (_normal_char(char, folded[at - 1 : at], folded[at + 1 : at + 2]) for at, char in enumerate(folded))
    return " ".join("".join(chars).split())


def _normal_char(char: str, before: str, after: str) -> str:
    """A character of a text as `normal` writes it, between its neighbours."""
    category = unicodedata.category(char)
    if category[0] in "LMN":
        return char
    if category == "Pd" or char == "\u2212":
        return "-" if after.isdigit() else " "
    if char in ".,":
        return char if before.isdigit() and after.isdigit() else " "
    if category == "Sc":
        return f" {char} " if after.isdigit() or (before.isdigit() and char != "$") else " "
    return f" {char} " if category == "Sm" or char in "#%&@/^" else " "


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "number": number,
    "plain_number": plain_number,
    "e_number": e_number,
    "choice": choice,
    "yes_no": yes_no,
    "true_false": true_false,
    "json": json_value,
    "line": line,
}


def is_right(how: str, extracted: str | None, gold: Any) -> bool:
    """Whether an extracted answer equals gold; a line is right if it contains gold as whole words."""
    if extracted is None:
        return False
    if how == "json":
        return extracted == spelled_json(gold)
    if how == "line":
        wanted = normal(str(gold))
        return f" {wanted} " in f" {extracted} " or (is_unspaced(wanted) and wanted in extracted)
    if how in ("number", "plain_number", "e_number"):
        return extracted == number(str(gold))
    return extracted.lower() == spelled_gold(how, gold)


def spelled_gold(how: str, gold: Any) -> str:
    """A gold letter or word in lower case: `b`, `yes`, `true`. JSON's true is yes where yes or no is extracted."""
    if how == "yes_no" and isinstance(gold, bool):
        return "yes" if gold else "no"
    return str(gold).strip().lower()


def is_unspaced(text: str) -> bool:
    """Whether a text has characters of a script without spaces between words."""
    return any(unicodedata.name(char, "").startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI")) for char in text)
