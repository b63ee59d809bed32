"""Extraction of the answer from a text: a number, letter, word, choice or JSON value."""

from __future__ import annotations

import functools
import itertools
import json
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

_LETTERS = string.ascii_uppercase
_NOTHING, _NO_CHOICE = -1, -2  # nothing is named here; or something that is not one of the choices, such as two letters

# Repetitions are bounded, so that an answer of blanks or asterisks takes time linear in its length.
_WORD = r"(?:answer|(?:correct|right|best)[ ](?:option|choice|letter))"
_VERB = r"(?:[\s*_`]{0,4}\b(?:is|was|would[ ]be|should[ ]be|must[ ]be)\b)?"
_ADVERB = r"(?:(?:indeed|therefore|thus|clearly|probably|most[ ]likely|likely|definitely|actually|both|either)[ ])?"
_OPENING = (
    rf"(?:[\s*_`$(\[{{\"'<]|\\[(\[]){{0,8}}(?:\\[a-z]{{4,8}}\{{)?{_ADVERB}(?:(?:option|choice|letter)[ ])?[*(\[]{{0,3}}"
)
_CHOICE_MARK = re.compile(rf"(?:\\boxed\{{|\b{_WORD}\b{_VERB}[\s*_`]{{0,4}}[:=]?){_OPENING}", re.IGNORECASE)
_MOST_MARKS = 64  # the last ones, of which the last that names something counts
_BOLD = re.compile(r"\*\*[ ]?[(\[]?(?=[A-Za-z][.):\]*])")
_ITEM = re.compile(r"[\s*_(\[>-]{0,8}([A-Za-z])[).:\]]")  # of a list, at the start of a line
_START = re.compile(r"[\s*_`$(\[{\"'<]{0,8}(?=[A-Za-z](?:[.):\]},;*`\"'\n]|[ ]{0,2}$|[ ]-))")
_SINGLE = re.compile(r"(?<![A-Za-z0-9_'\u2019])[A-Za-z](?![A-Za-z0-9_'\u2019])")
_AFTER_SMALL = re.compile(r"[).,:\]}*`\"']|\s{0,4}(?:\n|$)")
_WORDS = "AI"  # letters that are also words of English
_AFTER_WORD = re.compile(r"[ ](?![a-z])|[ ](?:is|was|because|since|as|and|or)\b")
_BEFORE_WORD = re.compile(r"\b(?:option|choice|letter)[ ][(\[]?$", re.IGNORECASE)
_NEGATED = re.compile(r"(?:\bnot|n't)[ ](?:option[ ])?[(\[]?$", re.IGNORECASE)
_ANOTHER = re.compile(
    r"[)\]*.]{0,3}\s{0,2}(?:,|/|&|\+|\band\b|\bor\b)\s{0,2}(?:option[ ])?[*(\[]{0,3}([A-Z])(?![A-Za-z0-9_'])"
)


def listed_choice(text: str, choices: Sequence[str]) -> int | None:
    """The index of the choice that an answer names by its letter or its text; None where it names none, or several."""
    plain = unicodedata.normalize("NFKC", text.rpartition("</think>")[2].partition("<think>")[0])
    texts = [_comparable(choice) for choice in choices]
    if texts.count(answer := normal(plain)) == 1 and answer:
        return texts.index(answer)
    plain = _without_list(plain)
    for found in (
        (_named_at(plain, mark.end(), texts) for mark in list(_CHOICE_MARK.finditer(plain))[-_MOST_MARKS:]),
        (_letter_at(plain, mark.end(), len(choices)) for mark in list(_BOLD.finditer(plain))[-_MOST_MARKS:]),
        (_letter_at(plain, mark.end(), len(choices)) for mark in (_START.match(plain),) if mark),
    ):
        named = [one for one in found if one != _NOTHING]
        if named:
            return named[-1] if named[-1] != _NO_CHOICE else None
    letters = _single_letters(plain, choices)
    if letters:
        return letters.pop() if len(letters) == 1 else None
    return _only_text(plain, texts)


def _comparable(choice: str) -> str:
    """The text of a choice as it is compared with an answer; empty where it is a letter, which an answer names as such."""
    text = normal(choice)
    return "" if text.upper() in tuple(_LETTERS) else text


def _without_list(text: str) -> str:
    """Without lines that list the choices again, or what the model takes for them: lines that follow each other, blank ones
    left aside, with letters that do. A single such line is an answer."""
    lines = text.split("\n")
    items = [(number, _ITEM.match(line)) for number, line in enumerate(lines) if line.strip()]
    listed = set()
    for (number, item), (following, next_item) in itertools.pairwise(items):
        if item and next_item and ord(next_item[1].upper()) == ord(item[1].upper()) + 1:
            listed |= {number, following}
    return "\n".join(line for number, line in enumerate(lines) if number not in listed)


