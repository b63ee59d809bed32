"""Prompt suites: those that come with mill, and lines of JSON of one's own."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import DataError, UnknownName
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.metrics.extract import EXTRACTORS
from mill.tasks.suite import SUITES, SuiteTask, find_suite


def suite(tmp_path: Path, *lines: Any) -> SuiteTask:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return find_suite(str(file))


def score(task: SuiteTask, sample: Sample, text: str) -> dict[str, Any]:
    return task.score(sample, [Response(text=text)])


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_can_be_sent_and_scored(name: str) -> None:
    task = find_suite(name)
    samples = task.samples()
    assert len({sample.id for sample in samples}) == len(samples) >= 10
    for sample in samples:
        (request,) = task.requests(sample, RenderSettings())
        assert request.context == sample.doc["prompt"]
        if "answer" in sample.doc:
            assert sample.doc["extract"] in EXTRACTORS


@pytest.mark.parametrize("name", SUITES)
def test_a_gold_answer_written_out_is_right(name: str) -> None:
    task = find_suite(name)
    for sample in task.samples():
        if "answer" in sample.doc:
            gold = sample.doc["answer"]
            text = json.dumps(gold) if isinstance(gold, (dict, list)) else str(gold)
            text = f"{gold:e}" if sample.doc["extract"] == "e_number" else text
            assert score(task, sample, f"Answer: {text}")["acc"] == 1.0
            assert score(task, sample, "")["acc"] == 0.0


def test_answers_are_scored_where_gold_is_known(tmp_path: Path) -> None:
    task = suite(
        tmp_path,
        {"prompt": "sum", "answer": 12, "extract": "number"},
        {"prompt": "city", "answer": "Paris"},
        {"prompt": "object", "answer": {"a": 1}},
        {"prompt": "story"},
        {"prompt": "no gold", "answer": None},
    )
    total, city, made, story, none = task.samples()
    assert score(task, total, "It is 12.0") == {"acc": 1.0, "answered": 1.0}
    assert score(task, city, "Paris it is") == {"acc": 1.0, "answered": 1.0}
    assert score(task, made, '```{"a": 1.0}```') == {"acc": 1.0, "answered": 1.0}
    assert score(task, story, "Once") == {"acc": None, "answered": 1.0}
    assert score(task, none, "  ") == {"acc": None, "answered": 0.0}
    assert dict(task.metrics) == {"acc": "mean", "answered": "mean"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"question": "x"}, "line 2 has no text under 'prompt'; it has question"),
        ({"prompt": ""}, "line 2 has no text under 'prompt'"),
        (
            {"prompt": "a", "video": "a.mp4"},
            "line 2 has 'video', which is not sent with a prompt; --tasks FILE.jsonl runs the file as a task",
        ),
        ([1], "row 2 is a list, not an object"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named(tmp_path: Path, line: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        suite(tmp_path, {"prompt": "a"}, line).samples()


def test_unknown_names_are_refused_with_those_that_look_alike(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown prompt suite 'numeric'; did you mean numerics"):
        find_suite("numeric")
    with pytest.raises(UnknownName, match=r"'nmber'; did you mean number"):
        suite(tmp_path, {"prompt": "a", "extract": "nmber"}).samples()
    with pytest.raises(DataError, match="is empty"):
        suite(tmp_path).samples()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"answer": "abc", "extract": "number"}, "the answer 'abc', which extract=number finds in no text; give a number"),
        ({"answer": "F", "extract": "choice"}, "give a letter from A to E"),
        ({"answer": '{"a": 1}', "extract": "json"}, "give an object or a list, as JSON and not as text"),
        ({"answer": "?!"}, "give one line with a letter or a digit in it"),
        ({"answer": float("nan")}, "give a number"),
        ({"max_tokens": "5"}, "max_tokens '5', not a count of at least 1"),
        ({"tools": [{"name": "f"}]}, "has 'tools', which is not sent with a prompt; rename or remove the column"),
        ({"response_format": {"type": "json_object"}}, "has 'response_format', which is not sent with a prompt"),
        ({"system": "Be brief."}, "--tasks FILE.jsonl runs the file as a task, which sends it"),
    ],
)
def test_a_line_that_no_answer_could_satisfy_is_refused(tmp_path: Path, line: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as caught:
        suite(tmp_path, {"prompt": "a", **line}).samples()
    assert "the prompt suite mine, line 1" in str(caught.value) and words in str(caught.value)


def test_repeating_the_prompt_of_numerics_is_right_only_where_it_asks_for_a_copy() -> None:
    task = find_suite("numerics")
    for sample in task.samples():
        prompt = sample.doc["prompt"]
        parts = {prompt, *prompt.split("\n"), *re.split(r"(?<=[.?!])\s+", prompt)}
        credited = any(score(task, sample, part)["acc"] for part in parts)
        assert credited == prompt.removeprefix("Question: ").startswith("Copy this"), sample.id


@pytest.mark.parametrize(
    ("number", "text", "right"),
    [
        (3, "4.5e3 is 4.5 * 10^3", 0.0),
        (3, "4.5 \u00d7 10\u00b3", 0.0),
        (3, "4.5e3 = 4500", 1.0),
        (3, "4,500 (that is 4.5e3)", 1.0),
        (13, "0.00072", 0.0),
        (13, "0.00072 = 7.2e-4", 1.0),
        (13, "7.2 x 10^-4", 1.0),
    ],
)
def test_a_number_counts_in_the_notation_that_was_requested(number: int, text: str, right: float) -> None:
    task = find_suite("numerics")
    assert score(task, task.samples()[number - 1], text)["acc"] == right


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
