"""Calls to a judge in scoring code: found before it runs, and answered with given texts when it does."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from mill.bridges.lmms_eval.judge import Refused, Unanswered, answers
from mill.bridges.lmms_eval.refusals import calls_judge

requests = pytest.importorskip("requests")
pytestmark = [pytest.mark.usefixtures("lmms_eval"), pytest.mark.xdist_group("lm-eval")]
URL = "https://api.openai.com/v1/chat/completions"


def payload(text: str) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], "max_tokens": 7, "temperature": 0}


def through_openai(text: str) -> str:
    import openai

    return str(openai.OpenAI(api_key="x").chat.completions.create(**payload(text)).choices[0].message.content)


def through_http(text: str) -> str:
    response = requests.post(URL, headers={}, json=payload(text), timeout=60)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


def through_http_bytes(text: str) -> str:
    answer = requests.post(URL, data=json.dumps(payload(text)).encode()).content.decode()
    return str(json.loads(answer)["choices"][0]["message"]["content"])


def through_llm_judge(text: str) -> str:
    from lmms_eval import llm_judge
    from lmms_eval.llm_judge import Request, ServerConfig

    server = llm_judge.get_server("openai", ServerConfig(model_name="gpt-4o", max_tokens=7))
    return str(server.evaluate(Request(messages=payload(text)["messages"])).content)


WAYS = (through_openai, through_http, through_http_bytes, through_llm_judge)


@pytest.mark.parametrize("ask", WAYS)
def test_a_call_gets_the_text_of_the_judge(ask: Callable[[str], str]) -> None:
    with pytest.raises(Unanswered) as call, answers([]):
        ask("is it a cat ?")
    request = call.value.request
    assert request.text == "<user> is it a cat ?"
    assert (request.options["max_gen_toks"], request.options["temperature"]) == (7, 0.0)
    with answers(["yes", "no"]):
        assert [ask("is it a cat ?"), ask("is it a dog ?"), ask("is it a cat ?")] == ["yes", "no", "yes"]


@pytest.mark.parametrize("ask", WAYS)
def test_a_call_without_a_judge_is_not_scored_as_wrong(ask: Callable[[str], str]) -> None:
    def scoring() -> float:
        try:
            return float(ask("is it a cat ?"))
        except Exception:
            return 0.0

    with pytest.raises(Refused, match="it calls a judge, and has none here"), answers(None):
        scoring()


def test_a_call_that_is_caught_ends_the_scoring_all_the_same() -> None:
    with pytest.raises(Unanswered), answers([]), contextlib.suppress(BaseException):
        through_http("is it a cat ?")


def test_scoring_that_asks_for_ever_ends() -> None:
    with pytest.raises(Refused, match="more than 100 times"), answers(["hm"]):
        while True:
            through_http("is it a cat ?")


def test_a_web_service_that_is_no_judge_is_refused() -> None:
    with pytest.raises(Refused, match=r"https://example\.com"), answers(["1"]):
        requests.post("https://example.com", json={"q1": 3})


def test_images_reach_the_judge() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    message = {"role": "user", "content": [{"type": "text", "text": "a cat ?"}, image]}
    with pytest.raises(Unanswered) as call, answers([]):
        requests.post(URL, json={"messages": [message]})
    (media,) = call.value.request.media
    assert media.encoded() == b"hi"


@pytest.mark.parametrize("ask", WAYS)
def test_code_that_calls_a_judge_is_known(ask: Callable[[str], str]) -> None:
    """In files below a folder lmms_eval, as this one."""
    assert calls_judge([ask])
    assert calls_judge([functools.partial(_nested, ask)]) is False, "what is passed at run time is not known"
    assert calls_judge([_inside])
    assert not calls_judge([payload, str.strip, len])


def _nested(ask: Callable[[str], str]) -> str:
    return ask("is it a cat ?")


def _inside() -> list[str]:
    return [through_http(text) for text in ("a", "b")]
