"""Which listed choice an answer names: answers as models write them, each read by hand."""

from __future__ import annotations

import random
from string import ascii_uppercase

import pytest

from mill.metrics.extract import listed_choice
from tests.growth import LINEAR, TIMES, growth

CITIES = ("Paris", "London", "Rome", "Berlin")

READ = {
    # the letter alone
    "B": "B",
    " B": "B",
    "b": "B",
    "B.": "B",
    "(B)": "B",
    "(b)": "B",
    "[B]": "B",
    "b)": "B",
    "B) London": "B",
    "B. London": "B",
    "B: London, since it is on the Thames": "B",
    "B\n": "B",
    "B\n\nParis is in France.": "B",
    "`B`": "B",
    '"B"': "B",
    "$B$": "B",
    "A": "A",
    "A.": "A",
    "B - it is on the Thames": "B",
    # marked
    "Answer: B": "B",
    "answer: b": "B",
    "ANSWER: B": "B",
    "Answer:B": "B",
    "Answer = B": "B",
    "Answer\n\nB": "B",
    "Final answer: B": "B",
    "**Answer:** B": "B",
    "**Answer: B**": "B",
    "Answer: **B**": "B",
    "Answer: (B) London": "B",
    "Answer: B. London": "B",
    "Answer: option B": "B",
    "The answer is (B).": "B",
    "the answer is b.": "B",
    "The correct answer is: B": "B",
    "The answer would be B": "B",
    "The correct option is B.": "B",
    "The best choice is (b).": "B",
    "The answer is A because it rains": "A",
    "The answer is\nB": "B",
    "\\boxed{B}": "B",
    "$\\boxed{\\text{B}}$": "B",
    "\\boxed{(B)}": "B",
    "The answer is \\( B \\)": "B",
    "**B**": "B",
    "**B.** London": "B",
    "**(B)** London": "B",
    "I choose **B. London**": "B",
    # marks beside other letters
    "A is wrong and C is far away. Answer: B": "B",
    "Answer: A\nNo, I was wrong.\nAnswer: B": "B",
    "The answer is A. Wait. \\boxed{B}": "B",
    "The correct answer is **B**.\n- **A** is in France.\n- **C** is in Italy.": "B",
    "First **A**, but then **B**.": "B",
    "Answer: X is what I should write.\nAnswer: B": "B",
    "The answer is not A. The answer is B.": "B",
    # thoughts are no answers
    "<think>Maybe A. Answer: A</think>\n\nB": "B",
    "Maybe A.</think>B": "B",
    # alone in a sentence
    "I think B is right.": "B",
    "It must be (b), on the Thames.": "B",
    "Option B describes it.": "B",
    "Option A describes it.": "A",
    "I pick A.": "A",
    "It is A": "A",
    "A is right": "A",
    "Not A, but C": "C",
    "The answer is not A but C": "C",
    "答案是B。": "B",
    "答案：B": "B",
    "Ответ: B": "B",
    "Réponse : B": "B",
    # full width and enclosed letters
    "\uff22": "B",
    "\uff08\uff22\uff09": "B",
    "Answer\uff1a\uff22": "B",
    "\u24b7": "B",
    # the text of one choice
    "London": "B",
    "london.": "B",
    "LONDON!": "B",
    "It is London, on the Thames.": "B",
    "Answer: London": "B",
    "Paris is in France and Rome in Italy. Answer: London": "B",
    "The answer is London, not Paris": "B",
    # a repeated list is no answer, one line of it is
    "A. Paris\nB. London\nC. Rome\nD. Berlin\nAnswer: B": "B",
    "A. Paris\nB. London\nC. Rome\nD. Berlin\nB": "B",
    "A. Paris\n\nB. London\n\nC. London\n\nThe answer is indeed B. London": "B",
    "**(A)** Paris\n**(B)** London\n\nIt is **(B)**": "B",
    "B. London\n\nStep 1: choose.\nB. London": "B",
    "The answer is most likely B.": "B",
    "The answer is clearly option (B).": "B",
}

