"""The prompt suites that come with mill keep their form, and their gold answers are what can be computed again."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import sqlite3
import unicodedata
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import mill
from mill.suites import documents
from mill.suites import documents as long_context
from mill.suites.words import ANIMALS, BOATS, PASSWORDS, TOWNS, Chance

FOLDER = Path(mill.__file__).parent / "suites"
FILES = ("reasoning", "code", "numerics", "determinism", "structured-output", "multilingual")
SUITES = (*FILES, "long-context")
KEYS = ["id", "category", "prompt", "answer", "extract", "max_tokens"]
EXTRACTS = {"number", "plain_number", "e_number", "choice", "yes_no", "json", "line"}
GOLD = {"reasoning": 60, "numerics": 60, "long-context": 60, "structured-output": 50, "multilingual": 50, "code": 30}
Line = dict[str, Any]


def read(suite: str) -> list[Line]:
    if suite == "long-context":
        return long_context.make_prompts()
    text = (FOLDER / f"{suite}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def of(suite: str, category: str) -> list[Line]:
    return [line for line in read(suite) if line["category"] == category]


def document(line: Line) -> str:
    """The text between the lines of dashes, so that a question's own words are not counted."""
    found = re.search(r"\n-----\n(.*)\n-----\n", line["prompt"], re.DOTALL)
    assert found is not None
    return found.group(1)


def question(line: Line) -> str:
    return str(line["prompt"]).rpartition("\nQuestion: ")[2]


def in_question(pattern: str, line: Line) -> str:
    """The part of the question that matches a pattern."""
    found = re.search(pattern, question(line))
    assert found is not None, question(line)
    return found.group(1)


def ids(lines: list[Line]) -> list[Any]:
    return [pytest.param(line, id=line["id"]) for line in lines]


def test_every_file_is_known() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.jsonl")) == sorted(FILES)


@pytest.mark.parametrize("suite", SUITES)
def test_ids_are_numbered_and_prompts_differ(suite: str) -> None:
    lines = read(suite)
    assert 50 <= len(lines) <= 100
    assert [line["id"] for line in lines] == [f"{suite}-{number:03}" for number in range(1, len(lines) + 1)]
    assert len({line["prompt"] for line in lines}) == len(lines)


def test_no_prompt_is_in_two_suites() -> None:
    prompts = Counter(line["prompt"] for suite in SUITES for line in read(suite))
    assert max(prompts.values()) == 1


@pytest.mark.parametrize("suite", SUITES)
def test_categories_are_lower_case_words_and_each_has_several_prompts(suite: str) -> None:
    categories = Counter(line["category"] for line in read(suite))
    assert len(categories) >= 5
    assert all(re.fullmatch(r"[a-z]+", name) for name in categories)
    assert min(categories.values()) >= 3


@pytest.mark.parametrize("suite", SUITES)
def test_the_first_twenty_show_every_category(suite: str) -> None:
    """A run over the first few prompts is a small sample of the whole."""
    lines = read(suite)
    assert {line["category"] for line in lines[:20]} == {line["category"] for line in lines}


@pytest.mark.parametrize("suite", SUITES)
def test_keys_are_the_allowed_ones_in_order(suite: str) -> None:
    for line in read(suite):
        assert list(line) == [key for key in KEYS if key in line]
        assert {"id", "category", "prompt"} <= set(line)
        assert line["prompt"] == line["prompt"].strip() != ""
        assert line["prompt"] == unicodedata.normalize("NFC", line["prompt"])
        assert line.get("extract", "line") in EXTRACTS
        assert type(line.get("max_tokens", 256)) is int and 16 <= line.get("max_tokens", 256) <= 1024


@pytest.mark.parametrize("suite", SUITES)
def test_gold_fits_its_extraction(suite: str) -> None:
    for line in read(suite):
        if "answer" not in line:
            continue
        answer, extract = line["answer"], line["extract"]
        assert isinstance(answer, (dict, list)) == (extract == "json"), line["id"]
        if extract.endswith("number"):
            assert type(answer) in (int, float, str) and math.isfinite(float(answer)), line["id"]
        if extract == "choice":
            assert f"\n{answer}) " in line["prompt"], line["id"]
        if extract == "yes_no":
            assert answer in ("yes", "no"), line["id"]
        if extract == "line":
            assert isinstance(answer, str) and answer == answer.strip() and "\n" not in answer, line["id"]
            assert answer == unicodedata.normalize("NFC", answer) and any(map(str.isalnum, answer)), line["id"]


@pytest.mark.parametrize("suite", SUITES)
def test_gold_is_where_it_is_promised(suite: str) -> None:
    lines = read(suite)
    assert sum("answer" in line for line in lines) >= GOLD.get(suite, 0)
    if suite == "determinism":
        assert not any("answer" in line or "extract" in line for line in lines)
    if suite == "structured-output":
        assert all(line["extract"] == "json" for line in lines)


