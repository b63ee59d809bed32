"""Extracted answers: values found by hand, and Python's own parsers on random ones."""

from __future__ import annotations

import json
import random
import unicodedata
from fractions import Fraction
from string import ascii_uppercase
from typing import Any

import pytest

from mill.metrics.extract import EXTRACTORS, choice, is_right, json_value, line, listed_choice, normal, number, yes_no
from tests.growth import LINEAR, TIMES, growth

NUMBERS = {
    "1,234.5": "1234.5",
    "-3e8": "-300000000",
    ".5": "0.5",
    "-0": "0",
    "+7": "7",
    "\u22127": "-7",
    "1E-3": "0.001",
    "3 \u00d7 10^{-8}": "0.00000003",
    "6.02\u00b710^23": "602000000000000000000000",
    "It costs $1,250.": "1250",
    "first 3, then 4": "4",
    "1, 2, 3": "3",
    "7-5": "5",
    "\u0663": "3",
}


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_a_number_is_complete_and_normalized(text: str, value: str) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "none", "abc123", "x86", "H2O", "size_10", "\u00bd of it", "..."])
def test_digits_inside_words_are_no_numbers(text: str) -> None:
    assert number(text) is None


MARKED = {
    "\\boxed{12}, since 3 * 4 = 12 and 2 < 3": "12",
    "\\boxed{-1,234.50} of 9": "-1234.5",
    "The answer is 5, not 7": "5",
    "**Answer:** $1,000$ (of 3)": "1000",
    "Answer: 4. No: the answer is **-12.50**, as 3 shows": "-12.5",
    "answer = 0.25 = 1/4": "0.25",
    "question and answer5 then 6": "6",
    "The answer is five. 6": "6",
}


@pytest.mark.parametrize(("text", "value"), MARKED.items())
def test_a_marked_number_wins_over_the_last_one(text: str, value: str) -> None:
    assert number(text) == value


def test_whole_numbers_of_any_length_stay_exact() -> None:
    draw = random.Random(1)
    for _ in range(300):
        value = draw.randrange(-(10 ** draw.randint(1, 39)), 10 ** draw.randint(1, 39))
        assert number(f"so it is {value}.") == str(value)
        assert number(f"so it is {value:,}.") == str(value)


def test_equal_values_give_equal_strings_and_others_do_not() -> None:
    draw = random.Random(2)
    for _ in range(500):
        digits, shift = draw.randrange(1, 10**6), draw.randint(-8, 8)
        forms = [
            f"{digits}e{shift}",
            f"{digits} x 10^{shift}",
            f"{digits * 10}e{shift - 1}",
            f"{digits / 10**6}e{shift + 6}",
        ]
        values = {number(form) for form in forms}
        assert len(values) == 1
        value = values.pop()
        assert value is not None and Fraction(value) == Fraction(digits) * Fraction(10) ** shift
        assert number(f"{digits + 1}e{shift}") != number(forms[0])


@pytest.mark.parametrize("text", ["1e2000000", "1e-2000000", "1e99999999999999999999", "9" * 50 + "e9999999"])
def test_an_exponent_out_of_range_is_no_number(text: str) -> None:
    assert number(text) in (None, "0")


CHOICES = {
    "B": "B",
    "(B)": "B",
    "B.": "B",
    "**B)** is right": "B",
    "B\n\nBecause of C.": "B",
    "I choose (C), not (D).": "C",
    "The correct answer is **C**.": "C",
    "answer is (b)": "B",
    "Answer: (A) or (B)? The answer is (D)": "D",
    "\\boxed{\\text{B}}": "B",
    "Let me answer a few points first. It is (B).": "B",
}


@pytest.mark.parametrize(("text", "letter"), CHOICES.items())
def test_a_letter_is_found_where_it_is_written_as_a_choice(text: str, letter: str) -> None:
    assert choice(text) == letter


@pytest.mark.parametrize("text", ["", "A cat sat there.", "ABC", "Because", "it's", "Edward", "yes", "none of these"])
def test_an_article_or_a_word_is_no_choice(text: str) -> None:
    assert choice(text) is None


