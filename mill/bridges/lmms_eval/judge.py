"""Calls to a judge in lmms-eval's scoring, answered by mill's judge.

lmms-eval's tasks call a judge while they score an answer, in three ways: through its package `llm_judge`, through a client
of the package openai, and by posting a chat request to an address. All three are replaced here. Scoring runs until it needs
a text that is not there yet; that request is sent to mill's judge with those of all other samples, and scoring starts again
with the texts so far, until it gets to its end.
"""

from __future__ import annotations

import contextlib
import io
import json as json_module
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from mill.api.judge import Judge
from mill.api.message import IMAGE, Media
from mill.api.request import GENERATE, Request, generation_options
from mill.bridges.lmms_eval.messages import as_message
from mill.compat import replaced

MOST_CALLS = 100  # of one answer, before it counts as endless
JUDGE = Judge(metrics={}, required=True)


class Unanswered(BaseException):
    """A call that has no answer yet. Not an Exception: tasks catch those and score the answer as wrong."""

    def __init__(self, request: Request) -> None:
        super().__init__("the judge has not answered yet")
        self.request = request


class Refused(BaseException):
    """A call that cannot be answered: by no judge, or in a way that mill does not have."""


class _Session:
    """The texts of the judge for one answer, in the order in which the task requests them."""

    def __init__(self, texts: Sequence[str | None] | None, chat: bool) -> None:
        self.texts, self.chat = texts, chat
        self.numbers: dict[str, int] = {}
        self.calls = 0
        self.thread = threading.get_ident()
        self.ended: BaseException | None = None

    def complete(self, payload: Mapping[str, Any]) -> str:
        if self.ended is not None:  # the task caught it and continues
            raise self.ended
        try:
            return self._next_text(payload)
        except BaseException as error:
            self.ended = error
            raise

    def _next_text(self, payload: Mapping[str, Any]) -> str:
        self.calls += 1
        if self.texts is None:
            raise Refused("it calls a judge, and has none here")
        if threading.get_ident() != self.thread:
            raise Refused("it calls its judge from several threads, whose order is not known")
        if self.calls > MOST_CALLS:
            raise Refused(f"it calls its judge more than {MOST_CALLS} times for one answer")
        request = judge_request(payload, chat=self.chat)
        number = self.numbers.setdefault(request.key, len(self.numbers))
        if number >= len(self.texts):
            raise Unanswered(request)
        text = self.texts[number]
        if text is None:
            raise Refused("the judge failed")
        return text


_current: _Session | None = None


def _complete(payload: Mapping[str, Any]) -> str:
    if _current is None:
        raise Refused("it calls a judge outside of its scoring")
    return _current.complete(payload)


@contextlib.contextmanager
def answers(texts: Sequence[str | None] | None, *, chat: bool = True) -> Iterator[None]:
    """Inside this context calls to a judge get these texts, in order; None where there is no judge.

    What ends the scoring is raised again where the task caught it.
    """
    import requests

    global _current
    session = _current = _Session(texts, chat)
    no_pause = replaced(time, sleep=lambda seconds: None)  # tasks wait before they call a judge again
    try:
        with replaced_clients(), replaced(requests, post=_post), no_pause:
            yield
    finally:
        _current = None
    if session.ended is not None:
        raise session.ended


def judge_request(payload: Mapping[str, Any], *, chat: bool) -> Request:
    """A chat request in OpenAI's format as one to mill's judge. The model that it names is not used."""
    if payload.get("n", 1) not in (None, 1):
        raise Refused(f"it requests {payload['n']} texts of its judge at once")
    messages = tuple(as_message(message, _part) for message in payload["messages"])
    limit = payload.get("max_tokens") or payload.get("max_completion_tokens")
    options = generation_options(max_gen_toks=limit, temperature=payload.get("temperature"), until=payload.get("stop"))
    if chat or any(message.media for message in messages):
        return Request(GENERATE, messages, options=options)
    return Request(GENERATE, "\n\n".join(message.text for message in messages), options=options)


def _part(part: Any) -> str | Media:
    if isinstance(part, str):
        return part
    if part.get("type") == "text":
        return str(part["text"])
    if part.get("type") == "image_url":
        given = part["image_url"]
        return Media(IMAGE, given["url"] if isinstance(given, Mapping) else given)
    raise Refused(f"it sends {part.get('type')!r} to its judge")


class _Client:
    """In place of a client of the package openai: only chat completions are answered."""

    is_mill_judge = True

    def __init__(self, *given: Any, **options: Any) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, **payload: Any) -> Any:
        text = _complete(payload)
        message = SimpleNamespace(content=text, role="assistant")
        usage = SimpleNamespace(prompt_tokens=0, completion_tokens=0, total_tokens=0)
        choice = SimpleNamespace(message=message, finish_reason="stop", index=0)
        return SimpleNamespace(choices=[choice], model="judge", usage=usage)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refused(f"it calls its judge through {name} of the package openai, where only chat completions are answered")


def _post(url: str, data: Any = None, json: Any = None, **options: Any) -> Any:
    """A chat completion as an answer over HTTP."""
    import requests

    payload = json
    with contextlib.suppress(ValueError, TypeError):
        payload = json_module.loads(data) if json is None else json
    if not isinstance(payload, Mapping) or "messages" not in payload:
        raise Refused(f"it calls a web service, {url}, which is not a judge")
    message = {"role": "assistant", "content": _complete(payload)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = requests.Response()
    answer.status_code = 200
    answer.raw = io.BytesIO(json_module.dumps({"choices": [choice], "model": "judge", "usage": {}}).encode())
    return answer


@contextlib.contextmanager
def replaced_clients() -> Iterator[None]:
    """Inside this context clients of a judge are those above: also for the files of a task, which make theirs when they are
    imported."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            import openai

            stack.enter_context(replaced(openai, OpenAI=_Client, AzureOpenAI=_Client))
        from lmms_eval.llm_judge.factory import ProviderFactory

        stack.enter_context(replaced(ProviderFactory, create_provider=classmethod(_create_provider)))
        yield


def _create_provider(cls: type, api_type: str | None = None, config: Any = None) -> Any:
    """Its provider for OpenAI, which calls one of the clients above."""
    from lmms_eval.llm_judge.providers.openai import OpenAIProvider

    provider = OpenAIProvider(config)
    provider.api_key = "none"  # it refuses to call without one
    return provider
