"""Faulty server responses: each is recorded as an error, or correctly."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest

from mill.api.errors import ModelError, UnknownName
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.models.http import policy
from mill.models.llama_cpp import LlamaCppModel
from mill.models.openai_compat.model import OpenAICompatModel
from mill.models.spec.open import open_model
from tests import hostile, hostile_scores
from tests.hostile import Mode
from tests.servers import FaultServer, post_all, raw, status

OPTIONS = generation_options(max_gen_toks=8, until=["\n"])
WITH_LOGPROBS = generation_options(max_gen_toks=8, until=["\n"], logprobs=2)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FIRST_PAUSE_S": 0.001, "LONGEST_PAUSE_S": 0.002, "ATTEMPTS": 2, "THROTTLED_ATTEMPTS": 3}.items():
        monkeypatch.setattr(policy, name, value)
    monkeypatch.setattr("mill.models.http.server.BUSY_S", 0.2)


def check_recorded(mode: Mode, response: Response, warnings: list[str]) -> None:
    """The recorded response is the one that the mode defines."""
    if mode.error:
        expected = (mode.error,) if isinstance(mode.error, str) else mode.error
        assert response.error is not None and any(error in response.error for error in expected), response
        assert (response.text, response.score, response.tokens, response.finish_reason) == (None, None, None, None)
        assert hostile.KEY not in response.error and "\x1b" not in response.error and "\n" not in response.error
        return
    assert response.error is None, response
    if mode.score is not None:
        assert response.score == (mode.score if math.isinf(mode.score) else pytest.approx(mode.score))
    else:
        assert (response.text, response.finish_reason) == (mode.text, mode.finish)
    if mode.counts is not None:
        assert (response.prompt_tokens, response.output_tokens) == mode.counts
    assert any(mode.warning in warning for warning in warnings) if mode.warning else warnings == []


def open_ready(server: FaultServer, **arguments: Any) -> OpenAICompatModel:
    model = OpenAICompatModel("m", server.url, api_key=hostile.KEY, **{"timeout": 1.0, "concurrency": 2, **arguments})
    model._identify()
    return model


def check_generation(mode: Mode, *, options: Any = OPTIONS, **arguments: Any) -> None:
    """Send a good request and a bad one to the same model concurrently. A short time is that of the modes about it alone."""
    arguments.setdefault("timeout", 1.0 if "within 1 s" in str(mode.error) else 60.0)

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return hostile.with_logprobs() if body.get("prompt") == "good" else mode.answer

    with FaultServer(answer) as server:
        model = open_ready(server, **arguments)
        good, response = model.generate_until([Request(GENERATE, context, options=options) for context in ("good", "bad")])
    assert (good.text, good.error) == ("ab", None)
    check_recorded(mode, response, model.warnings())


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
def test_completions(mode: Mode) -> None:
    check_generation(mode)


@pytest.mark.parametrize("mode", hostile.STREAMS.values(), ids=hostile.STREAMS)
def test_streams(mode: Mode) -> None:
    check_generation(mode, stream=True)


@pytest.mark.parametrize("mode", hostile.TOKENS.values(), ids=hostile.TOKENS)
def test_log_probabilities_of_completions(mode: Mode) -> None:
    check_generation(mode, options=WITH_LOGPROBS)


def check_scoring(mode: Mode, route: str) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            return {"tokens": [ord(char) for char in body["prompt"]]}
        return mode.answer

    from mill.models.openai_compat.scoring import ROUTES

    with FaultServer(answer) as server:
        model = open_ready(server)
        model._route = next(candidate for candidate in ROUTES if candidate.name == route)
        model._tokenizes = True
        model.capabilities = model.capabilities.__class__(supports_logprobs=True)
        (response,) = model.loglikelihood([Request(LOGLIKELIHOOD, "ab", "cd")])
    check_recorded(mode, response, model.warnings())


@pytest.mark.parametrize("mode", hostile_scores.ECHOES.values(), ids=hostile_scores.ECHOES)
def test_echoed_prompts(mode: Mode) -> None:
    check_scoring(mode, "echo")


@pytest.mark.parametrize("mode", hostile_scores.PROMPTS.values(), ids=hostile_scores.PROMPTS)
def test_prompt_logprobs(mode: Mode) -> None:
    check_scoring(mode, "prompt_logprobs")


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
def test_completions_of_llama_cpp(mode: Mode) -> None:
    server, model = llama(mode)
    (response,) = model.generate_until([Request(GENERATE, "x", options=WITH_LOGPROBS)])
    server.__exit__()
    check_recorded(mode, response, model.warnings())


@pytest.mark.parametrize("mode", hostile_scores.LLAMA_SCORES.values(), ids=hostile_scores.LLAMA_SCORES)
def test_scores_of_llama_cpp(mode: Mode) -> None:
    server, model = llama(mode)
    (response,) = model.loglikelihood([Request(LOGLIKELIHOOD, "x", "b")])
    server.__exit__()
    check_recorded(mode, response, model.warnings())


@pytest.mark.parametrize(("body", "message"), hostile_scores.LISTINGS.values(), ids=hostile_scores.LISTINGS)
def test_invalid_model_lists(body: Any, message: str) -> None:
    with FaultServer(lambda *_: hostile.whole()) as server:
        server.gets["/v1/models"] = body
        with pytest.raises((ModelError, UnknownName)) as raised:
            open_model(f"{server.url}[model=m]").ready()
    line = str(raised.value)
    assert message in line and server.url in line and "\n" not in line and "\x1b" not in line


@pytest.mark.parametrize("body", hostile_scores.LISTED.values(), ids=hostile_scores.LISTED)
def test_unusual_but_valid_model_lists(body: Any) -> None:
    with FaultServer(lambda *_: hostile.whole()) as server:
        server.gets["/v1/models"] = body
        model = open_model(f"{server.url}[model=m]")
        model.ready()
    assert model.capabilities.max_context_length is None


def test_an_invalid_context_length_can_be_overridden() -> None:
    with FaultServer(lambda *_: hostile.whole()) as server:
        server.metadata["max_model_len"] = "4096"
        model, other = (open_model(f"{server.url}[model=m,max_context_length={length}]") for length in (2048, 1024))
        model.ready()
        other.ready()
    assert model.capabilities.max_context_length == 2048
    assert model.identity() != other.identity(), "prompts are cut elsewhere"


@pytest.mark.parametrize("compressed", [True, False], ids=["compressed", "plain"])
def test_an_endless_body_takes_no_more_memory_than_the_cap(compressed: bool) -> None:
    """A thousand MiB compressed to one, and an uncompressed body."""
    fault = raw(hostile.bomb(1024), Content_Encoding="gzip") if compressed else hostile.BODIES["an endless body"].answer
    with FaultServer(lambda *_: fault) as server:
        tracemalloc.start()
        (response,) = post_all(server, timeout=60.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert response.kind == "large" and len(server.calls) == 1
    assert peak < 64 << 20, f"{peak >> 20} MiB"


def test_another_model_in_scoring_responses_is_reported_once() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            return {"tokens": [ord(char) for char in body["prompt"]]}
        return {**hostile_scores.echoed(), "model": f"gpt-{len(server.calls)}"} if body.get("echo") else status(400)

    with FaultServer(answer) as server:
        model = open_model(f"{server.url}[model=m,scoring=echo]")
        model.ready()
        responses = model.loglikelihood([Request(LOGLIKELIHOOD, "ab", "cd"), Request(LOGLIKELIHOOD, "a", "bcd")])
    assert not any(response.failed for response in responses)
    assert len(model.warnings()) == 1 and "answers as gpt-" in model.warnings()[0]
