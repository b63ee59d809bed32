"""What backends that talk to a server share: its address, its key, waiting for it, and answers that come one by one."""

from __future__ import annotations

import base64
import copy
import os
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from mill.api.batching import GIVE_UP_AFTER, Observer, as_response, describe
from mill.api.errors import MillError, ModelBroken, ModelError, ServerGone, SpecError
from mill.api.message import Message
from mill.api.model import MillModel, watched
from mill.api.notice import notice
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request
from mill.api.response import Response
from mill.api.secrets import remember, split_password, variables_in
from mill.models.http import Client, Failure
from mill.models.media import content_part

Ask = Callable[[Request], Awaitable[Response]]

KEY_VARIABLES = ("MILL_API_KEY", "OPENAI_API_KEY")
POLL_S = 0.5
MOST_OUTAGES = 2  # in a row, before the question that was asked alone is to blame
MOST_BLAMED = 3  # in a row, before the server itself is
MOST_FAILED = 16  # in a row, before it is asked something that it answered before


class _InDoubt(Exception):
    """So many questions failed in a row that it may be the server's fault."""


class ServerModel(MillModel):
    """A subclass says how it looks at its server (`_look`) and how it asks one question of each kind."""

    accelerators = 0
    patience_s = 300.0
    """How long a server that went away is waited for; nothing where others can take over."""

    def __init__(self, model: str, base_url: str, *, api_key: str | None, timeout: float, concurrency: int) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise SpecError(f"base_url={base_url}: a URL starts with http:// or https://")
        if "," in base_url:
            raise SpecError(f"base_url={base_url}: several addresses are for mill eval alone")
        if concurrency < 1:
            raise SpecError(f"concurrency={concurrency}: at least 1 is needed")
        key = api_key or next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
        key = key.strip() if key else key
        remember(key)
        self._variables = (*KEY_VARIABLES, *variables_in(base_url))
        base_url, login = split_password(base_url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if login and not key:
            remember(both := base64.b64encode(login.encode()).decode())
            headers = {"Authorization": f"Basic {both}"}
        self.model = model
        self.base_url = base_url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.concurrency = concurrency
        self.client = Client(self.base_url, headers, timeout=timeout, concurrency=concurrency, verify=self._verify)
        self._remarks: list[str] = []
        self._answered: tuple[Ask, Request] | None = None
        """A question that it answered, and how it was asked."""

    @property
    def model_name(self) -> str:
        return self.model or self.base_url

    def set_width(self, width: int | None) -> bool:
        """A width that was asked for is kept from the first request on, not felt for."""
        self.client.concurrency, self.client.steady = width or self.concurrency, width is not None
        return True

    def remarks(self) -> list[str]:
        return list(self._remarks)

    def variables(self) -> Sequence[str]:
        return self._variables

    def _remark(self, text: str, *, aloud: bool = True) -> None:
        """Say it now, and keep it for whoever reads the scores."""
        if aloud:
            notice(text)
        if text not in self._remarks:
            self._remarks.append(text)

    def ready(self, wait: float = 0.0) -> None:
        """Look at the server; while it cannot be reached or still loads, look again for `wait` seconds."""
        deadline = time.monotonic() + wait
        while True:
            try:
                return self._look()
            except Failure as failure:
                coming = failure.away or failure.kind == "timeout" or failure.status == 503
                if not coming or time.monotonic() >= deadline:
                    raise (ServerGone if coming else ModelError)(self._not_ready(failure)) from failure
                time.sleep(POLL_S)

    def _not_ready(self, failure: Failure) -> str:
        hint = "; start it, or wait for it with --wait SECONDS" if failure.kind == "connection" else ""
        if failure.status == 503:
            return f"{self.base_url} is still loading ({failure}); wait for it with --wait SECONDS"
        if failure.status == 401 and "Authorization" not in self.client.headers:
            return f"{self.base_url} wants a key: set {KEY_VARIABLES[0]} or give api_key=..."
        return f"{failure}{hint}" if self.base_url in str(failure) else f"{self.base_url}: {failure}{hint}"

    @abstractmethod
    def _look(self) -> None:
        """Check that the server is there and has the model, and learn what it can do. Raises Failure or ModelError."""

    def _recognize(self) -> None:
        """Ask the server which model it has, without making it compute anything. `identity` tells the answer."""
        return None

    def _verify(self) -> None:
        """Raise where the server is gone, or has another model than it had; called in a thread of its own."""
        now = copy.copy(self)
        now.client = replace(self.client, _session=None, _gate=None, _doubt=None)
        try:
            now._recognize()
        except Failure as failure:
            if failure.away:
                raise ServerGone(str(failure)) from failure
            return  # it only has no time for us
        self._check_same(now)

    def _check_same(self, now: ServerModel) -> None:
        if now.identity() != self.identity():
            raise ModelError(f"{self.base_url} came back with another model; what was answered before is kept")

    async def _generate(self, request: Request) -> Response:
        raise self._cannot(GENERATE)

    async def _score(self, request: Request) -> Response:
        raise self._cannot(LOGLIKELIHOOD)

    async def _score_document(self, request: Request) -> Response:
        raise self._cannot(ROLLING)

    def _answer(self, kind: str, requests: Sequence[Request], observer: Observer | None) -> list[Response]:
        """Send all requests, neighbours with a common start one after another so that the server's cache serves them."""
        asks: dict[str, Ask] = {
            GENERATE: self._generate,
            MULTI_ROUND: self._generate,
            LOGLIKELIHOOD: self._score,
            ROLLING: self._score_document,
        }
        if kind not in asks:
            raise self._cannot(kind)
        found: dict[int, Response] = {}
        ask, failures = _shielded(asks[kind]), 0
        with watched(kind, requests, observer) as watching:

            def done(request: Request, result: Response | Failure) -> bool:
                """Whether the server itself is in doubt."""
                nonlocal failures
                response = Response(error=str(result)) if isinstance(result, Failure) else as_response(result, kind)
                found[id(request)] = response
                watching.answered(request, response)
                if not response.failed:
                    failures, self._proven, self._answered = 0, True, (ask, request)
                    return False
                failures += 1
                if failures >= GIVE_UP_AFTER and not self._proven:
                    raise ModelBroken(f"the server failed on each of the first {failures} requests: {response.error}")
                return failures % MOST_FAILED == 0

            self._ask_through_outages(sorted(requests, key=lambda request: request.text), ask, done)
        return [found[id(request)] for request in requests]

    def _ask_through_outages(self, left: list[Request], ask: Ask, done: Callable[[Request, Any], bool]) -> None:
        """Until every question has its result. One may be what ends the server: after an outage without a single result they
        go one by one, and one that sees the server leave again and again is to blame."""
        outages = blamed = 0
        while left:
            results: set[int] = set()

            def told(request: Request, result: Any, results: set[int] = results) -> None:
                results.add(id(request))
                if done(request, result):
                    raise _InDoubt

            asked = left[:1] if outages else left
            try:
                self.client.run_all(asked, ask, told)
                outages = blamed = 0
            except ServerGone as gone:
                self._await_return(gone)
                outages = 0 if results else outages + 1
                if outages > MOST_OUTAGES:
                    outages, blamed = 1, blamed + 1
                    if blamed >= MOST_BLAMED:
                        raise ModelBroken(f"{self.base_url} goes away whatever it is asked: {gone}") from gone
                    done(asked[0], Failure("cut", f"the server went away each of the last {MOST_OUTAGES} times"))
                    results.add(id(asked[0]))
            except _InDoubt:
                self._ask_again()
            left = [request for request in left if id(request) not in results]

    def _ask_again(self) -> None:
        """Something that it answered before: where that fails too, it is the server that fails and not the questions."""
        assert self._answered is not None
        ask, request = self._answered
        results: list[Response | Failure] = []
        try:
            self.client.run_all([request], ask, lambda _, result: results.append(result))
        except ServerGone as gone:
            return self._await_return(gone)
        error = str(results[0]) if isinstance(results[0], Failure) else results[0].error
        if error is not None:
            raise ServerGone(f"{self.base_url} answers nothing any more, not even what it answered before: {error}")

    def _await_return(self, gone: ServerGone) -> None:
        """Until the server is there again, with the same model; raises where that does not happen."""
        if not self.patience_s:
            raise gone
        notice(f"{gone}; waiting for it to come back, {self.patience_s:.0f} s at most")
        before = copy.copy(self)
        self.ready(self.patience_s)
        before._check_same(self)


def _shielded(ask: Ask) -> Ask:
    """An answer of a shape that nobody foresaw is an error of its request, not the end of the run."""

    async def asked(request: Request) -> Response:
        try:
            return await ask(request)
        except (MillError, Failure):
            raise
        except Exception as error:
            return Response(error=f"the server's answer could not be read: {describe(error)}")

    return asked


def messages_of(request: Request) -> list[dict[str, Any]]:
    """A request's dialog in OpenAI's shape; a plain text is one user message."""
    if isinstance(request.context, str):
        return [{"role": "user", "content": request.context}]
    return [{"role": message.role, "content": _content(message)} for message in request.context]


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Text alone as it is; with media as content parts, files inline."""
    if not message.media:
        return message.text
    return [{"type": "text", "text": part} if isinstance(part, str) else content_part(part) for part in message.parts]