@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite != "determinism"])
def test_yes_and_no_and_the_letters_are_not_all_the_same(suite: str) -> None:
    """A model that always answers the same must not score well."""
    for extract in ("yes_no", "choice"):
        answers = Counter(line["answer"] for line in read(suite) if line.get("extract") == extract)
        assert not answers or max(answers.values()) <= 0.7 * answers.total()


# A part of the prompt, which ties the value to the right question, and the value computed from scratch.
NUMERICS: dict[str, tuple[str, Any]] = {
    "numerics-001": ("47 × 86", 47 * 86),
    "numerics-002": ("0.1 + 0.2", Decimal("0.1") + Decimal("0.2")),
    "numerics-003": ("4.5e3", Decimal("4.5") * 10**3),
    "numerics-004": ("-17 + 9", -17 + 9),
    "numerics-005": ("metres are 3.2 kilometres", Decimal("3.2") * 1000),
    "numerics-006": ("15% of 240", Fraction(15, 100) * 240),
    "numerics-007": ("29 is divided by 6", 29 % 6),
    "numerics-008": ("binary number 101101", 0b101101),
    "numerics-009": ("Round 3.14159 to 2", round(Decimal("3.14159"), 2)),
    "numerics-010": ("exactly:\n7402918365\n", 7402918365),
    "numerics-011": ("5,638 + 7,894", 5638 + 7894),
    "numerics-012": ("3/8", Fraction(3, 8)),
    "numerics-013": ("0.00072", Decimal("0.00072")),
    "numerics-014": ("(-8) × (-12)", -8 * -12),
    "numerics-015": ("seconds are 2.5 hours", Fraction(5, 2) * 60 * 60),
    "numerics-016": ("18 is what percentage of 72", Fraction(18, 72) * 100),
    "numerics-017": ("1000 mod 7", 1000 % 7),
    "numerics-018": ("255 in hexadecimal", f"{255:x}"),
    "numerics-019": ("2,748,951 to the nearest thousand", round(2748951, -3)),
    "numerics-020": ("41, 7, 230, 18, 99.", sorted([41, 7, 230, 18, 99])),
    "numerics-021": ("98,765 × 43", 98765 * 43),
    "numerics-022": ("12.75 × 0.4", Decimal("12.75") * Decimal("0.4")),
    "numerics-023": ("6e5 × 3e-2", Decimal("6e5") * Decimal("3e-2")),
    "numerics-024": ("-45 - (-78)", -45 - -78),
    "numerics-025": ("metres per second are 72 kilometres per hour", Fraction(72 * 1000, 60 * 60)),
    "numerics-026": ("80 euros rises by 35%", 80 * Fraction(135, 100)),
    "numerics-027": ("last digit of 7 to the power of 20", 7**20 % 10),
    "numerics-028": ("octal number 777", 0o777),
    "numerics-029": ("square root of 7569", math.isqrt(7569)),
    "numerics-030": ("90817264 in reverse", int("90817264"[::-1])),
    "numerics-031": ("123,456,789 + 987,654,321", 123456789 + 987654321),
    "numerics-032": ("1000.05 - 0.875", Decimal("1000.05") - Decimal("0.875")),
    "numerics-033": ("-8.4e-7 divided by 2", Decimal("-8.4e-7") / 2),
    "numerics-034": ("-7.25 + 2.6", Decimal("-7.25") + Decimal("2.6")),
    "numerics-035": ("Celsius are 98.6 degrees Fahrenheit", (Fraction("98.6") - 32) * 5 / 9),
    "numerics-036": ("12.5% of 3,640", Fraction(125, 1000) * 3640),
    "numerics-037": ("-17 mod 5", -17 % 5),
    "numerics-038": ("decimal number 1000 in binary", int(f"{1000:b}")),
    "numerics-039": ("cube root of 29791", next(root for root in range(100) if root**3 == 29791)),
    "numerics-040": ("exactly:\n-0.000000123456789\n", Decimal("-0.000000123456789")),
    "numerics-041": ("734921 × 8056", 734921 * 8056),
    "numerics-042": ("5/7 as a decimal number, rounded to 6", round(Decimal(5) / 7, 6)),
    "numerics-043": ("2.5e-8 × 4e-5", Decimal("2.5e-8") * Decimal("4e-5")),
    "numerics-044": ("(-3) to the power of 5", (-3) ** 5),
    "numerics-045": ("grams are 0.25 micrograms", Decimal("0.25") / 10**6),
    "numerics-046": ("450 euros is first raised by 20%", 450 * Fraction(120, 100) * Fraction(80, 100)),
    "numerics-047": ("3^100 mod 13", 3**100 % 13),
    "numerics-048": ("hexadecimal number 3E8", 0x3E8),
    "numerics-049": ("4.5678e-5 to two significant digits", Decimal(f"{Decimal('4.5678e-5'):.1e}")),
    "numerics-050": ("0.5, -2.25, 3e-3, -2.3, 0.05, 1e2.", sorted([0.5, -2.25, 3e-3, -2.3, 0.05, 1e2])),
    "numerics-051": ("48273615 × 907342", 48273615 * 907342),
    "numerics-052": ("1/12 + 1/15", Fraction(1, 12) + Fraction(1, 15)),
    "numerics-053": ("6.02e23 × 1.5e-3", Decimal("6.02e23") * Decimal("1.5e-3")),
    "numerics-054": ("-144 / 9 - (-2)^4", -144 // 9 - (-2) ** 4),
    "numerics-055": ("1.609344 km. How many kilometres are 26.2", round(Decimal("1.609344") * Decimal("26.2"), 3)),
    "numerics-056": ("2,000 euros and earns 5% interest", 2000 * Fraction(105, 100) ** 3),
    "numerics-057": ("123456789 mod 97", 123456789 % 97),
    "numerics-058": ("hexadecimal numbers DEAD and BEEF", f"{0xDEAD + 0xBEEF:x}"),
    "numerics-059": ("square root of 2, rounded to 6", round(Decimal(2).sqrt(), 6)),
    "numerics-060": ("3185072946617350924480917263559018", "3185072946617350924480917263559018"),
}


@pytest.mark.parametrize("line", ids(read("numerics")))
def test_numerics_can_be_computed_again(line: Line) -> None:
    part, value = NUMERICS[line["id"]]
    assert part in line["prompt"]
    if line["extract"].endswith("number"):
        assert Fraction(str(line["answer"])) == Fraction(value)
    else:
        assert line["answer"] == value


@pytest.mark.parametrize("line", ids(of("code", "python")))
def test_python_prints_the_gold(line: Line) -> None:
    program = line["prompt"].split("```python\n")[1].split("\n```")[0]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {"__name__": "__main__"})
    text = printed.getvalue().strip()
    assert (text if line["extract"] == "line" else json.loads(text)) == line["answer"]


