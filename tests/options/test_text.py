"""The texts of options as values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mill.api.errors import MillError, SpecError
from mill.options.definitions import EvalOptions, merge
from mill.options.option import format_pairs, options_of, parse_pairs

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
    assert parse_pairs(text) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a", "'a' is not key=value"),
        ("=5", "'=5' is not key=value"),
        ("a=1,a=2", "a is given twice"),
        ('a="\\x"', "has an invalid escape"),
        ("until=[", "have brackets that do not match"),
        ("until=[a,b", "have brackets that do not match|is not key=value"),
        ("until=[[a]]", "have brackets that do not match"),
        ({1: 2}, "1 is not the name of an option"),
        ({None: 2}, "None is not the name of an option"),
    ],
)
def test_invalid_pairs_are_refused(given: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("\\", "\\\\")):
        parse_pairs(given)


def test_lists_are_split_outside_brackets() -> None:
    models = options_of(EvalOptions)["models"]
    assert models.read("hf[path=a,dtype=b], c", "models") == ["hf[path=a,dtype=b]", "c"]
    assert models.read(["hf[path=a,dtype=b]", "c,d"], "models") == ["hf[path=a,dtype=b]", "c,d"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.dictionaries(st.sampled_from(["until", "stop"]), TEXTS | st.lists(TEXTS, max_size=3)))
def test_formatted_pairs_are_read_back(pairs: dict[str, Any]) -> None:
    assert parse_pairs(format_pairs(pairs)) == pairs


def test_the_token_limit_is_one_option() -> None:
    """The command line's spelling replaces whichever the run file has; two in one place are refused."""
    assert merge({"max_tokens": 3}, {"gen_kwargs": {"max_gen_toks": 9, "top_k": 2}}) == {
        "max_tokens": 3,
        "gen_kwargs": {"top_k": 2},
    }
    assert merge({"gen_kwargs": {"max_new_tokens": 3}}, {"max_tokens": 9}) == {"gen_kwargs": {"max_new_tokens": 3}}
    assert EvalOptions(max_tokens=3, gen_kwargs={"top_k": 2}).settings.gen_kwargs == {"top_k": 2, "max_gen_toks": 3}
    with pytest.raises(MillError, match="max_tokens and max_gen_toks in gen_kwargs are one option"):
        merge({"max_tokens": 3, "gen_kwargs": {"max_gen_toks": 3}})


def test_a_quoted_item_of_a_list_may_be_an_equals_sign() -> None:
    assert parse_pairs('until=["="],stop=""') == {"until": ["="], "stop": ""}
    assert parse_pairs('until=["a", "=,"],top_k=1') == {"until": ["a", "=,"], "top_k": 1}
