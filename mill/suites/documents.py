"""The suite `long-context`: long documents with planted facts between sentences of filler, and questions about the facts.

The documents are made and not stored, as they are long and hold nothing worth reading.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from mill.suites.planted_facts import CATEGORIES, STEPS, Planted
from mill.suites.words import CORRESPONDENTS, FILLER, FOOD, GOODS, MONTHS, PEOPLE, PLACES, THINGS, TITLES, WEATHER, Chance

SEED = 20240229
WORDS = (300, 600, 1000, 1500, 2000, 2500)


def make_prompts() -> list[dict[str, Any]]:
    """Sixty prompts: every category with every length, in an order in which the first ten already have all of both."""
    return [_prompt(number) for number in range(len(CATEGORIES) * len(WORDS))]


def _prompt(number: int) -> dict[str, Any]:
    chance = Chance(SEED + number)
    row, column = divmod(number, len(CATEGORIES))
    load = (row + column) % len(WORDS)
    genre = GENRES[(2 * row + column) % len(GENRES)]
    category = tuple(CATEGORIES)[column]
    planted = CATEGORIES[category](chance, row, load)
    text = document(chance, genre, planted, WORDS[load])
    head = f"Read the {TITLES[genre]} between the two lines of dashes and answer the question below."
    prompt = f"{head}\n\n-----\n{text}\n-----\n\nQuestion: {planted.question}"
    brief = STEPS not in planted.question
    line: dict[str, Any] = {"id": f"long-context-{number + 1:03}", "category": category}
    line["prompt"] = f"{prompt}\nAnswer:" if brief else prompt
    line |= {"answer": planted.answer, "extract": planted.extract}
    return line | {"max_tokens": 48} if brief else line


GENRES = tuple(FILLER)
PAGE = 10  # sentences under one date


def filler(chance: Chance, genre: str, words: int) -> list[str]:
    """Sentences of about so many words, no two alike; every pattern is used before one comes again."""
    sentences: list[str] = []
    patterns: list[str] = []
    while words > 0:
        patterns = patterns or chance.shuffled(FILLER[genre])
        sentence = _sentence(chance, patterns.pop())
        if sentence not in sentences:
            sentences.append(sentence)
            words -= len(sentence.split()) + 1  # one for what the page adds: a time, a number, a date
    return sentences


def _sentence(chance: Chance, pattern: str) -> str:
    who, other = chance.several(PEOPLE, 2)
    place, there = chance.several(PLACES, 2)
    return pattern.format(
        who=who,
        other=other,
        place=place,
        there=there,
        thing=chance.pick(THINGS),
        goods=chance.pick(GOODS),
        weather=chance.pick(WEATHER),
        food=chance.pick(FOOD),
        n=chance.between(12, 60),
    )


def document(chance: Chance, genre: str, planted: Planted, words: int) -> str:
    """The facts spread over filler, on pages with a date each, in the order of time."""
    given = " ".join([*planted.facts, planted.block]).split()
    sentences = filler(chance, genre, words - len(given))
    positions = sorted(chance.several(range(1, len(sentences)), len(planted.facts)), reverse=True)
    for position, fact in zip(positions, reversed(planted.facts), strict=True):
        sentences.insert(position, fact)
    day = datetime.date(1931, 1, 5) + datetime.timedelta(days=chance.below(200))
    pages = []
    for start in range(0, len(sentences), PAGE):
        date = f"{day.day} {MONTHS[day.month - 1]}"
        pages.append(_PAGES[genre](chance, date, sentences[start : start + PAGE]))
        day += datetime.timedelta(days=chance.between(1, 9))
    if planted.block:
        pages.insert(chance.between(1, len(pages) - 1), planted.block)
    return "\n\n".join(pages)


def _log_page(chance: Chance, date: str, sentences: Sequence[str]) -> str:
    lines, minute = [f"Log of {date}"], 360
    for sentence in sentences:
        minute += chance.between(10, 70)
        lines.append(f"{minute // 60:02}:{minute % 60:02} {sentence}")
    return "\n".join(lines)


def _letter_page(chance: Chance, date: str, sentences: Sequence[str]) -> str:
    writer, reader = chance.several(CORRESPONDENTS, 2)
    middle = (len(sentences) + 1) // 2
    paragraphs = [" ".join(part) for part in (sentences[:middle], sentences[middle:]) if part]
    return "\n\n".join([date, f"Dear {reader},", *paragraphs, f"Yours, {writer}"])


def _minutes_page(chance: Chance, date: str, sentences: Sequence[str]) -> str:
    present = ", ".join(chance.several(PEOPLE, 4))
    pairs = [" ".join(sentences[start : start + 2]) for start in range(0, len(sentences), 2)]
    items = [f"{number}. {pair}" for number, pair in enumerate(pairs, 1)]
    return "\n".join([f"Meeting of {date}. Present: {present}.", *items])


def _inventory_page(chance: Chance, date: str, sentences: Sequence[str]) -> str:
    shelf = chance.pick("ABCDEFGH")
    return "\n".join([f"Shelf {shelf}, looked through on {date}", *(f"- {sentence}" for sentence in sentences)])


def _diary_page(chance: Chance, date: str, sentences: Sequence[str]) -> str:
    return f"{date}. " + " ".join(sentences)


_PAGES: dict[str, Callable[[Chance, str, Sequence[str]], str]] = {
    "log": _log_page,
    "letters": _letter_page,
    "minutes": _minutes_page,
    "inventory": _inventory_page,
    "diary": _diary_page,
}
