"""Docs, messages and identifiers use the words of the field. A metaphor or a private term makes a newcomer stop."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What not to write, and what to write instead. Letters on neither side, so that `_told` and `tell_rows` count as uses.
WORDS = {
    r"beginnings?|begins? alike": "shared prefix",
    r"kept": "stored, cached",
    r"(?<!by )hands?|hire[sd]?|take_up": "worker, start, open_replica",
    r"remarks?|told|tells?|telling|said|aloud": "warning, reported, logged",
    r"(?:found|finds?) out|by trying": "probe",
    r"doubts?|trusted": "canary, health check",
    r"asked|asks?|asking": "sent, requested, config",
    r"rivals?|likeliest": "top_logprobs, argmax",
    r"part(?:ed|ings?)": "diverge, divergence",
    r"(?<!in )places?": "index, position, path, offset",
    r"news|standing": "update, merged",
    r"lends?|lent|borrow(?:s|ed)?|siblings": "share, reuse, other_runs",
    r"under way|company": "in flight, batch composition",
    r"figures?": "metric, measurement",
    r"pictures?": "image",
    r"sounds?": "audio",
    r"a person|people's|one's own": "user, third-party, custom",
    r"whoever|whatever|somebody|nobody": "name the actor",
    r"anew": "again, fresh",
    r"go(?:es)? on|went on": "continue, resume",
    r"look(?:s|ed|ing)? at": "check, inspect, read",
    r"held against|holds? against": "checked against",
    r"put(?:s)? away|hush(?:ed)?": "ignore, silence",
    r"(?:stands?|lies?|lay) (?:in|on|at|beside|below|where|there|first|under)": "is, is stored in",
}

# Uses that remain, by pattern. The numbers may only fall: lower them when you remove a use.
REMAINING_IN_CODE: dict[str, int] = {
    r"(?<!in )places?": 5,
    r"kept": 18,
    r"part(?:ed|ings?)": 3,
    r"whoever|whatever|somebody|nobody": 3,
    r"(?<!by )hands?|hire[sd]?|take_up": 2,
    r"pictures?": 7,
    r"asked|asks?|asking": 2,
    r"figures?": 2,
    r"sounds?": 1,
    r"rivals?|likeliest": 4,
}
REMAINING_IN_PAGES: dict[str, dict[str, int]] = {"docs/checks.md": {r"kept": 3}}  # an outcome of gate rules

# Pages that are written from other files; their words are counted there.
GENERATED = {"docs/cli.md"}


def uses(text: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for pattern in WORDS:
        counts[pattern] = len(re.findall(rf"(?<![a-z])(?:{pattern})(?![a-z])", text, flags=re.IGNORECASE))
    return +counts


def uses_in_code() -> Counter[str]:
    """Prompts and data are left out: benchmarks fix their texts."""
    files = [file for file in sorted(ROOT.glob("mill/**/*.py")) if "suites" not in file.parts]
    return sum((uses(file.read_text()) for file in files), Counter[str]())


def more_than(allowed: dict[str, int], counts: Counter[str]) -> dict[str, int]:
    return {pattern: count for pattern, count in counts.items() if count > allowed.get(pattern, 0)}


def prose(text: str) -> str:
    """A page without code blocks, code spans and addresses of links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", text))


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    if str(page.relative_to(ROOT)) in GENERATED:
        pytest.skip("written from the help texts in mill/cli")
    allowed = REMAINING_IN_PAGES.get(str(page.relative_to(ROOT)), {})
    counts = more_than(allowed, uses(prose(page.read_text())))
    assert not counts, {pattern: WORDS[pattern] for pattern in counts}


def test_the_code_uses_no_more_private_words_than_before() -> None:
    counts = more_than(REMAINING_IN_CODE, uses_in_code())
    assert not counts, {pattern: f"{count} uses; write {WORDS[pattern]}" for pattern, count in counts.items()}


@pytest.mark.parametrize("file", sorted(ROOT.glob("benchmarks/*.py")), ids=lambda file: file.name)
def test_a_benchmark_uses_the_words_of_the_field(file: Path) -> None:
    counts = uses(file.read_text())
    assert not counts, {pattern: WORDS[pattern] for pattern in counts}


def test_a_word_is_found_in_identifiers_and_prose_but_not_inside_other_words() -> None:
    assert uses("_told tell_rows Told") == {r"remarks?|told|tells?|telling|said|aloud": 3}
    assert uses("replaced, counterpart, foresaid, wholesound") == {}
    assert uses(prose("a `told` word\n```\nwhoever\n```\n[figure](place.md)")) == {"figures?": 1}


if __name__ == "__main__":  # the numbers of REMAINING_IN_CODE as they are now
    print("".join(f'    r"{pattern}": {count},\n' for pattern, count in uses_in_code().items()))
