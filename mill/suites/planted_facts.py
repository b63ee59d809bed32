"""The facts that documents of `long-context` contain and the question about them, one function for each category.

Facts use names, places and words that the filler does not, so that every answer is unique.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mill.suites.words import (
    ANIMALS,
    BOATS,
    CHANGES,
    CHANGING,
    EVENTS,
    FUNDS,
    LOCKED,
    NUMBERED,
    OBJECTS,
    PASSWORDS,
    SIGHTINGS,
    TOWNS,
    Chance,
)

NUMBER = "Reply with the number only."
STEPS = "Think step by step and end with a line `Answer: <number>`."


@dataclass(frozen=True)
class Planted:
    """What a document has to hold, in this order, and the question about it; `block` is inserted between two pages."""

    facts: Sequence[str]
    question: str
    answer: Any
    extract: str
    block: str = ""


def needle(chance: Chance, row: int, load: int) -> Planted:
    """One code or password, among others of its kind in the longer documents."""
    if row % 2:
        subjects = [f"password of the {place}" for place in chance.several(LOCKED, 1 + load)]
        values: Sequence[int | str] = chance.several(PASSWORDS, 1 + load)
        ask, extract = "Reply with the password only.", "line"
    else:
        subjects = chance.several(NUMBERED, 1 + load)
        values = chance.codes(1 + load)
        ask, extract = NUMBER, "number"
    facts = [f"The {subject} is {value}." for subject, value in zip(subjects, values, strict=True)]
    return Planted(chance.shuffled(facts), f"What is the {subjects[0]}? {ask}", values[0], extract)


def several(chance: Chance, row: int, load: int) -> Planted:
    """Three codes at once, in another order than in the text."""
    subjects, codes = chance.several(NUMBERED, 3 + load), chance.codes(3 + load)
    facts = [f"The {subject} is {code}." for subject, code in zip(subjects, codes, strict=True)]
    wanted = ", ".join(f"the {subject}" for subject in subjects[:2]) + f" and the {subjects[2]}"
    question = f"What are {wanted}? Reply with a JSON array of the three numbers in this order, and nothing else."
    return Planted(chance.shuffled(facts), question, codes[:3], "json")


def count(chance: Chance, row: int, load: int) -> Planted:
    """How often a word occurs."""
    animal, number = ANIMALS[row], 3 + load + chance.below(2)
    facts = [sighting.format(animal=animal) for sighting in chance.several(SIGHTINGS, number)]
    return Planted(facts, f'How many times does the word "{animal}" occur in the text? {STEPS}', number, "number")


def latest(chance: Chance, row: int, load: int) -> Planted:
    """A value that is changed again and again, while another one changes too."""
    (item, unit), other = CHANGING[row], CHANGING[row - 1]
    values = chance.several(range(11, 90), 2 + load)
    question = f"The text is in the order of time. What is the {item} at the end, in {unit}? {NUMBER}"
    facts = _changes(chance, item, unit, values)
    distractors = _changes(chance, *other, chance.several(range(11, 90), load))
    return Planted(chance.merged(facts, distractors), question, values[-1], "number")


def _changes(chance: Chance, item: str, unit: str, values: Sequence[int]) -> list[str]:
    first, *later = CHANGES
    patterns = [chance.pick(later) if number else first for number in range(len(values))]
    return [pattern.format(item=item, value=value, unit=unit) for pattern, value in zip(patterns, values, strict=True)]


def hop(chance: Chance, row: int, load: int) -> Planted:
    """The town of a person who is identified through one or two others."""
    subject, middle, last, *others = chance.names(5 + 2 * load)
    town, *other_towns = chance.several(TOWNS, 2 + load)
    if row % 2:
        facts = [f"{subject} works for {middle}.", f"{middle} is married to {last}.", f"{last} lives in {town}."]
        question = f"{subject} works for somebody. In which town does the person live who is married to this employer?"
    else:
        facts = [f"{subject} shares an office with {middle}.", f"{middle} lives in {town}."]
        question = f"In which town does the person live with whom {subject} shares an office?"
    for worker, employer, elsewhere in zip(others[::2], others[1::2], other_towns, strict=True):
        relation = chance.pick(("works for", "shares an office with", "is married to"))
        facts += [f"{worker} {relation} {employer}.", f"{employer} lives in {elsewhere}."]
    return Planted(chance.shuffled(facts), f"{question} Reply with the name of the town only.", town, "line")


def order(chance: Chance, row: int, load: int) -> Planted:
    """Which of four dated events came first, second or last."""
    events = chance.several(EVENTS, min(4 + load, len(EVENTS)))
    years = chance.several(range(1840, 1930), len(events))
    facts = [f"In {year}, {event}." for event, year in zip(events, years, strict=True)]
    by_year = sorted(range(4), key=lambda number: years[number])
    place, wanted = (("first", by_year[0]), ("last", by_year[3]), ("second", by_year[1]))[row % 3]
    options = "\n".join(f"{letter}) {event}" for letter, event in zip("ABCD", events[:4], strict=True))
    question = f"Which of these four came {place}?\n{options}\nReply with the letter only."
    return Planted(chance.shuffled(facts), question, "ABCD"[wanted], "choice")


def absent(chance: Chance, row: int, load: int) -> Planted:
    """A price that the text mostly does not state, among facts that are close to it."""
    thing, *others = chance.several(OBJECTS, min(3 + load, len(OBJECTS)))
    price, *prices = chance.several(range(15, 99), len(others) + 1)
    facts = [f"The {thing} weighs {chance.between(5, 14)} kilograms.", f"The {thing} was made in {chance.pick(TOWNS)}."]
    facts += [f"The {other} cost {cost} crowns." for other, cost in zip(others, prices, strict=True)]
    stated = row in (2, 5)
    if stated:
        facts.append(f"The {thing} cost {price} crowns.")
    if row % 2:
        ask = "Reply with the number, or with `not stated` if the text does not say."
        answer = str(price) if stated else "not stated"
        return Planted(chance.shuffled(facts), f"How many crowns did the {thing} cost? {ask}", answer, "line")
    question = f"Does the text say what the {thing} cost? Reply with yes or no."
    return Planted(chance.shuffled(facts), question, "yes" if stated else "no", "yes_no")


def table(chance: Chance, row: int, load: int) -> Planted:
    """A cell of a table."""
    size = 6 + 4 * load
    lockers, holders, keys = chance.several(range(10, 100), size), chance.names(size), chance.codes(size)
    rows = list(zip(sorted(lockers), holders, keys, strict=True))
    lines = [f"| {locker} | {holder} | {key} |" for locker, holder, key in rows]
    block = "\n".join(["List of lockers", "| locker | holder | key |", "|---|---|---|", *lines])
    locker, holder, key = chance.pick(rows)
    cases: tuple[tuple[str, int | str, str], ...] = (
        (f"What is the number of the key that {holder} has? {NUMBER}", key, "number"),
        (f"Who holds locker {locker}? Reply with the name only.", holder, "line"),
        (f"Which locker does key {key} belong to? {NUMBER}", locker, "number"),
    )
    question, answer, extract = cases[row % 3]
    return Planted([], question, answer, extract, block)


def total(chance: Chance, row: int, load: int) -> Planted:
    """The sum of payments into one fund, where another fund is paid into as well."""
    amounts = chance.several(range(5, 50), 2 + load)
    others = chance.several(range(5, 50), load)
    payers = chance.names(len(amounts) + len(others))
    funds = [FUNDS[row]] * len(amounts) + [FUNDS[row - 1]] * len(others)
    paid = zip(payers, amounts + others, funds, strict=True)
    facts = [f"{payer} paid {amount} crowns into the {fund}." for payer, amount, fund in paid]
    question = f"How many crowns were paid into the {FUNDS[row]} in all? {STEPS}"
    return Planted(chance.shuffled(facts), question, sum(amounts), "number")


def compare(chance: Chance, row: int, load: int) -> Planted:
    """The largest or the smallest of several."""
    boats = chance.several(BOATS, 3 + load)
    sacks = chance.several(range(110, 900), len(boats))
    facts = [f"The barge {boat} carried {number} sacks." for boat, number in zip(boats, sacks, strict=True)]
    which, wanted = ("fewest", min(sacks)) if row % 2 else ("most", max(sacks))
    question = f"Which barge carried the {which} sacks? Reply with the name of the barge only."
    return Planted(chance.shuffled(facts), question, boats[sacks.index(wanted)], "line")


CATEGORIES: dict[str, Callable[[Chance, int, int], Planted]] = {
    "needle": needle,
    "several": several,
    "count": count,
    "latest": latest,
    "hop": hop,
    "order": order,
    "absent": absent,
    "table": table,
    "sum": total,
    "compare": compare,
}
