"""Requests hash by content, options have one spelling, and responses survive JSON."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import fields
from typing import Any

import pytest

from mill.api.errors import SpecError
from mill.api.message import Context, Labels, Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request, generation_options
from mill.api.response import Response, Token
from mill.api.tools import MALFORMED, ToolCall, ToolResult


def test_content_hash_is_blake2b_of_the_sorted_json() -> None:
    request = Request(GENERATE, "é=", options={"until": ("\n",), "max_gen_toks": 8})
    text = '["generate_until", "é=", "", {"max_gen_toks": 8, "until": ["\\n"]}, []]'
    assert request.content_hash == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        Request(ROLLING, "a", "b"),
        Request(LOGLIKELIHOOD, "a ", "b"),
        Request(LOGLIKELIHOOD, "a", " b"),
        Request(LOGLIKELIHOOD, "ab"),
        Request(LOGLIKELIHOOD, (Message("user", "a"),), "b"),
        Request(LOGLIKELIHOOD, "a", "b", options={"x": 1}),
        Request(LOGLIKELIHOOD, "a", "b", labels=Labels(("c",))),
    ],
    ids=["kind", "context", "continuation", "boundary", "dialog", "options", "labels"],
)
def test_every_part_of_the_request_changes_the_hash(other: Request) -> None:
    assert other.content_hash != Request(LOGLIKELIHOOD, "a", "b").content_hash


def test_an_option_that_json_cannot_encode_is_refused() -> None:
    with pytest.raises(TypeError, match="a request option of type set cannot be hashed"):
        _ = Request(GENERATE, "q", options={"until": {"a"}}).content_hash


def test_the_key_includes_every_draw_but_the_first() -> None:
    first, third = Request(GENERATE, "q"), Request(GENERATE, "q", draw=2)
    assert first.key == first.content_hash
    assert third.key == f"{first.content_hash}#2"


def test_clones_are_one_request_for_each_draw() -> None:
    clones = Request(GENERATE, "q", repeats=3, draw=4).clones()
    assert [(clone.draw, clone.repeats, clone.context) for clone in clones] == [(4, 1, "q"), (5, 1, "q"), (6, 1, "q")]


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ({"temperature": 0.7}, 0.7),
        ({"temperature": "0.7"}, 0.7),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": 0.3}, 0.3),
        ({"do_sample": False}, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"do_sample": None, "temperature": None}, 0.0),
    ],
)
def test_temperature_alone_selects_sampling(given: dict[str, Any], temperature: float) -> None:
    options = generation_options(**given)
    assert options["temperature"] == temperature
    assert "do_sample" not in options


def test_every_field_survives_json() -> None:
    tokens = (Token(7, "é", -0.5, ((7, -0.5), ("other", float("-inf")))), Token(None, "x", -1.0))
    ranking = (("cat", -1.0), ("dog", -2.0))
    response = Response(
        "é", -1.5, True, "cat", ranking, tokens, "late", "stop", 3, 4, 5, 0.25, 0.125, 2,
        reasoning="hm",
        reasoning_tokens=1,
        cached_tokens=2,
        retry_reason="HTTP 503",
        tool_calls=(ToolCall.parse("add", '{"a": 1}', "call1"), ToolCall.parse("add", '{"a": ')),
        tool_results=(ToolResult("add", "1", id="call1"), ToolResult("add", "no JSON", MALFORMED)),
        distribution="default/file.npy",
    )  # fmt: skip
    assert all(getattr(response, f.name) not in (None, 0, ()) for f in fields(Response))
    restored = Response.from_dict(json.loads(json.dumps(response.to_dict())))
    assert restored == response and restored.distribution == response.distribution


@pytest.mark.parametrize(
    ("response", "empty"),
    [
        (Response(), True),
        (Response(text=""), True),
        (Response(text=" \n"), True),
        (Response(text="a"), False),
        (Response(score=0.0), False),
        (Response(label=""), False),
        (Response(error="timeout"), False),
    ],
)
def test_empty_is_a_response_without_content(response: Response, empty: bool) -> None:
    assert response.empty is empty


REFUSED = {
    "a stop string that is a number": ({"until": 5}, "until=5 must be a text or a list of texts"),
    "stop strings that are no texts": ({"until": ["a", 5]}, "must be a text or a list of texts"),
    "an empty stop string": ({"until": ["a", ""]}, "has an empty string"),
    "half a token": ({"max_gen_toks": 1.5}, "max_gen_toks=1.5 is not a whole number"),
    "a seed that is a word": ({"seed": "abc"}, "seed=abc is not a number"),
    "a truth value for a number": ({"temperature": True}, "temperature=True is not a number"),
    "a number for a truth value": ({"do_sample": 2}, "do_sample=2 is not true or false"),
    "not a number": ({"temperature": float("nan")}, "temperature=nan is not a number"),
    "no penalty at all": ({"repetition_penalty": 0}, "repetition_penalty=0 is not between"),
    "more tokens than any answer has": ({"max_gen_toks": 10**400}, "is not between 1 and 1e+09"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_decoding_option_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        generation_options(**given)


def test_numbers_keep_their_json_so_that_recorded_responses_match() -> None:
    options = generation_options(temperature=1, top_p=1, top_k=5.0, repetition_penalty=1, logprobs="5")
    assert json.dumps(
        {name: options[name] for name in ("logprobs", "repetition_penalty", "temperature", "top_k", "top_p")}
    ) == ('{"logprobs": 5, "repetition_penalty": 1, "temperature": 1.0, "top_k": 5, "top_p": 1}')


def test_a_hash_does_not_depend_on_the_requests_before_it() -> None:
    """What contexts have in common is digested once, whatever follows it."""
    chance = random.Random(0)
    words = ['the "quick"', "\\ brown\n", "fox\x01 ", "\ud800", "\udc00", "né ", "🦊", "A"]
    examples = ["".join(chance.choices(words, k=chance.randrange(30))) for _ in range(4)]
    dialog = (Message("user", "hi"),)
    for _ in range(500):
        kind = chance.choice([LOGLIKELIHOOD, GENERATE])
        text = chance.choice(examples) + "".join(chance.choices(words, k=chance.randrange(12)))
        context: Context = dialog if chance.random() < 0.2 else text
        given: Any = text if context is text else [message.to_dict() for message in dialog]
        parts = [kind, given, "B", {}, []]
        whole = json.dumps(parts, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
        assert Request(kind, context, "B").content_hash == hashlib.blake2b(whole, digest_size=16).hexdigest()