YES_NO = {
    "Yes": "yes",
    "no, since yesterday": "no",
    "I first thought no. Answer: yes": "yes",
    "The answer is **No**, not yes": "no",
    "No doubt: the answer is yes": "yes",
    "yes. no.": "yes",
}


@pytest.mark.parametrize(("text", "word"), YES_NO.items())
def test_yes_or_no(text: str, word: str) -> None:
    assert yes_no(text) == word


@pytest.mark.parametrize("text", ["", "yesterday", "know", "not", "nope", "noyes"])
def test_words_that_only_look_like_yes_or_no(text: str) -> None:
    assert yes_no(text) is None


JSON = {
    '{"a": 1}': '{"a": 1}',
    '```json\n{"b": 5.0, "a": [1, 2]}\n```\nDone.': '{"a": [1, 2], "b": 5}',
    'Here: {"x": {"y": [true, null, "z"]}} and {"x": 2}': '{"x": {"y": [true, null, "z"]}}',
    "{'a': 1} is not JSON, [2] is": "[2]",
    '{broken {"a": 1}': '{"a": 1}',
    '{"name": "Z\u00fcrich"}': '{"name": "Z\u00fcrich"}',
    '{"a": "5.0"}': '{"a": "5.0"}',
}


@pytest.mark.parametrize(("text", "value"), JSON.items())
def test_the_first_json_value_is_normalized(text: str, value: str) -> None:
    assert json_value(text) == value


@pytest.mark.parametrize("text", ["", "no brackets", '"a string"', "5", "{", '{"a": ', "{'a': 1}", "[1, 2", "{]}"])
def test_text_without_json_gives_none(text: str) -> None:
    assert json_value(text) is None


def test_json_is_the_same_however_it_is_written() -> None:
    draw = random.Random(3)

    def made(depth: int) -> Any:
        kinds = [None, True, draw.randrange(100), draw.random(), float(draw.randrange(9)), draw.choice(["", "\u00e9", '"'])]
        if depth and draw.random() < 0.5:
            return {draw.choice("abcdef"): made(depth - 1) for _ in range(3)}
        return [made(depth - 1) for _ in range(2)] if depth and draw.random() < 0.5 else draw.choice(kinds)

    for _ in range(200):
        value = [made(3)]
        shuffled = json.loads(json.dumps(value, sort_keys=draw.random() < 0.5))
        written = [
            json.dumps(value),
            f"Sure:\n```\n{json.dumps(shuffled, indent=3)}\n``` bye",
            json.dumps(value, ensure_ascii=False),
        ]
        assert len({json_value(text) for text in written}) == 1
        assert json.loads(json_value(written[0]) or "") == value


@pytest.mark.parametrize("depth", [100, 400, 600, 900, 5000, 100_000])
def test_deep_nesting_is_parsed_or_ignored_but_never_raises(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth, '{"a":' * depth):
        found = json_value(text)
        assert found is None or found.count("]") == depth or found.count("}") == depth


LINES = {
    "Paris": "paris",
    "  **Paris**.\nIt lies on the Seine.": "paris",
    "It may be Rome.\nFinal answer: Paris!": "paris",
    "ANSWER:\nParis": "paris",
    "Answer: Rome\nNo.\nAnswer: Paris": "paris",
    "New   York,\tUSA": "new york usa",
    "Stra\u00dfe": "strasse",
    "\ufb01ne": "fine",
    "\u6771\u4eac\u3067\u3059\u3002": "\u6771\u4eac\u3067\u3059",
    "\u0928\u092e\u0938\u094d\u0924\u0947!": "\u0928\u092e\u0938\u094d\u0924\u0947",
}


@pytest.mark.parametrize(("text", "words"), LINES.items())
def test_a_line_without_case_and_punctuation(text: str, words: str) -> None:
    assert line(text) == words