UNREADABLE = [
    "",
    "   \n\n",
    "...",
    "?",
    "I don't know.",
    "I'm sorry, but I can't help with that.",
    "I cannot answer this question.",
    "As an AI language model, I have no opinion.",
    "None of the above",
    "None of them",
    "A and B",
    "A, B",
    "A or B",
    "A/B",
    "A & C",
    "(A) and (B)",
    "Both A and B",
    "Answer: A and B",
    "Answer: A, B",
    "The answer is (A) or (B).",
    "The answer is both A and B.",
    "All of A, B, C and D",
    "E",
    "Answer: E",
    "Answer: E. A is wrong.",
    "**F**",
    "Answer: X",
    "Answer: I do not know",
    "5",
    "Madrid",
    "A city on a river",
    "a city",
    "A capital is meant, I am sure",
    "London or Paris",
    "B is wrong, C is right",
    "Абв",
    "В",  # a Cyrillic letter, the third of its alphabet
    "Ответ: В",
    "Bélgica",
    "B\u00e9 or so",
    "٢",
    "我不知道",
    "A. Paris\nB. London\nC. Rome\nD. Berlin",
    "A. Paris\nB. Rome\nC. Rome\nD. Rome",
    "a) Lyon\nb) Rome\nc) and no more",
    "A. Paris\nB. London\nC. Rome\nD. A and B are not the right choices",
    "<think>It could be A or B, so the answer is",
    "<think>Answer: B</think>",
    "ABCD",
    "Don't",
    "\ud800",
]


@pytest.mark.parametrize(("text", "letter"), READ.items())
def test_a_named_choice_is_read(text: str, letter: str) -> None:
    assert listed_choice(text, CITIES) == ascii_uppercase.index(letter)


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_names_no_choice_or_several_is_not_guessed(text: str) -> None:
    assert listed_choice(text, CITIES) is None


VITAMINS = ("Vitamin C", "Vitamin A", "Vitamin B", "none of the above")
ANIMALS = ("A dog", "A cat", "I cannot say", "a mouse")
BLOOD = ("AB", "B", "A", "0")
PLACES = ("Paris", "Paris, Texas", "not Paris", "Paris")


@pytest.mark.parametrize(
    ("text", "choices", "index"),
    [
        ("Vitamin C", VITAMINS, 0),
        ("It is vitamin C.", VITAMINS, 0),
        ("Answer: Vitamin A", VITAMINS, 1),
        ("C. Vitamin B", VITAMINS, 2),
        ("None of the above", VITAMINS, 3),
        ("A cat", ANIMALS, 1),
        ("Answer: A cat", ANIMALS, 1),
        ("A", ANIMALS, 0),
        ("A. A dog", ANIMALS, 0),
        ("I cannot say", ANIMALS, 2),
        ("B", BLOOD, 1),  # the letter, which was requested, and not the text of the second choice
        ("A", BLOOD, 0),
        ("AB", BLOOD, 0),
        ("0", BLOOD, 3),
        ("Paris, Texas", PLACES, 1),
        ("It is in Paris, Texas.", PLACES, 1),
        ("Paris", PLACES, None),  # two choices have this text
        ("42", ("4", "42"), 1),
        ("Answer: 4", ("4", "42"), 0),
        ("-4", ("4", "-4"), 1),
        ("東京です", ("東京", "大阪"), 0),
        ("J", tuple(map(str, range(10))), 9),
        ("I", tuple(map(str, range(10))), 8),
        ("I think so", tuple(map(str, range(10))), None),
        ("yes", ("no", "yes"), 1),
        ("Yes, it is.", ("no", "yes"), 1),
        ("Z", ascii_uppercase, 25),
        ("B", (), None),
    ],
)
def test_texts_of_choices_and_letters_are_distinguished(text: str, choices: tuple[str, ...], index: int | None) -> None:
    assert listed_choice(text, choices) == index


@pytest.mark.parametrize(
    "piece", ["answer ", "answer: ", "*", "** ", " ", "A ", "A, ", "(", "<think>", "\\boxed{", "A. Paris\n"]
)
def test_long_answers_take_time_linear_in_their_length(piece: str) -> None:
    assert growth(lambda text: listed_choice(text, CITIES), piece * 1000, piece * (1000 * TIMES)) < LINEAR


def test_any_text_names_a_listed_choice_or_none() -> None:
    """Pieces of answers in any order, in any script: nothing raises, and no index is beyond the choices."""
    draw = random.Random(5)
    pieces = [
        *READ,
        *UNREADABLE,
        "\n",
        " ",
        "**",
        "(",
        ")",
        "answer",
        "\\boxed{",
        "é",
        "\u0301",
        "ﬁ",
        "İ",
        "ß",
        "\u200b",
        "\x00",
    ]
    for _ in range(2000):
        text = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 6)))
        choices = [
            draw.choice(["", " ", "A", "b.", "Paris", "Vitamin C", "(x", "\\", "東京", "5"])
            for _ in range(draw.randint(0, 6))
        ]
        found = listed_choice(text, choices)
        assert found is None or 0 <= found < len(choices), (text, choices)
