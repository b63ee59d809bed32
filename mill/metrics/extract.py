"""Reading the answer out of a text: the number, letter, word or value by which texts are compared."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

# Repetitions are bounded, so that an answer of nothing but blanks or commas costs no more than its length.
_UNSIGNED = r"(?:(?:\d{1,3}(?:,\d{3}){1,15}(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_TIMES_TEN = r"\s{0,2}[xX\u00d7*\u00b7]\s{0,2}10\s{0,2}(?:\^|\*\*)\s{0,2}\{?"
_NUMBER = rf"(?:(?<![A-Za-z0-9_.)])[-+\u2212])?(?<![A-Za-z0-9_]){_UNSIGNED}(?:{_TIMES_TEN}[-+\u2212]?\d+)?"
_NUMBERS = re.compile(_NUMBER)
_POWER = re.compile(rf"{_TIMES_TEN}([-+]?\d+)$")
_EXPONENT = re.compile(r"[eE]|10\s{0,2}(?:\^|\*\*)")
_RAISED = re.compile("(?<=10)[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_MARK = r"(?:####|\\boxed\{|(?i:\banswer)(?:\s{1,4}is\b)?\s{0,4}[:=]?)[\s*$(\[`\"']{0,8}"
_MARKED_NUMBER = re.compile(rf"{_MARK}({_NUMBER})")
_MARKED_LETTER = re.compile(rf"{_MARK}(?:\\text\{{)?([A-E](?![A-Za-z])|[a-e](?=[).,\]}}]|\s{{0,4}}$))", re.MULTILINE)
_LETTER = re.compile(r"[(\[]([A-E])[)\]]|(?<![A-Za-z'])([A-E])(?=[.):,*`]|[ \t]{0,4}$)", re.MULTILINE)
_MARKED_WORD = re.compile(rf"{_MARK}(yes|no)\b", re.IGNORECASE)
_YES_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_ANSWER_IS = r"(?:final[ \t]{1,4})?answer[*_`]{0,3}[ \t]{0,4}(?:is)?[ \t]{0,4}[:=]\s{0,4}"
_MARKED_LINE = re.compile(rf"^[^\w\n]{{0,8}}{_ANSWER_IS}(\S.*)$", re.MULTILINE | re.IGNORECASE)
_MOST_STARTS = 64  # brackets from which a JSON value is tried to be read
_PLAIN_DIGITS = 40  # longer figures keep their exponent


def number(text: str) -> str | None:
    """A marked number (`#### 5`, `\\boxed{5}`, `answer is 5`), the last of them, else the last number of the text.

    Commas group thousands, as in 1,234.5. Equal values have one spelling: 5 and 5.0, 1e3 and 1000.
    """
    return _last_number(text, lambda written: True)


def plain_number(text: str) -> str | None:
    """A number that is written without an exponent: to repeat 4.5e3 from the prompt is not to write it out as 4500."""
    return _last_number(text, lambda written: not _EXPONENT.search(written))


def e_number(text: str) -> str | None:
    """A number that is written with an exponent."""
    return _last_number(text, lambda written: bool(_EXPONENT.search(written)))


def _last_number(text: str, accepts: Callable[[str], bool]) -> str | None:
    text = _RAISED.sub(lambda raised: "^" + unicodedata.normalize("NFKC", raised.group()), text)
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
    except ArithmeticError:  # an exponent that no number has
        return None
    if not value:
        return "0"
    return f"{value:f}" if abs(value.adjusted()) < _PLAIN_DIGITS else str(value)


def choice(text: str) -> str | None:
    """A marked letter (`answer is (B)`), the last of them, else the first that stands as one: (B), B. or B alone."""
    marked = _MARKED_LETTER.findall(text)
    if marked:
        return str(marked[-1]).upper()
    found = _LETTER.search(text)
    return (found.group(1) or found.group(2)) if found else None


def yes_no(text: str) -> str | None:
    found = _MARKED_WORD.findall(text)[-1:] or _YES_NO.findall(text)[:1]
    return str(found[0]).lower() if found else None


def json_value(text: str) -> str | None:
    """The first JSON object or array in the text, in one spelling: keys sorted, 5.0 as 5."""
    decoder = json.JSONDecoder()
    for start in list(re.finditer(r"[\[{]", text))[:_MOST_STARTS]:
        try:
            return spelled_json(decoder.raw_decode(text, start.start())[0])
        except (ValueError, RecursionError):
            continue
    return None


def spelled_json(value: Any) -> str:
    return json.dumps(_plain_numbers(value), sort_keys=True, ensure_ascii=False)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def line(text: str) -> str | None:
    """The line after an `Answer:`, else the first that is not empty, without case and punctuation."""
    marked = _MARKED_LINE.findall(text)
    lines = marked[-1:] or [one for one in text.splitlines() if normal(one)]
    return normal(lines[0]) or None if lines else None


def normal(text: str) -> str:
    """Words alone: case, punctuation and white space do not tell answers apart. Marks of Indic and other scripts stay."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = (char if unicodedata.category(char)[0] in "LMN" else " " for char in folded)
    return " ".join("".join(kept).split())


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "number": number,
    "plain_number": plain_number,
    "e_number": e_number,
    "choice": choice,
    "yes_no": yes_no,
    "json": json_value,
    "line": line,
}


def is_right(how: str, extracted: str | None, gold: Any) -> bool:
    """Whether an extracted answer is the gold one; a line is right if gold stands in it as whole words."""
    if extracted is None:
        return False
    if how == "json":
        return extracted == spelled_json(gold)
    if how == "line":
        wanted = normal(str(gold))
        return f" {wanted} " in f" {extracted} " or (_unspaced(wanted) and wanted in extracted)
    if how in ("number", "plain_number", "e_number"):
        return extracted == number(str(gold))
    return extracted.lower() == spelled_gold(gold)


def spelled_gold(gold: Any) -> str:
    """A letter or a word as suites may write it: `b`, `Yes`, or JSON's true."""
    if isinstance(gold, bool):
        return "yes" if gold else "no"
    return str(gold).strip().lower()


def _unspaced(text: str) -> bool:
    """Whether a text is of a script that puts no spaces between words."""
    return any(unicodedata.name(char, "").startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI")) for char in text)
