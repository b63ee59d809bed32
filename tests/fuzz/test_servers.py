"""Answers of servers, broken in thousands of ways: an error or a valid answer, and never a wrong score."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mill.api.errors import ModelError
from mill.api.message import Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.models.http.client import Reply, _event
from mill.models.http.failures import Failure, parsed, raise_reported
from mill.models.http.server import response_to
from mill.models.litellm import _body_of
from mill.models.llama_cpp import LlamaCppModel, Props, Settings
from mill.models.openai_compat.answers import read_answer, read_models, read_window
from mill.models.openai_compat.model import OpenAICompatModel
from mill.models.openai_compat.scoring import ROUTES
from tests import recorded_answers as recorded
from tests.fuzz.cases import count, dice
from tests.fuzz.mutations import variant

CASES = count(500)
TEXT = Request(GENERATE, "The capital", options=generation_options(max_gen_toks=8, until=["\n"]))
WITH_LOGPROBS = Request(GENERATE, "The capital", options=generation_options(max_gen_toks=8, until=["\n"], logprobs=2))
CHAT = Request(GENERATE, (Message("user", "The capital"),), options=generation_options(max_gen_toks=8, until=["\n"]))
PAIR = Request(LOGLIKELIHOOD, "ab", "cd")
FINISHES = {None, "stop", "length", "tool_calls", "content_filter"}


class Canned:
    """Stands for the client of a model: every call gets the same bytes, read as the real one reads them."""

    concurrency, base_url, name = 1, "http://h", ""

    def __init__(self, body: bytes, tokens: bool = True) -> None:
        self.body, self.tokens = body, tokens

    async def post(self, path: str, body: Any, cap: int = 0) -> Reply:
        if path == "/tokenize" and self.tokens:
            return Reply({"tokens": [ord(char) for char in body.get("prompt", body.get("content"))]}, 0.1)
        found = parsed(self.body, "the server's answer") if self.body else None
        raise_reported(found)
        return Reply(found, 0.1)

    async def stream(self, path: str, body: Any, collector: Callable[[], Any]) -> Reply:
        answer = collector()
        for line in self.body.split(b"\n"):
            if line.startswith(b"data:") and line[5:].strip() not in (b"", b"[DONE]"):
                answer.feed(_event("", line[5:].strip()))
        return Reply(answer.whole(), 0.1, first_token_s=0.05)


def openai(body: bytes, *, route: str = "", tokenizes: bool = True, stream: bool = False) -> OpenAICompatModel:
    model = OpenAICompatModel("m", "http://h", stream=stream)
    model.client = Canned(body, tokenizes)  # type: ignore[assignment]
    model._tokenizes = tokenizes
    model._route = next((one for one in ROUTES if one.name == route), None)
    return model


def llama(body: bytes) -> LlamaCppModel:
    model = LlamaCppModel()
    model.client = Canned(body)  # type: ignore[assignment]
    model._props = Props(Settings(64))
    return model


async def through_litellm(request: Request, body: bytes) -> Response:
    found = parsed(body, "x")
    if not isinstance(found, dict):
        raise Failure("garbage", "no object")
    reply = Reply(_body_of(SimpleNamespace(model_dump=lambda: found)), 0.1)
    return read_answer(reply, request, lambda _: None)


async def next_token(request: Request, body: bytes) -> Response:
    model = openai(body, route="prompt_logprobs")
    model._has_next_tokens = True
    return await model._score(request)


Ask = Callable[[Request, bytes], Awaitable[Response]]
KINDS: dict[str, tuple[Any, Request, Ask]] = {
    "completion": (recorded.COMPLETION, TEXT, lambda asked, body: openai(body)._generate(asked)),
    "completion with tokens": (recorded.COMPLETION_TOKENS, WITH_LOGPROBS, lambda asked, body: openai(body)._generate(asked)),
    "chat": (recorded.CHAT, CHAT, lambda asked, body: openai(body)._generate(asked)),
    "chat with tokens": (recorded.CHAT_TOKENS, CHAT, lambda asked, body: openai(body)._generate(asked)),
    "litellm": (recorded.LITELLM, CHAT, through_litellm),
    "prompt_logprobs": (
        recorded.PROMPT_LOGPROBS,
        PAIR,
        lambda asked, body: openai(body, route="prompt_logprobs")._score(asked),
    ),
    "echo of ids": (recorded.ECHO, PAIR, lambda asked, body: openai(body, route="echo")._score(asked)),
    "echo of a text": (
        recorded.ECHO,
        PAIR,
        lambda asked, body: openai(body, route="echo", tokenizes=False)._score(asked),
    ),
    "next token": (recorded.NEXT_TOKEN, Request(LOGLIKELIHOOD, "ab", "c"), next_token),
    "llama.cpp": (recorded.LLAMA, WITH_LOGPROBS, lambda asked, body: llama(body)._generate(asked)),
    "llama.cpp scores": (recorded.LLAMA, Request(LOGLIKELIHOOD, "ab", "c"), lambda asked, body: llama(body)._score(asked)),
}


def with_body(ask: Ask, body: bytes) -> Callable[[Request], Awaitable[Response]]:
    return lambda request: ask(request, body)


def check(found: Response, kind: str) -> str:
    """A Response is an error or an answer with fields of the right types; returns which."""
    if found.error is not None:
        assert isinstance(found.error, str) and found.error and "\n" not in found.error and "\x1b" not in found.error
        assert "could not be read: " not in found.error, found.error  # an exception that nobody foresaw
        assert (found.text, found.score, found.tokens) == (None, None, None)
        return "error"
    if kind == GENERATE:
        assert type(found.text) is str and found.finish_reason in FINISHES
    else:
        assert type(found.score) is float and found.score <= 0 and type(found.is_greedy) is bool
    for tokens in (found.prompt_tokens, found.output_tokens):
        assert tokens is None or (type(tokens) is int and tokens >= 0)
    for token in found.tokens or ():
        assert type(token.text) is str and type(token.logprob) is float and token.logprob <= 0
        assert token.id is None or type(token.id) is int
        assert all(type(name) in (int, str) and value <= 0 for name, value in token.top)
    return "answer"


def number(value: Any) -> float:
    assert type(value) in (int, float) and not math.isnan(value) and value <= 1e-3, value
    return min(0.0, float(value))


def first_choice(body: Any) -> Any:
    """From the definition: the first choice that has the index 0, or is first without one."""
    for at, choice in enumerate(body["choices"]):
        if choice.get("index") == 0 or (at == 0 and choice.get("index") is None):
            return choice
    raise AssertionError("no choice of index 0")


def supported(kind: str, body: Any, found: Response) -> None:
    """What was read is what the document says, read once more by hand."""
    if kind == "prompt_logprobs":
        rows = first_choice(body)["prompt_logprobs"]
        assert len(rows) == 4
        assert found.score == sum(number(rows[at][str(ord(char))]["logprob"]) for at, char in ((2, "c"), (3, "d")))
    elif kind.startswith("echo"):
        logprobs = first_choice(body)["logprobs"]
        assert found.score == sum(number(score) for score in logprobs["token_logprobs"][2:4])
        if kind == "echo of a text" and isinstance(logprobs.get("tokens"), list):
            assert "".join(map(str, logprobs["tokens"]))[:4] == "abcd" and str(logprobs["tokens"][2])[:1] == "c"
    elif kind == "next token":
        choice = first_choice(body)
        assert found.score == number(choice["logprobs"]["top_logprobs"][0]["token_id:99"])
    elif kind == "llama.cpp scores":
        entry = body["completion_probabilities"][0]
        rows = entry["top_logprobs"]
        named = {row.get("id"): row for row in rows}
        assert found.score == number(named[99]["logprob"])
    elif kind == "llama.cpp":
        assert found.text == body["content"].partition("\n")[0] and body.get("stop") is not False
    else:
        choice = first_choice(body)
        text = choice.get("text") if choice.get("text") is not None else (choice.get("message") or {}).get("content")
        assert found.text == (text or "").partition("\n")[0]
        assert not choice.get("error") and choice.get("finish_reason") not in ("error", "abort")
    assert not isinstance(body, dict) or not body.get("error")


@pytest.mark.parametrize("kind", KINDS)
def test_broken_answers_are_errors_or_say_what_they_say(kind: str) -> None:
    document, request, ask = KINDS[kind]
    seen: Counter[str] = Counter()

    async def all_cases() -> None:
        for case in range(CASES):
            body = variant(document, dice(f"{kind}/{case}"))
            found = await response_to(request, with_body(ask, body))
            try:
                what = check(found, request.kind)
                if what == "answer":
                    supported(kind, json.loads(body.decode("utf-8", "surrogatepass")), found)
            except Exception as error:
                raise AssertionError(f"case {case}: {body!r} gave {found}") from error
            seen[what] += 1

    asyncio.run(all_cases())
    assert seen["answer"] > CASES / 50 and seen["error"] > CASES / 50, seen


def test_broken_streams_are_errors_or_whole() -> None:
    seen: Counter[str] = Counter()

    async def all_cases() -> None:
        for case in range(2 * CASES):
            chance = dice(f"stream/{case}")
            events = [json.dumps(event).encode() for event in recorded.STREAM]
            for _ in range(chance.choice((1, 1, 2))):
                at = chance.randrange(len(events))
                events[at : at + 1] = chance.choice(
                    ([], [events[at]] * 2, [variant(recorded.STREAM[min(at, len(recorded.STREAM) - 1)], chance)])
                )
                if not events:
                    break
            body = b"".join(b"data: " + event + b"\n\n" for event in events)
            found = await response_to(TEXT, openai(body, stream=True)._generate)
            seen[check(found, GENERATE)] += 1
            if not found.failed:
                assert b"finish_reason" in body and found.finish_reason is not None, body

    asyncio.run(all_cases())
    assert min(seen["answer"], seen["error"]) > CASES / 50, seen


def test_broken_lists_of_models_are_one_line() -> None:
    seen: Counter[str] = Counter()
    for case in range(2 * CASES):
        body = variant(recorded.MODELS, dice(f"models/{case}"))
        try:
            entries = read_models(parsed(body, "/v1/models"), "http://h/v1/models")
            windows = [read_window(entry, "http://h/v1/models") for entry in entries.values()]
            assert all(window is None or (type(window) is int and window >= 2) for window in windows)
            seen["list"] += 1
        except (ModelError, Failure) as error:
            assert "\n" not in str(error) and "\x1b" not in str(error)
            seen["error"] += 1
    assert min(seen.values()) > CASES / 50, seen


def test_broken_properties_of_llama_cpp_are_one_line() -> None:
    for case in range(CASES):
        chance = dice(f"props/{case}")
        bodies = {
            "/health": b"{}",
            "/props": variant(recorded.PROPS, chance),
            "/v1/models": variant(recorded.LLAMA_MODELS, chance) if case % 2 else json.dumps(recorded.LLAMA_MODELS).encode(),
            "/tokenize": variant({"tokens": [1]}, chance) if case % 3 else b'{"tokens": [1]}',
        }

        def probe(method: str, path: str, body: Any = None, bodies: Any = bodies) -> Reply:
            found = parsed(bodies[path], "the server's answer") if bodies[path] else None
            raise_reported(found)
            return Reply(found, 0.1)

        model = LlamaCppModel()
        model.client = SimpleNamespace(probe=probe, steady=False, concurrency=1)  # type: ignore[assignment]
        try:
            model._probe()
        except (ModelError, Failure) as error:
            assert "\n" not in str(error)
            continue
        assert model._window >= 2 and model.concurrency >= 1 and json.dumps(model.identity(), default=str)
