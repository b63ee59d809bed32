"""Long documents with planted facts, and questions about the facts: the suite `long-context`.

The documents are made and not stored, as they are long and hold nothing worth reading. The same bytes must come out
everywhere, or runs could not be compared: all chance comes from `Random.random`, the only method whose sequence Python
promises to keep. Planted facts use names, places and words that the filler does not, so that every answer is unique.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

SEED = 20240229
WORDS = (300, 600, 1000, 1500, 2000, 2500)

PEOPLE = (
    *("Agnes", "Tobias", "Wilma", "Jonas", "Petra", "Hugo", "Selma", "Anton", "Rosa", "Felix", "Greta", "Oskar"),
    *("Lotte", "Viktor", "Nina", "Emil", "Clara", "Rudolf", "Martha", "Simon", "Edith", "Konrad", "Paula", "Bernard"),
)
PLACES = (
    *("the boathouse", "the upper meadow", "the market square", "the old quay", "the chapel", "the reading room"),
    *("the sawmill", "the tollhouse", "the orchard", "the ferry landing", "the schoolhouse", "the cooperage"),
    *("the smithy", "the bell tower", "the dairy", "the long barn", "the weigh house", "the bathing hut"),
)
THINGS = (
    *("ladder", "lantern", "wheelbarrow", "ledger", "barometer", "saddle", "trunk", "folding table", "sewing machine"),
    *("weather vane", "bread oven", "rowing boat", "music stand", "door knocker", "spinning wheel", "hand press"),
)
GOODS = (
    *("candles", "blankets", "nails", "apples", "jars of honey", "tin cups", "bags of flour", "postcards", "lamp wicks"),
    *("hymn books", "fence posts", "wool socks", "copper rivets", "paper flags", "seed potatoes", "wooden spoons"),
)
WEATHER = (
    *("in light wind from the west", "under low clouds", "in steady rain", "in thin fog", "in bright sunshine"),
    *("after a stormy night", "while the wind was turning", "in the last of the daylight", "before the storm broke"),
)
FOOD = (
    *("barley soup", "fried herring", "plum cake", "bread and cheese", "pea stew", "cold mutton", "apple dumplings"),
    *("rye porridge", "smoked eel", "cabbage rolls", "honey biscuits", "onion tart"),
)
CORRESPONDENTS = ("Dorothea", "Leopold", "Henriette", "Gustav", "Philippa", "Cornelius", "Susanna", "Valentin")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

FIRST_NAMES = ("Ines", "Bruno", "Carla", "Dario", "Fiona", "Gideon", "Helga", "Ivo", "Judith", "Kasimir", "Livia", "Magnus")
LAST_NAMES = (
    *("Falk", "Lind", "Moss", "Thorn", "Adler", "Birch", "Crane", "Dorn", "Ekholm", "Frost", "Garner", "Hale", "Ivers"),
    *("Joost", "Kerr", "Lorne", "Marsh", "Nagel", "Orme", "Pell", "Quint", "Rask", "Stroud", "Tarn", "Udall", "Voss"),
)
TOWNS = ("Tarvik", "Belmora", "Ostrand", "Calvey", "Dunmere", "Farrowby", "Hollstadt", "Inverlay", "Kestwick", "Lunden")
BOATS = ("Marigold", "Perseus", "Bluebell", "Halcyon", "Corsair", "Nightingale", "Pilgrim", "Thistle", "Juno")
ANIMALS = ("heron", "badger", "kingfisher", "stork", "lynx", "beaver")

NUMBERED = (
    *("combination of the green safe", "number of the registered parcel", "extension of the night porter"),
    *("serial number of the old pump", "policy number of the steam launch", "licence number of the red cart"),
    *("file number of the boundary dispute", "account number of the sailing club", "catalogue number of the marble bust"),
)
LOCKED = ("fire watch", "telegraph room", "rowing club", "wine cellar", "map room", "pigeon loft")
PASSWORDS = ("saffron", "juniper", "basalt", "walnut", "thimble", "velvet", "parsnip", "cobalt", "mandolin")
CHANGING = (
    *(("ferry fare", "pence"), ("bridge toll", "pence"), ("rent of the mill", "crowns")),
    *(("price of lamp oil", "pence"), ("wage of the night watchman", "crowns"), ("museum entrance fee", "pence")),
)
CHANGES = (
    "The {item} was set at {value} {unit}.",
    "The {item} has been changed to {value} {unit}.",
    "From this day on, the {item} is {value} {unit}.",
    "The {item} is now {value} {unit}.",
)
EVENTS = (
    *("the flour mill burned down", "the railway reached the valley", "the stone bridge was opened"),
    *("the great flood came", "the town hall got its clock", "the first telephone was installed"),
    *("the glass factory was closed", "the hospital was founded", "the lighthouse was rebuilt"),
)
OBJECTS = ("copper kettle", "grandfather clock", "iron stove", "wall mirror", "church organ", "brass telescope")
FUNDS = ("library fund", "bell fund", "lifeboat fund", "widows' fund", "theatre fund", "harvest fund")
SIGHTINGS = (
    *("A {animal} was seen near the water in the morning.", "Someone had drawn a {animal} on the wall in chalk."),
    *("There was talk of a {animal} that comes back every year.", "A {animal} crossed the path without any hurry."),
    *("The new inn sign shows a {animal} with a key.", "A child asked how old a {animal} can become."),
    *("A stuffed {animal} was given away for nothing.", "In the dusk, a dog was taken for a {animal}."),
    *("A {animal} had left its tracks in the mud.", "A song about a {animal} was heard from the kitchen."),
)

GOSSIP = (
    "{who} has grown fond of {food} and speaks of little else.",
    "{other} still owes {who} the {thing}.",
    "The cat from {place} has been fed by {who} for {n} days.",
    "{who} sold {n} {goods} to a stranger {weather}.",
    "Since {other} took over {place}, there are {goods} everywhere.",
    "A window at {place} was left open {weather}, and the {thing} got wet.",
    "{who} says that the {thing} will outlast {other}.",
    "It took {n} minutes to find {other}, who had been at {place} all along.",
    "There was {food} for everybody, thanks to {other}.",
    "The stairs of {place} creak, and {who} blames the {thing}.",
)
FILLER = {
    "log": (
        *GOSSIP,
        "{who} checked the {thing} at {place} and found nothing wrong.",
        "Two visitors asked the way to {place} and were taken there by {who}.",
        "{who} took over the watch from {other} {weather}.",
        "A delivery of {n} {goods} was left at {place} and signed for by {who}.",
        "The {thing} was carried from {place} to {there}.",
        "{who} reported a broken window at {place}; {other} boarded it up.",
        "The water stood {n} centimetres above the mark {weather}.",
        "A cart with {goods} stopped at {place} for {n} minutes.",
        "{who} and {other} cleared the path to {place} {weather}.",
        "The lamp at {place} went out and was lit again by {who}.",
        "{who} counted {n} {goods} and entered them in the book.",
        "Nothing to report from {place} except the barking of a dog.",
        "{other} asked {who} to bring the {thing} to {place} before dark.",
        "Smoke was seen near {place}, but it was only {who} burning leaves.",
        "The bell rang {n} minutes late because {who} had gone to see {other}.",
        "{who} found a lost glove at {place} and hung it on the door.",
        "The door of {place} was painted again, this time by {other}.",
        "A traveller paid for {food} and went on towards {there} {weather}.",
        "{who} oiled the hinges at {place} and swept the floor.",
        "The post came {n} minutes early and brought a parcel for {other}.",
    ),
    "letters": (
        *GOSSIP,
        "I walked to {place} with {who} yesterday {weather}, and we talked about you.",
        "{who} has mended the {thing} at last, though it took {n} days.",
        "You would laugh to see how {who} carries {goods} about in a hat box.",
        "We had {food} at {place}, and {other} ate most of it.",
        "The children have made a theatre out of {n} boxes, and {who} plays the king.",
        "Please tell {other} that the {thing} arrived safely and stands in the hall.",
        "It has been quiet since {who} moved out of {place}, and I read in the evenings.",
        "I am sending you {n} {goods}, which {who} helped me to pick out.",
        "{who} and {other} are not on speaking terms because of the {thing}.",
        "My cough is better, and the doctor says that {food} did it more good than his pills.",
        "On Sunday we sat at {place} {weather} and counted the carts going by.",
        "I dreamed that {who} had turned {place} into a hotel for cats.",
        "{other} writes that there are {n} steps up to the new flat, and no stove.",
        "The kitchen ceiling leaks again, so {who} sleeps in the pantry.",
        "I have learned to cook {food}, and {who} pretends to like it.",
        "{who} asked after you and wants to know whether you still play chess.",
        "There was a fair at {place}, where {other} won {n} {goods}.",
        "At least {n} kinds of weeds grow in the garden, says {who}, who has counted them.",
        "If you come in the autumn, bring the {thing}, for {other} misses it.",
        "Nobody knows why {other} keeps {goods} under the bed.",
    ),
    "minutes": (
        *GOSSIP,
        "{who} reported on the state of {place} and asked for patience.",
        "It was agreed to buy {n} {goods} before the winter.",
        "{who} proposed that the {thing} be moved to {place}; {other} was against it.",
        "The committee thanked {who} for tidying {place} {weather}.",
        "{other} asked whether the {thing} was still insured, and nobody knew.",
        "A letter about the noise near {place} was read out by {who}.",
        "The keys of {place} will be kept by {other} until further notice.",
        "{who} and {other} will look at the {thing} together and report back.",
        "The vote on new {goods} was put off until the next meeting.",
        "There was a short break, with {food} brought by {who}.",
        "{who} complained that the path to {place} had not been cleared for {n} days.",
        "The chair reminded everyone to return borrowed {goods} to {place}.",
        "{other} offered to repair the {thing} without charge.",
        "It was noted that {n} members had signed the petition about {place}.",
        "{who} presented a drawing of the new bench for {place}.",
        "The question of who had left the {thing} at {place} was not settled.",
        "{other} was asked to write to the district office once more about {place}.",
        "A list of {n} missing {goods} was handed round.",
        "{who} regretted that the concert at {place} had been cancelled.",
        "The members discussed for {n} minutes whether dogs may enter {place}.",
    ),
    "inventory": (
        "{n} {goods}, in good order, stored at {place}.",
        "One {thing}, lent to {who} and not yet returned.",
        "{n} {goods}, of which {who} has set aside a few for {other}.",
        "One {thing}, repaired by {other}, now kept at {place}.",
        "A box labelled by {who}, holding {n} {goods} and an old newspaper.",
        "One {thing} with a dent, which does no harm according to {who}.",
        "{n} {goods}, given by {other} after the fire at {place}.",
        "A crate from {place}, opened in the presence of {who} and {other}.",
        "One {thing}, origin unknown, found behind the stove at {place}.",
        "{n} {goods}, too damp to be used, to be dried at {place}.",
        "A drawer full of string, buttons and {goods}, sorted by {who}.",
        "One {thing}, the property of {other}, to be fetched before the frost.",
        "{n} {goods}, counted by {who} and again by {other}.",
        "An empty shelf, kept free for {goods} at the wish of {who}.",
        "One {thing}, wrapped in sailcloth at {place} and not opened since.",
        "A basket with the remains of {food}, removed by {who}.",
        "{n} {goods}, on loan to {place} until the end of the season.",
        "One {thing}, bought from {other} at a fair price.",
        "A bundle of papers tied with ribbon, addressed to {who}.",
        "{n} {goods} in the cellar of {place}, out of reach behind the {thing}.",
    ),
    "diary": (
        *GOSSIP,
        "We set out from {place} {weather} and reached {there} after {n} minutes.",
        "At {place} we met {who}, who sold us {goods} and gave us good advice.",
        "Supper was {food}, eaten on the steps of {place}.",
        "{who} has a blister and rode on the cart with {other}.",
        "I sketched the {thing} that stands outside {place}.",
        "The landlord charged us for {n} {goods} that we had never seen.",
        "We rested at {place}, where {other} told a long story about a {thing}.",
        "It was too loud to sleep, as {who} was packing {goods} until midnight.",
        "The road to {place} is closed, so we went by way of {there}.",
        "{other} bought a {thing} and regretted it within the hour.",
        "I counted {n} steps up to {place} and lost count on the way down.",
        "We shared a table with {who} and {other}, who quarrelled about {food}.",
        "The view from {place} {weather} was worth the climb.",
        "{who} taught me {n} words of the local tongue, most of them about {food}.",
        "We waited {n} minutes for the coach while {other} looked for the {thing}.",
        "A boy guided us from {place} to {there} and would not take money.",
        "I wrote {n} long letters and gave them to {who} to post.",
        "My boots are wet through, and {other} has lent me a pair.",
        "{who} showed us round {place} and apologised for the smell of {goods}.",
        "We left {place} early {weather}, and nobody waved.",
    ),
}
TITLES = {
    "log": "watchman's log",
    "letters": "letters",
    "minutes": "minutes of a village committee",
    "inventory": "stock lists",
    "diary": "travel diary",
}
GENRES = tuple(FILLER)
PAGE = 10  # sentences under one date

NUMBER = "Reply with the number only."
STEPS = "Think step by step and end with a line `Answer: <number>`."


class Chance:
    """Draws that are the same on every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, end: int) -> int:
        return int(self._random.random() * end)

    def between(self, first: int, last: int) -> int:
        return first + self.below(last - first + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def several(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items, in the order drawn."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self.several(items, len(items))

    def merged(self, ones: Sequence[str], others: Sequence[str]) -> list[str]:
        """All of them, each of the two in its order."""
        places = set(self.several(range(len(ones) + len(others)), len(others)))
        left, right = iter(ones), iter(others)
        return [next(right if place in places else left) for place in range(len(ones) + len(others))]

    def codes(self, count: int) -> list[int]:
        """Numbers of four digits, which the filler does not have."""
        return self.several(range(2000, 10000), count)

    def names(self, count: int) -> list[str]:
        return [f"{self.pick(FIRST_NAMES)} {last}" for last in self.several(LAST_NAMES, count)]


@dataclass(frozen=True)
class Planted:
    """What a document has to hold, in this order, and the question about it; `block` stands between two pages."""

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
    """Three codes at once, asked for in an order of their own."""
    subjects, codes = chance.several(NUMBERED, 3 + load), chance.codes(3 + load)
    facts = [f"The {subject} is {code}." for subject, code in zip(subjects, codes, strict=True)]
    asked = ", ".join(f"the {subject}" for subject in subjects[:2]) + f" and the {subjects[2]}"
    question = f"What are {asked}? Reply with a JSON array of the three numbers in this order, and nothing else."
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
    """Where somebody lives who is known only through one or two others."""
    asked, middle, last, *others = chance.names(5 + 2 * load)
    town, *other_towns = chance.several(TOWNS, 2 + load)
    if row % 2:
        facts = [f"{asked} works for {middle}.", f"{middle} is married to {last}.", f"{last} lives in {town}."]
        question = f"{asked} works for somebody. In which town does the person live who is married to this employer?"
    else:
        facts = [f"{asked} shares an office with {middle}.", f"{middle} lives in {town}."]
        question = f"In which town does the person live with whom {asked} shares an office?"
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
    """A price, which mostly is not told, while much that is close to it is."""
    thing, *others = chance.several(OBJECTS, min(3 + load, len(OBJECTS)))
    price, *prices = chance.several(range(15, 99), len(others) + 1)
    facts = [f"The {thing} weighs {chance.between(5, 14)} kilograms.", f"The {thing} was made in {chance.pick(TOWNS)}."]
    facts += [f"The {other} cost {cost} crowns." for other, cost in zip(others, prices, strict=True)]
    told = row in (2, 5)
    if told:
        facts.append(f"The {thing} cost {price} crowns.")
    if row % 2:
        ask = "Reply with the number, or with `not stated` if the text does not say."
        answer = str(price) if told else "not stated"
        return Planted(chance.shuffled(facts), f"How many crowns did the {thing} cost? {ask}", answer, "line")
    question = f"Does the text say what the {thing} cost? Reply with yes or no."
    return Planted(chance.shuffled(facts), question, "yes" if told else "no", "yes_no")


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
    places = sorted(chance.several(range(1, len(sentences)), len(planted.facts)), reverse=True)
    for place, fact in zip(places, reversed(planted.facts), strict=True):
        sentences.insert(place, fact)
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