@pytest.mark.parametrize("line", ids(of("code", "sql")))
def test_sql_returns_the_gold(line: Line) -> None:
    setup, _, query = line["prompt"].split("```sql\n")[1].split("\n```")[0].rpartition("\n\n")
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.executescript(setup)
        assert base.execute(query).fetchall() == [(line["answer"],)]


@pytest.mark.parametrize("line", ids(of("code", "regex")))
def test_regular_expressions_match_as_the_gold_says(line: Line) -> None:
    pattern, text = re.findall(r"`(.*?)`", line["prompt"])[:2]
    assert (re.fullmatch(pattern, text) is not None) == (line["answer"] == "yes")


@pytest.mark.parametrize("line", ids(of("code", "bug")))
def test_the_wrong_line_exists(line: Line) -> None:
    assert f"\n{line['answer']}: " in line["prompt"]


@pytest.mark.parametrize("line", ids(of("structured-output", "escaping")))
def test_escaped_text_is_the_text_of_the_prompt(line: Line) -> None:
    assert list(line["answer"].values()) == [document(line)]


def test_many_languages_and_scripts() -> None:
    lines = read("multilingual")
    scripts = {unicodedata.name(letter).split()[0] for line in lines for letter in line["prompt"] if letter.isalpha()}
    assert len({line["category"] for line in lines}) >= 12
    assert {"LATIN", "CYRILLIC", "ARABIC", "DEVANAGARI", "CJK", "HANGUL", "GREEK", "HEBREW", "HIRAGANA"} <= scripts


def test_long_prompts_are_the_same_bytes_everywhere() -> None:
    """Results on these prompts are compared across machines and versions of Python: a change must be meant."""
    text = json.dumps(long_context.make_prompts())
    assert text == json.dumps(long_context.make_prompts())
    assert hashlib.sha256(text.encode()).hexdigest() == "72e6486a478bc5de519127a31ad4db797e2508e6ded4b8bcb82a9d3ab1decf95"


def test_lengths_are_spread() -> None:
    lengths = sorted(len(document(line).split()) for line in read("long-context"))
    for number, words in enumerate(long_context.WORDS):
        assert all(0.9 * words <= length <= 1.2 * words for length in lengths[10 * number : 10 * number + 10])


