"""Servers that misbehave in every way of the table: what is recorded is an error, or it is right."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest

from mill.api.errors import ModelError, UnknownName
from mill.api.message import Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.models.http import client
from mill.models.llama_cpp import LlamaCppModel
from mill.models.openai_compat import OpenAICompatModel
from mill.models.spec.open import open_model
from tests import hostile, hostile_scores
from tests.hostile import Mode
from tests.servers import FaultServer, post_all, raw, status

OPTIONS = generation_options(max_gen_toks=8, until=["\n"])
TOLD = generation_options(max_gen_toks=8, until=["\n"], logprobs=2)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FIRST_PAUSE_S": 0.001, "LONGEST_PAUSE_S": 0.002, "ATTEMPTS": 2, "THROTTLED_ATTEMPTS": 3}.items():
        monkeypatch.setattr(client, name, value)


def held(mode: Mode, found: Response, warnings: list[str]) -> None:
    """What was recorded is what the mode says."""
    if mode.error:
        assert mode.error in (found.error or ""), found
        assert (found.text, found.score, found.tokens, found.finish_reason) == (None, None, None, None)
        assert hostile.KEY not in found.error and "\x1b" not in found.error and "\n" not in found.error
        return
    assert found.error is None, found
    if mode.score is not None:
        assert found.score == (mode.score if math.isinf(mode.score) else pytest.approx(mode.score))
    else:
        assert (found.text, found.finish_reason) == (mode.text, mode.finish)
    if mode.counts is not None:
        assert (found.prompt_tokens, found.output_tokens) == mode.counts
    assert any(mode.warning in warning for warning in warnings) if mode.warning else warnings == []


def opened(server: FaultServer, **arguments: Any) -> OpenAICompatModel:
    model = OpenAICompatModel("m", server.url, api_key=hostile.KEY, **{"timeout": 1.0, "concurrency": 2, **arguments})
    model._identify()
    return model


def generated(mode: Mode, *, bad: Any = "bad", options: Any = OPTIONS, **arguments: Any) -> None:
    """A good request and a bad one, of the same model at the same time."""

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return hostile.told() if body.get("prompt") == "good" else mode.answer

    with FaultServer(answer) as server:
        model = opened(server, **arguments)
        good, found = model.generate_until([Request(GENERATE, context, options=options) for context in ("good", bad)])
    assert (good.text, good.error) == ("ab", None)
    held(mode, found, model.warnings())


TEXTS = {
    **hostile.STATUSES,
    **hostile.REDIRECTS,
    **hostile.THROTTLES,
    **hostile.BODIES,
    **hostile.ERRORS,
    **hostile.FINISHES,
    **hostile.FIELDS,
    **hostile.COUNTS,
}


@pytest.mark.parametrize("mode", TEXTS.values(), ids=TEXTS)
def test_answers(mode: Mode) -> None:
    generated(mode)


@pytest.mark.parametrize("mode", hostile.STREAMS.values(), ids=hostile.STREAMS)
def test_streams(mode: Mode) -> None:
    generated(mode, stream=True)


@pytest.mark.parametrize("mode", hostile.TOKENS.values(), ids=hostile.TOKENS)
def test_log_probabilities_of_answers(mode: Mode) -> None:
    generated(mode, options=TOLD)


def test_log_probabilities_of_a_chat_answer_are_checked_too() -> None:
    generated(Mode(hostile.spoken(logprob=0.5), "above 0"), bad=(Message("user", "bad"),), options=TOLD)
    generated(Mode(hostile.spoken(), text="yes"), bad=(Message("user", "bad"),), options=TOLD)


def scored(mode: Mode, route: str) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            return {"tokens": [ord(char) for char in body["prompt"]]}
        return mode.answer

    from mill.models.openai_compat.scoring import ROUTES

    with FaultServer(answer) as server:
        model = opened(server)
        model._route = next(one for one in ROUTES if one.name == route)
        model._tokenizes = True
        model.capabilities = model.capabilities.__class__(supports_logprobs=True)
        (found,) = model.loglikelihood([Request(LOGLIKELIHOOD, "ab", "cd")])
    held(mode, found, model.warnings())


@pytest.mark.parametrize("mode", hostile_scores.ECHOES.values(), ids=hostile_scores.ECHOES)
def test_echoed_prompts(mode: Mode) -> None:
    scored(mode, "echo")


@pytest.mark.parametrize("mode", hostile_scores.PROMPTS.values(), ids=hostile_scores.PROMPTS)
def test_prompt_logprobs(mode: Mode) -> None:
    scored(mode, "prompt_logprobs")


def llama(mode: Mode) -> tuple[FaultServer, LlamaCppModel]:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return {"tokens": [ord(char) for char in body["content"]]} if path == "/tokenize" else mode.answer

    server = FaultServer(answer)
    server.gets = {"/health": {"status": "ok"}, "/props": hostile_scores.PROPS}
    server.__enter__()
    model = LlamaCppModel(base_url=server.url, timeout=1.0)
    model.ready()
    return server, model


@pytest.mark.parametrize("mode", hostile_scores.LLAMA_TEXTS.values(), ids=hostile_scores.LLAMA_TEXTS)
def test_answers_of_llama_cpp(mode: Mode) -> None:
    server, model = llama(mode)
    (found,) = model.generate_until([Request(GENERATE, "x", options=TOLD)])
    server.__exit__()
    held(mode, found, model.warnings())


@pytest.mark.parametrize("mode", hostile_scores.LLAMA_SCORES.values(), ids=hostile_scores.LLAMA_SCORES)
def test_scores_of_llama_cpp(mode: Mode) -> None:
    server, model = llama(mode)
    (found,) = model.loglikelihood([Request(LOGLIKELIHOOD, "x", "b")])
    server.__exit__()
    held(mode, found, model.warnings())


ODD_TOKENS = [None, "x", {}, {"tokens": None}, {"tokens": "x"}, {"tokens": ["1"]}, {"tokens": [1.5]}, {"tokens": [-1]}, [1]]


@pytest.mark.parametrize("told", ODD_TOKENS, ids=repr)
def test_tokens_that_are_none(told: Any) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return raw(json.dumps(told)) if path == "/tokenize" else hostile_scores.native()

    with FaultServer(answer) as server:
        server.gets = {"/health": {}, "/props": hostile_scores.PROPS}
        model = LlamaCppModel(base_url=server.url)
        model.ready()
        (found,) = model.loglikelihood([Request(LOGLIKELIHOOD, "x", "b")])
    assert "the answer of /tokenize is not valid" in (found.error or "") and found.score is None


@pytest.mark.parametrize(("told", "words"), hostile_scores.LISTINGS.values(), ids=hostile_scores.LISTINGS)
def test_lists_of_models(told: Any, words: str) -> None:
    with FaultServer(lambda *_: hostile.whole()) as server:
        server.gets["/v1/models"] = told
        with pytest.raises((ModelError, UnknownName)) as raised:
            open_model(f"{server.url}[model=m]").ready()
    line = str(raised.value)
    assert words in line and server.url in line and "\n" not in line and "\x1b" not in line


@pytest.mark.parametrize("told", hostile_scores.LISTED.values(), ids=hostile_scores.LISTED)
def test_lists_of_models_that_are_odd_and_good_enough(told: Any) -> None:
    with FaultServer(lambda *_: hostile.whole()) as server:
        server.gets["/v1/models"] = told
        model = open_model(f"{server.url}[model=m]")
        model.ready()
    assert model.capabilities.max_context_length is None


def test_a_context_that_cannot_be_read_can_be_given() -> None:
    with FaultServer(lambda *_: hostile.whole()) as server:
        server.metadata["max_model_len"] = "4096"
        model = open_model(f"{server.url}[model=m,max_context_length=2048]")
        model.ready()
    assert model.capabilities.max_context_length == 2048


@pytest.mark.parametrize(("told", "words"), hostile_scores.ODD_PROPS.values(), ids=hostile_scores.ODD_PROPS)
def test_properties_of_llama_cpp(told: Any, words: str) -> None:
    with FaultServer(lambda *_: {"tokens": [1]}) as server:
        server.gets = {"/health": {}, "/props": told}
        with pytest.raises(ModelError, match=r"127\.0\.0\.1") as raised:
            LlamaCppModel(base_url=server.url).ready()
    assert words in str(raised.value)


ODD_LISTS = [None, [], "x", {"data": "x"}, {"data": [7]}, {"data": [{"meta": "x"}]}, {"data": [{"meta": {"n_vocab": "9"}}]}]


@pytest.mark.parametrize("told", ODD_LISTS, ids=repr)
def test_lists_of_models_of_llama_cpp(told: Any) -> None:
    with FaultServer(lambda *_: {"tokens": [1]}) as server:
        server.gets = {"/health": {}, "/props": hostile_scores.PROPS, "/v1/models": raw(json.dumps(told))}
        with pytest.raises(ModelError, match="/v1/models is not valid"):
            LlamaCppModel(base_url=server.url).ready()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_a_body_without_end_costs_no_more_memory_than_the_cap(packed: bool) -> None:
    """A thousand MiB behind one, and what is not packed at all."""
    fault = raw(hostile.bomb(1024), Content_Encoding="gzip") if packed else hostile.BODIES["an endless body"].answer
    with FaultServer(lambda *_: fault) as server:
        tracemalloc.start()
        (found,) = post_all(server, timeout=60.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found.kind == "large" and len(server.calls) == 1
    assert peak < 64 << 20, f"{peak >> 20} MiB"


def test_the_model_of_scored_answers_is_checked_and_reported_once() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            return {"tokens": [ord(char) for char in body["prompt"]]}
        return {**hostile_scores.echoed(), "model": f"gpt-{len(server.calls)}"} if body.get("echo") else status(400)

    with FaultServer(answer) as server:
        model = open_model(f"{server.url}[model=m,scoring=echo]")
        model.ready()
        found = model.loglikelihood([Request(LOGLIKELIHOOD, "ab", "cd"), Request(LOGLIKELIHOOD, "a", "bcd")])
    assert not any(one.failed for one in found)
    assert len(model.warnings()) == 1 and "was asked for m and answers as gpt-" in model.warnings()[0]
