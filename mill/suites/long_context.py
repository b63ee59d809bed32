"""Long documents with planted facts, and questions about the facts: the suite `long-context`.

The documents are made and not stored, as they are long and hold nothing worth reading.
"""

from __future__ import annotations

from typing import Any

from mill.suites.chance import Chance
from mill.suites.documents import GENRES, document
from mill.suites.planted_facts import CATEGORIES, STEPS
from mill.suites.words import TITLES

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
