"""Two answers to one sample: where they diverge, and what counts as changed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mill.api.response import Token
from mill.checks.answers import DOCUMENT, Answer
from mill.checks.pairing import AnswerPair, Divergence, margin_at, pair

TOP = ((1, -0.1), (2, -2.5))
MARGIN: Any = pytest.approx(2.4)  # between the two top_logprobs


def answer(text: str = "", *, id: str = "1", task: str = "t", **known: Any) -> Answer:
    return Answer(task, id, "c", "a prompt", None, text, **known)


def tokens(*texts: str, ids: bool = True, top: tuple[tuple[int | str, float], ...] = TOP) -> tuple[Token, ...]:
    """Each text's id is its length and its first letter's number, so that equal texts have equal ids."""
    return tuple(Token(100 * len(text) + ord(text[0]) if ids else None, text, -0.1, top) for text in texts)


def test_texts_diverge_at_the_first_token_with_another_id() -> None:
    a = answer("the cat sat", tokens=tokens("the", " cat", " sat"))
    b = answer("the dog sat", tokens=tokens("the", " dog", " sat"))
    b = answer("the dog sat", tokens=(b.tokens[0], Token(999, " dog", -0.2), b.tokens[2])) if b.tokens else b
    assert AnswerPair(a, b).divergence == Divergence(char=4, token=2, margin=MARGIN)


def test_ids_distinguish_tokens_with_equal_texts() -> None:
    """Half a character each: both decode to a replacement character, but the tokens differ."""
    a = answer("x\u00e9", tokens=(Token(1, "x", 0.0), Token(2, "\ufffd", -0.3), Token(3, "\ufffd", -0.1)))
    b = answer("x\u00e8", tokens=(Token(1, "x", 0.0), Token(2, "\ufffd", -0.3), Token(4, "\ufffd", -0.1)))
    assert AnswerPair(a, b).divergence == Divergence(char=1, token=3, margin=None)


def test_texts_diverge_by_characters_where_an_engine_returns_no_tokens() -> None:
    assert AnswerPair(answer("abcd", tokens=tokens("abcd")), answer("abxd")).divergence == Divergence(char=2)
    assert AnswerPair(answer("ab"), answer("abc")).divergence == Divergence(char=2)


def test_a_text_that_ends_earlier_diverges_at_its_end() -> None:
    a, b = answer("ab", tokens=tokens("a", "b")), answer("abc", tokens=tokens("a", "b", "c"))
    assert AnswerPair(a, b).divergence == Divergence(char=2, token=3, margin=MARGIN)  # of the longer answer
    assert AnswerPair(b, a).divergence == Divergence(char=2, token=3, margin=MARGIN)


def test_margins_need_two_top_logprobs() -> None:
    assert margin_at(tokens("a", top=((1, -0.25), (2, -0.75), (3, -5.0))), 0) == 0.5
    assert margin_at(tokens("a", top=((1, -0.25),)), 0) is None
    assert margin_at(tokens("a", top=()), 0) is None
    assert margin_at(tokens("a"), 1) is None


def test_a_failed_sample_counts_in_a_score_if_the_other_side_has_a_value_or_it_has_gold() -> None:
    failed = answer(error="timeout")
    assert AnswerPair(answer(value=1.0), failed).values == (1.0, "failed")
    assert AnswerPair(answer(), failed).values == (None, "failed") and AnswerPair(failed, failed).values == (None, None)
    gold = Answer("t", "1", "c", "p", "42", "", error="timeout")
    assert AnswerPair(gold, gold).values == ("failed", "failed")


def test_all_repeats_of_a_sample_are_paired() -> None:
    """With fewer repeats on one side, each of the other's still has a partner."""
    first = [answer(text, id=id) for id in ("1", "2") for text in ("a", "b", "c", "d")]
    second = [answer(text, id=id) for id in ("2", "1") for text in ("x", "y")]
    found = pair(first, second)
    assert [(a.id, a.text, b.id, b.text) for a, b in found.pairs[:4]] == [
        ("1", "a", "1", "x"), ("1", "b", "1", "y"), ("1", "c", "1", "x"), ("1", "d", "1", "y"),
    ]  # fmt: skip
    assert (len(found.pairs), found.unpaired) == (8, 0)
    assert pair(first, [answer("x", id="1")]).unpaired == 1, "samples are counted, not repeats"


def test_only_samples_of_both_runs_are_paired() -> None:
    first = [answer("a", id="1"), answer("b", id="2"), answer("c", id="2", task="other")]
    second = [answer("d", id="2"), answer("e", id="3")]
    pairing = pair(first, second)
    assert [(a.text, b.text) for a, b in pairing.pairs] == [("b", "d")]
    assert (pairing.unpaired, pairing.different_data) == (3, 0)


def row(id: str, data: str, prompt: str = "p") -> Answer:
    return Answer("t", id, "c", prompt, None, f"answer to {data}", data_hash=data, request_key=f"request {data} {prompt}")


def test_different_data_with_the_same_ids_is_no_pair() -> None:
    pairing = pair([row("1", "x"), row("2", "y")], [row("1", "z"), row("2", "y")])
    assert [(a.id, b.id) for a, b in pairing.pairs] == [("2", "2")]
    assert (pairing.unpaired, pairing.different_data) == (2, 1)


def test_the_same_data_with_different_ids_is_a_pair() -> None:
    pairing = pair([row("1", "x"), row("2", "y")], [row("7", "y"), row("8", "x")])
    assert [(a.id, b.id) for a, b in pairing.pairs] == [("1", "8"), ("2", "7")]
    assert (pairing.unpaired, pairing.different_data) == (0, 0)


def test_equal_rows_are_paired_once_each_by_id() -> None:
    pairing = pair([row("1", "x"), row("2", "x"), row("3", "x")], [row("2", "x"), row("9", "x")])
    assert [(a.id, b.id) for a, b in pairing.pairs] == [("1", "9"), ("2", "2")]
    assert pairing.unpaired == 1


def test_many_equal_rows_are_paired_quickly() -> None:
    """All rows are equal: a linear search through the unpaired ones would take minutes."""
    rows = [row(str(n), "x") for n in range(20_000)]
    assert len(pair(rows, list(reversed(rows))).pairs) == 20_000


def test_documents_that_are_impossible_to_both_are_identical() -> None:
    gone = answer(scores=(-math.inf,), units=5.0, form=DOCUMENT)
    assert AnswerPair(gone, gone).similarity == 1.0 and AnswerPair(gone, gone).identical
    assert AnswerPair(answer(scores=(-5.0,), units=5.0, form=DOCUMENT), gone).similarity == 0.0
