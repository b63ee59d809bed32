"""Lists of samples: filters, order, pages and neighbours, against the samples files themselves."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Event

import pytest

from mill.api.errors import MillError
from mill.metrics.estimate import exact_interval
from mill.view.index import ResultsIndex, build_search
from mill.view.overview import search_progress
from mill.view.queries import (
    SampleFilter,
    categories,
    list_samples,
    neighbours,
    read_filter,
    read_sample,
    search_query,
)
from tests.view.conftest import lines_of, uid_of_model


def listed(index: ResultsIndex, **given: str) -> list[tuple[str, str]]:
    """Task and id of all samples, read in pages of 7."""
    found, after = list[tuple[str, str]](), ""
    while True:
        page = list_samples(index, read_filter({**given, "limit": "7", "after": after}))
        found += [(row["task"], row["id"]) for row in page["rows"]]
        if page["next"] is None:
            assert len(found) == page["total"]
            return found
        after = page["next"]


@pytest.mark.parametrize("descending", ["", "1"])
@pytest.mark.parametrize(
    ("sort", "column"), [("v0", "word_perplexity"), ("id", "id"), ("seconds", "seconds"), ("prompt_tokens", "prompt_tokens")]
)
def test_every_order_gives_all_samples_once(
    index: ResultsIndex, results: Path, sort: str, column: str, descending: str
) -> None:
    lines = {line["id"]: line for line in lines_of(results, "two", "toy_text")}
    found = [name for _, name in listed(index, run=uid_of_model(index, "two"), task="toy_text", sort=sort, desc=descending)]
    assert sorted(found) == sorted(lines)
    values = [lines[name][column] for name in found]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=bool(descending))
    assert values[len(known) :] == [None] * (len(values) - len(known))  # without a value: last


def test_next_and_previous_walk_through_a_filtered_list(index: ResultsIndex) -> None:
    run = uid_of_model(index, "one")
    given = {"run": run, "task": "toy_gen", "status": "wrong", "sort": "id", "desc": "1"}
    names = [name for _, name in listed(index, **given)]
    for before, name, after in zip([None, *names], names, [*names[1:], None], strict=False):
        found = neighbours(index, read_filter(given), name, "toy_gen")
        assert (found["previous"] or {}).get("id") == before
        assert (found["next"] or {}).get("id") == after


def test_a_sample_is_read_as_the_file_has_it(index: ResultsIndex, results: Path) -> None:
    for line in random.Random(0).sample(lines_of(results, "one", "toy_dialog"), 5):
        assert read_sample(index, uid_of_model(index, "one"), "toy_dialog", line["id"]) == line
    with pytest.raises(MillError, match="unknown sample 'story-99'"):
        read_sample(index, uid_of_model(index, "one"), "toy_dialog", "story-99")


def test_the_interval_of_a_category_is_exact(index: ResultsIndex, results: Path) -> None:
    (one,) = categories(index, uid_of_model(index, "two"), "toy_gen")
    scored = [line["exact_match"] for line in lines_of(results, "two", "toy_gen") if not line["error"]]
    assert (one["n"], one["failed"]) == (40, 11)
    assert one["estimate"]["value"] == sum(scored) / len(scored)
    assert (one["estimate"]["low"], one["estimate"]["high"]) == exact_interval(int(sum(scored)), len(scored))


def test_search_finds_words_of_prompts_and_answers(index: ResultsIndex, results: Path) -> None:
    build_search(index, Event())
    assert search_progress(index) == {"done": 280, "total": 280}
    run = uid_of_model(index, "one")
    assert listed(index, run=run, task="toy_gen", q="toy_gen 17") == [("toy_gen", "17")]
    answered = [("toy_gen", line["id"]) for line in lines_of(results, "one", "toy_gen") if line["response"] == "answer 3"]
    found = set(listed(index, run=run, task="toy_gen", q="answer 3"))
    assert found >= set(answered)
    assert listed(index, run=run, q="nowhere-to-be-found") == []


@pytest.mark.parametrize(
    "text",
    ['"', '" OR 1', "NEAR(", "a* b* ^c", "prompt: x", "-", "'; DROP TABLE samples", "\0", "(" * 50, "a_b", "नमस्ते", "日本語"],
)
def test_no_search_is_a_query_of_its_own(index: ResultsIndex, text: str) -> None:
    build_search(index, Event())
    list_samples(index, SampleFilter(uid_of_model(index, "one"), search=text))
    assert index.database.connection().execute("SELECT count(*) FROM samples").fetchone()[0] == 280


def test_search_query_quotes_words() -> None:
    assert search_query("big brown fo") == '"big" "brown" "fo"*'
    assert search_query('a "b" - c') == '"a" "b" "c"*'
    assert search_query(" - * ") == ""


@pytest.mark.parametrize(
    "given",
    [
        {"sort": "name; DROP TABLE"}, {"status": "perfect"}, {"flag": "x"}, {"limit": "0"}, {"limit": "10000"},
        {"limit": "x"}, {"after": "x"}, {"after": "n:x~1"}, {"after": "~99999999999999999999"},
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(MillError):
        read_filter(given)
