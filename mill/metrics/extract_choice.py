"""Which of the choices listed as `A. ...` an answer names. docs/multiple-choice.md has the rules."""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections.abc import Sequence

from mill.metrics.extract import is_right, is_unspaced, normal

_LETTERS = string.ascii_uppercase
_NOTHING, _NO_CHOICE = -1, -2  # nothing is named here; or something that is not one of the choices, such as two letters

# Repetitions are bounded, so that an answer of blanks or asterisks takes time linear in its length.
_WORD = r"(?:answer|(?:correct|right|best)[ ](?:option|choice|letter))"
_VERB = r"(?:[\s*_`]{0,4}\b(?:is|was|would[ ]be|should[ ]be|must[ ]be)\b)?"
_ADVERB = r"(?:(?:indeed|therefore|thus|clearly|probably|most[ ]likely|likely|definitely|actually|both|either)[ ])?"
_OPENING = (
    rf"(?:[\s*_`$(\[{{\"'<]|\\[(\[]){{0,8}}(?:\\[a-z]{{4,8}}\{{)?{_ADVERB}(?:(?:option|choice|letter)[ ])?[*(\[]{{0,3}}"
)
_MARK = re.compile(rf"(?:\\boxed\{{|\b{_WORD}\b{_VERB}[\s*_`]{{0,4}}[:=]?){_OPENING}", re.IGNORECASE)
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
        (_named_at(plain, mark.end(), texts) for mark in list(_MARK.finditer(plain))[-_MOST_MARKS:]),
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
