"""What is typed for an option, as a value."""

from __future__ import annotations

from typing import Any

import click
import pytest

from mill.api.errors import SpecError
from mill.cli.values import BatchSize, Real, Texts, parse_pairs

PAIRS: dict[str, dict[str, Any]] = {
    "temperature=0.7,max-gen-toks=5": {"temperature": 0.7, "max_gen_toks": 5},
    "until=5": {"until": "5"},
    "stop=true": {"stop": "true"},
    "until=[a,b],top_k=3": {"until": ["a", "b"], "top_k": 3},
    'until=["a,b", "\\n\\n",Question:]': {"until": ["a,b", "\n\n", "Question:"]},
    "until=[]": {"until": []},
    'until="a,b"': {"until": "a,b"},
    "until='\\n'": {"until": "\n"},
    "a=\"5\",b='ü,ß'": {"a": "5", "b": "ü,ß"},
    "": {},
}


@pytest.mark.parametrize(("text", "wanted"), PAIRS.items(), ids=PAIRS)
def test_pairs_are_typed_values_and_stop_strings_are_texts(text: str, wanted: dict[str, Any]) -> None:
    assert parse_pairs(text, "--gen_kwargs") == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a", "'a' is not key=value"),
        ("=5", "'=5' is not key=value"),
        ("a=1,a=2", "a is given twice"),
        ('a="\\x"', "holds an escape that cannot be read"),
        ({1: 2}, "1 is not the name of an option"),
        ({None: 2}, "None is not the name of an option"),
    ],
)
def test_pairs_that_are_none_are_refused(given: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("\\", "\\\\")):
        parse_pairs(given, "--gen_kwargs")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", float("nan"), "x"])
def test_a_number_of_seconds_is_finite_and_not_below_zero(value: Any) -> None:
    with pytest.raises(click.BadParameter):
        Real(min=0).convert(value, None, None)


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "", 0, -1])
def test_a_batch_has_a_size(value: Any) -> None:
    with pytest.raises(SpecError, match="give a count of at least 1, or auto"):
        BatchSize().convert(value, None, None)
    assert BatchSize().convert("8", None, None) == 8


def test_texts_are_split_outside_brackets() -> None:
    assert Texts().convert("hf[path=a,dtype=b], c", None, None) == ["hf[path=a,dtype=b]", "c"]
    assert Texts().convert(["hf[path=a,dtype=b]", "c,d"], None, None) == ["hf[path=a,dtype=b]", "c,d"]