@pytest.mark.parametrize("text", ["", "\n\n", "...", "*** --- !?", "\u3002"])
def test_punctuation_alone_is_no_line(text: str) -> None:
    assert line(text) is None


RIGHT = [
    ("number", "that makes 5.0 in all", 5),
    ("number", "3 x 10^8", 3e8),
    ("number", "1,234", "1234"),
    ("choice", "**The answer is (B).**", "B"),
    ("choice", "(B)", "b"),
    ("yes_no", "No.", "no"),
    ("yes_no", "Yes", True),
    ("json", '{"b": [1.0], "a": "x"}', {"a": "x", "b": [1]}),
    ("line", "The city is Paris, I think", "Paris"),
    ("line", "\u6771\u4eac\u3067\u3059", "\u6771\u4eac"),
    ("line", "new york city", "New York"),
]
WRONG = [
    ("number", "5.01", 5),
    ("number", "no number", 5),
    ("choice", "(C)", "B"),
    ("yes_no", "perhaps", "no"),
    ("json", '{"a": 1, "b": 2}', {"a": 1}),
    ("json", '{"a": "1"}', {"a": 1}),
    ("line", "a parish", "Paris"),
    ("line", "", "Paris"),
    ("line", "\u0928\u0939\u0940\u0902", "\u0928"),
]


@pytest.mark.parametrize(("how", "text", "gold"), RIGHT)
def test_right_answers(how: str, text: str, gold: Any) -> None:
    assert is_right(how, EXTRACTORS[how](text), gold)


@pytest.mark.parametrize(("how", "text", "gold"), WRONG)
def test_wrong_answers(how: str, text: str, gold: Any) -> None:
    assert not is_right(how, EXTRACTORS[how](text), gold)


