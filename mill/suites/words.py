"""The words of which the documents of `long-context` are made, and the draws that choose them.

The same bytes must come out everywhere, or runs could not be compared: all chance comes from `Random.random`, the only
method whose sequence Python promises to keep.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


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
        indices = set(self.several(range(len(ones) + len(others)), len(others)))
        left, right = iter(ones), iter(others)
        return [next(right if index in indices else left) for index in range(len(ones) + len(others))]

    def codes(self, count: int) -> list[int]:
        """Numbers of four digits, which the filler does not have."""
        return self.several(range(2000, 10000), count)

    def names(self, count: int) -> list[str]:
        return [f"{self.pick(FIRST_NAMES)} {last}" for last in self.several(LAST_NAMES, count)]


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