def _named_at(text: str, start: int, texts: Sequence[str]) -> int:
    """The choice that is named where a mark ends: `B`, `b)`, or the text of a choice, which may start with a letter too."""
    longest = max(map(len, texts), default=0)
    words = normal(text[start : start + 2 * longest + 2].partition("\n")[0]) + " "
    fitting = {index: len(choice) for index, choice in enumerate(texts) if choice and words.startswith(f"{choice} ")}
    best = [index for index, length in fitting.items() if length == max(fitting.values())]
    return best[0] if len(best) == 1 else _letter_at(text, start, len(texts))


def _letter_at(text: str, at: int, count: int) -> int:
    """The choice of the letter at an index, where a mark or the start of the answer precedes it."""
    if not _SINGLE.match(text, at) or _is_word(text, at):
        return _NOTHING
    if text[at].islower() and not _AFTER_SMALL.match(text, at + 1):
        return _NOTHING
    letter = text[at].upper()
    another = _ANOTHER.match(text, at + 1)
    if another and another.group(1) != letter:
        return _NO_CHOICE
    index = _LETTERS.index(letter)
    return index if index < count else _NO_CHOICE


def _is_word(text: str, at: int) -> bool:
    """Whether a single letter is part of a word in another alphabet, an article or a pronoun."""
    if any(char.isalnum() and not is_unspaced(char) for char in (text[max(0, at - 1) : at], text[at + 1 : at + 2])):
        return True
    followed = text[at + 1 : at + 2] == " " and not _AFTER_WORD.match(text, at + 1)
    return text[at].upper() in _WORDS and followed and not _BEFORE_WORD.search(text[max(0, at - 12) : at])


def _single_letters(text: str, choices: Sequence[str]) -> set[int]:
    """The choices whose letters are alone anywhere: capitals, or small ones in brackets. `not B` does not count, nor does a
    letter in the text of a choice, such as that of vitamin C."""
    inside = [
        match.span()
        for choice in choices
        if _comparable(choice) and _SINGLE.search(choice)
        for match in re.finditer(re.escape(unicodedata.normalize("NFKC", choice).strip()), text, re.IGNORECASE)
    ]
    found = set()
    for match in _SINGLE.finditer(text):
        at, letter = match.start(), match.group().upper()
        in_brackets = text[max(0, at - 1) : at] in ("(", "[") and text[at + 1 : at + 2] in (")", "]")
        named = in_brackets or (match.group() == letter and not _is_word(text, at))
        if named and not _NEGATED.search(text[max(0, at - 12) : at]) and not any(a <= at < b for a, b in inside):
            found.add(_LETTERS.index(letter))
    return {index for index in found if index < len(choices)}


def _only_text(text: str, texts: Sequence[str]) -> int | None:
    """The choice whose text is in an answer, where that of no other is. One inside of a longer one does not count."""
    answer = normal(text)
    found = [index for index, choice in enumerate(texts) if choice and is_right("line", answer, choice)]
    longest = [index for index in found if not any(texts[index] in texts[other] for other in found if other != index)]
    return longest[0] if len(longest) == 1 else None


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
    return next(filter(None, map(normal, marked[-1:] or text.splitlines())), None)


class _Characters(dict[int, str]):
    """How `normal` writes a character, whatever its neighbours."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if category[0] in "LMN" or category == "Sc" or char in ".,":
            written = char
        elif category == "Pd" or char == "\u2212":
            written = "-"
        else:
            written = f" {char} " if category == "Sm" or char in "#%&@/^" else " "
        self[code] = written
        return written


_CHARACTERS = _Characters()


def normal(text: str) -> str:
    """The words, numbers and symbols of a text, without case and punctuation. Combining marks, as of Indic scripts, stay.

    Symbols are words of their own, so that `C++` is not `C` and `x = 5` is `x=5`. Signs, points and dashes at digits stay:
    `-5` is not `5`, `1/2` not `1.2`.
    """
    written = unicodedata.normalize("NFKC", text).casefold().translate(_CHARACTERS)
    return " ".join(_SYMBOL.sub(_beside_digits, written).split())


_SYMBOL = re.compile(r"[^\w\s]")


def _beside_digits(symbol: re.Match[str]) -> str:
    """A point, comma, dash or currency sign, which stays only beside digits; any other symbol as it is."""
    char, text = symbol.group(), symbol.string
    start = max(0, symbol.start() - 1)
    before, after = text[start : symbol.start()].isdigit(), text[symbol.end() : symbol.end() + 1].isdigit()
    if char in ".,":
        return char if before and after else " "
    if char == "-":
        return char if after else " "
    if unicodedata.category(char) == "Sc":
        return f" {char} " if after or (before and char != "$") else " "
    return char


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