@pytest.mark.parametrize("genre", documents.GENRES)
def test_filler_repeats_no_sentence_and_does_not_mention_the_facts(genre: str) -> None:
    sentences = documents.filler(Chance(1), genre, 5000)
    assert len(set(sentences)) == len(sentences) > 300
    words = set(re.findall(r"\w+", " ".join(sentences)))
    planted = (ANIMALS, PASSWORDS, TOWNS, BOATS)
    assert not words & {*(word for pool in planted for word in pool), "fund", "barge", "cost", "lives", "locker"}


@pytest.mark.parametrize("line", ids(of("long-context", "needle")))
def test_a_needle_is_stated_once(line: Line) -> None:
    subject = in_question(r"What is the (.+?)\?", line)
    assert re.findall(rf"The {subject} is (\w+)\.", document(line)) == [str(line["answer"])]
    assert len(re.findall(rf"\b{line['answer']}\b", document(line))) == 1


@pytest.mark.parametrize("line", ids(of("long-context", "several")))
def test_several_needles_are_in_the_order_given(line: Line) -> None:
    stated = dict(re.findall(r"The ([a-z ]+) is (\d{4})\.", document(line)))
    subjects = re.split(r", the | and the ", in_question(r"What are the (.+?)\?", line))
    assert [int(stated[subject]) for subject in subjects] == line["answer"]


@pytest.mark.parametrize("line", ids(of("long-context", "count")))
def test_the_word_occurs_as_often_as_stated(line: Line) -> None:
    assert document(line).lower().count(in_question(r'the word "(\w+)"', line)) == line["answer"]


@pytest.mark.parametrize("line", ids(of("long-context", "latest")))
def test_the_last_value_is_the_gold(line: Line) -> None:
    item = in_question(r"What is the (.+) at the end", line)
    values = re.findall(rf"[Tt]he {item} .*?(\d+) (?:pence|crowns)\.", document(line))
    assert len(values) >= 2 and int(values[-1]) == line["answer"]


@pytest.mark.parametrize("line", ids(of("long-context", "hop")))
def test_the_hops_lead_to_the_town(line: Line) -> None:
    name = r"([A-Z]\w+ [A-Z]\w+)"
    links = dict(re.findall(rf"{name} (?:works for|is married to|shares an office with) {name}\.", document(line)))
    homes = dict(re.findall(rf"{name} lives in (\w+)\.", document(line)))
    person = links[in_question(name, line)]
    if "employer" in question(line):
        person = links[person]
    assert homes[person] == line["answer"] and document(line).count(line["answer"]) == 1


@pytest.mark.parametrize("line", ids(of("long-context", "order")))
def test_the_years_give_the_order(line: Line) -> None:
    years = {event: int(year) for year, event in re.findall(r"In (\d{4}), (.+?)\.", document(line))}
    options = re.findall(r"^([A-D])\) (.+)$", question(line), re.MULTILINE)
    letters = [letter for letter, _ in sorted(options, key=lambda option: years[option[1]])]
    rank = {"first": 0, "second": 1, "last": 3}[in_question(r"these four came (\w+)", line)]
    assert letters[rank] == line["answer"]


@pytest.mark.parametrize("line", ids(of("long-context", "absent")))
def test_a_price_is_stated_where_the_gold_says_so(line: Line) -> None:
    thing = in_question(r"the (\w+ \w+) cost", line)
    stated = re.findall(rf"The {thing} cost (\d+) crowns\.", document(line))
    assert f"The {thing} weighs" in document(line)
    assert len(stated) == (0 if line["answer"] in ("no", "not stated") else 1)
    assert line["answer"] in ("yes", "no", "not stated", *stated)


@pytest.mark.parametrize("line", ids(of("long-context", "table")))
def test_the_table_has_the_cell_once(line: Line) -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]\w+ [A-Z]\w+) \| (\d+) \|$", document(line), re.MULTILINE)
    given = re.findall(r"\d+|[A-Z]\w+ [A-Z]\w+", question(line))
    assert len([row for row in rows if given[0] in row and str(line["answer"]) in row]) == 1
    assert len([row for row in rows if given[0] in row]) == 1


@pytest.mark.parametrize("line", ids(of("long-context", "sum")))
def test_the_payments_add_up(line: Line) -> None:
    fund = in_question(r"paid into the (.+) in all", line)
    amounts = re.findall(rf"paid (\d+) crowns into the {fund}\.", document(line))
    assert sum(map(int, amounts)) == line["answer"]


@pytest.mark.parametrize("line", ids(of("long-context", "compare")))
def test_the_barge_is_the_extreme_one(line: Line) -> None:
    sacks = {boat: int(number) for boat, number in re.findall(r"barge (\w+) carried (\d+) sacks", document(line))}
    best = {"most": max, "fewest": min}[in_question(r"carried the (\w+) sacks", line)]
    assert best(sacks, key=sacks.__getitem__) == line["answer"]
