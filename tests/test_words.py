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
    r"proofs?|prove[sdn]?|doubts?|trusted": "canary, health check",
    r"asked|asks?|asking": "sent, requested, config",
    r"answered": "completed, responses",
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
    r"beginnings?|begins? alike": 18,
    r"kept": 100,
    r"(?<!by )hands?|hire[sd]?|take_up": 19,
    r"remarks?|told|tells?|telling|said|aloud": 290,
    r"(?:found|finds?) out|by trying": 4,
    r"proofs?|prove[sdn]?|doubts?|trusted": 39,
    r"asked|asks?|asking": 404,
    r"answered": 103,
    r"rivals?|likeliest": 53,
    r"part(?:ed|ings?)": 33,
    r"(?<!in )places?": 490,
    r"news|standing": 31,
    r"lends?|lent|borrow(?:s|ed)?|siblings": 12,
    r"under way|company": 16,
    r"figures?": 146,
    r"pictures?": 111,
    r"sounds?": 25,
    r"a person|people's|one's own": 31,
    r"whoever|whatever|somebody|nobody": 102,
    r"anew": 10,
    r"go(?:es)? on|went on": 18,
    r"look(?:s|ed|ing)? at": 18,
    r"held against|holds? against": 9,
    r"put(?:s)? away|hush(?:ed)?": 5,
    r"(?:stands?|lies?|lay) (?:in|on|at|beside|below|where|there|first|under)": 41,
}
REMAINING_IN_PAGES: dict[str, dict[str, int]] = {
    "docs/checks.md": {
        r"kept": 4,
        r"remarks?|told|tells?|telling|said|aloud": 5,
        r"asked|asks?|asking": 3,
        r"answered": 1,
        r"rivals?|likeliest": 2,
        r"(?<!in )places?": 16,
        r"under way|company": 2,
        r"figures?": 4,
        r"whoever|whatever|somebody|nobody": 1,
        r"anew": 1,
        r"go(?:es)? on|went on": 1,
        r"held against|holds? against": 1,
        r"(?:stands?|lies?|lay) (?:in|on|at|beside|below|where|there|first|under)": 7,
    }
}

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


def test_a_word_is_found_in_identifiers_and_prose_but_not_inside_other_words() -> None:
    assert uses("_told tell_rows Told") == {r"remarks?|told|tells?|telling|said|aloud": 3}
    assert uses("replaced, counterpart, foresaid, wholesound") == {}
    assert uses(prose("a `told` word\n```\nwhoever\n```\n[figure](place.md)")) == {"figures?": 1}


if __name__ == "__main__":  # the numbers of REMAINING_IN_CODE as they are now
    print("".join(f'    r"{pattern}": {count},\n' for pattern, count in uses_in_code().items()))
