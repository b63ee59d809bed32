"""Results on the prompt suites of mill are compared across machines and versions, so a change of their bytes must be meant.

The gold answers were computed or checked when a suite was written; a new hash needs them checked again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter

import pytest

from mill.tasks.suite import SUITES

SHA256 = {
    "code": "ff4885b01942aa0b",
    "determinism": "5a9d288cb157409b",
    "long-context": "cc1f73ca6d4d7c85",
    "multilingual": "109b6066b5ebfa99",
    "numerics": "ee66e28a828ca206",
    "reasoning": "d69b8c04f1c647a0",
    "structured-output": "ea145907715f5fda",
}


@pytest.mark.parametrize("name", SHA256)
def test_a_suite_has_the_bytes_that_results_were_compared_on(name: str) -> None:
    assert hashlib.sha256(SUITES[name].read_bytes()).hexdigest()[:16] == SHA256[name]


def test_every_suite_has_sixty_numbered_prompts_and_shows_all_categories_at_its_start() -> None:
    """A run over the first few prompts is a small sample of the whole."""
    assert SUITES.keys() == SHA256.keys()
    prompts: Counter[str] = Counter()
    for name, file in SUITES.items():
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert [line["id"] for line in lines] == [f"{name}-{number:03}" for number in range(1, 61)]
        categories = Counter(line["category"] for line in lines)
        assert len(categories) >= 5 and min(categories.values()) >= 3
        assert all(re.fullmatch(r"[a-z]+", category) for category in categories)
        assert {line["category"] for line in lines[:20]} == set(categories)
        prompts.update(line["prompt"] for line in lines)
    assert max(prompts.values()) == 1