@pytest.mark.parametrize("how", EXTRACTORS)
@pytest.mark.parametrize(
    ("start", "piece", "end"),
    [("answer ", " ", ""), ("", "\n", ""), ("", "...\n", ""), ("1", ",111", ",1"), ("", "(", ""), ("", "A ", "")],
    ids=["spaces", "newlines", "dots", "groups", "brackets", "letters"],
)
def test_a_repetitive_text_takes_time_linear_in_its_length(how: str, start: str, piece: str, end: str) -> None:
    """The output of a broken model must not delay extraction: 6,000 characters are 2,000 tokens."""
    small, large = (start + piece * (length // len(piece)) + end for length in (2000, 2000 * TIMES))
    assert growth(EXTRACTORS[how], small, large) < LINEAR


@pytest.mark.parametrize(
    ("gold", "text"),
    [("-5 C", "5 C"), ("C++", "C"), ("C++", "C#"), ("1/2", "1.2"), ("3/14 m", "3.14 m"), ("x=-5", "x=5"), ("50%", "50"),
     ("10-20", "10 20")],
)  # fmt: skip
def test_signs_and_symbols_are_part_of_a_text(gold: str, text: str) -> None:
    assert normal(gold) != normal(text) and not is_right("line", line(gold), text + " or so")


@pytest.mark.parametrize(
    ("gold", "text"),
    [("Paris", "**Paris**."), ("x=5", "x = 5"), ("well-known", "well known"), ("c++", "`C++`"), ("O'Brien", "o\u2019brien"),
     ("a, b", "a b"), ("5", "$5$")],
)  # fmt: skip
def test_punctuation_spacing_and_markup_are_no_part_of_a_text(gold: str, text: str) -> None:
    assert normal(gold) == normal(text).replace("$ ", "")


CITIES = ("Paris", "London", "Rome", "Berlin")

READ = {
    # the letter alone
    "B": "B",
    "b": "B",
    "B.": "B",
    "(B)": "B",
    "B. London": "B",
    "`B`": "B",
    # marked
    "Answer: B": "B",
    "Answer\n\nB": "B",
    "**Answer:** B": "B",
    "Answer: (B) London": "B",
    "The answer is (B).": "B",
    "The answer is A because it rains": "A",
    "\\boxed{B}": "B",
    "The answer is \\( B \\)": "B",
    # marks beside other letters
    "A is wrong and C is far away. Answer: B": "B",
    "Answer: A\nNo, I was wrong.\nAnswer: B": "B",
    "The correct answer is **B**.\n- **A** is in France.\n- **C** is in Italy.": "B",
    "Answer: X is what I should write.\nAnswer: B": "B",
    # thoughts are no answers
    "<think>Maybe A. Answer: A</think>\n\nB": "B",
    # alone in a sentence
    "I think B is right.": "B",
    "The answer is not A but C": "C",
    "答案：B": "B",
    # full width and enclosed letters
    "\uff08\uff22\uff09": "B",
    "\u24b7": "B",
    # the text of one choice
    "London": "B",
    "Paris is in France and Rome in Italy. Answer: London": "B",
    "The answer is London, not Paris": "B",
    # a repeated list is no answer, one line of it is
    "A. Paris\nB. London\nC. Rome\nD. Berlin\nAnswer: B": "B",
    "A. Paris\n\nB. London\n\nC. London\n\nThe answer is indeed B. London": "B",
    "**(A)** Paris\n**(B)** London\n\nIt is **(B)**": "B",
}

UNREADABLE = [
    "",
    "None of the above",
    "A and B",
    "The answer is (A) or (B).",
    "E",
    "Answer: E. A is wrong.",
    "5",
    "A capital is meant, I am sure",
    "London or Paris",
    "B is wrong, C is right",
    "Абв",
    "В",  # a Cyrillic letter, the third of its alphabet
    "Ответ: В",
    "我不知道",
    "A. Paris\nB. London\nC. Rome\nD. Berlin",
    "A. Paris\nB. London\nC. Rome\nD. A and B are not the right choices",
    "<think>It could be A or B, so the answer is",
    "<think>Answer: B</think>",
    "ABCD",
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
        ("It is vitamin C.", VITAMINS, 0),
        ("Answer: Vitamin A", VITAMINS, 1),
        ("C. Vitamin B", VITAMINS, 2),
        ("Answer: A cat", ANIMALS, 1),
        ("A. A dog", ANIMALS, 0),
        ("I cannot say", ANIMALS, 2),
        ("B", BLOOD, 1),  # the letter, which was requested, and not the text of the second choice
        ("AB", BLOOD, 0),
        ("Paris, Texas", PLACES, 1),
        ("Paris", PLACES, None),  # two choices have this text
        ("42", ("4", "42"), 1),
        ("-4", ("4", "-4"), 1),
        ("東京です", ("東京", "大阪"), 0),
        ("J", tuple(map(str, range(10))), 9),
        ("I think so", tuple(map(str, range(10))), None),
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
    signs = ["\n", " ", "**", "(", ")", "answer", "\\boxed{", "é", "\u0301", "ﬁ", "İ", "ß", "\u200b", "\x00"]
    pieces = [*READ, *UNREADABLE, *signs]
    for _ in range(2000):
        text = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 6)))
        choices = [
            draw.choice(["", " ", "A", "b.", "Paris", "Vitamin C", "(x", "\\", "東京", "5"])
            for _ in range(draw.randint(0, 6))
        ]
        found = listed_choice(text, choices)
        assert found is None or 0 <= found < len(choices), (text, choices)


def written(char: str, before: str, after: str) -> str:
    """A character by its category and its neighbours, as `normal` writes it."""
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


def test_every_character_is_written_by_its_category_and_its_neighbours() -> None:
    assigned = [char for char in map(chr, range(0x20000)) if unicodedata.category(char) not in ("Cn", "Co", "Lo")]
    for text in (form.format(char) for char in assigned for form in ("1{}2", "a{}2", "1{}b", "{0}.{0}", "{}$-5")):
        folded = unicodedata.normalize("NFKC", text).casefold()
        chars = [written(char, folded[at - 1 : at], folded[at + 1 : at + 2]) for at, char in enumerate(folded)]
        assert normal(text) == " ".join("".join(chars).split()), ascii(text)
