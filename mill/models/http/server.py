"""The base class of backends that use a server: its address and key, waiting for it, and streamed responses."""

from __future__ import annotations

import asyncio
import base64
import copy
import math
import os
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mill.api.batching import Completed, as_response
from mill.api.budget import BudgetReached, CallMeter
from mill.api.engine import Engine
from mill.api.errors import CannotServe, DataError, MillError, ModelError, ServerGone, UnknownName
from mill.api.message import Message
from mill.api.model import MillModel, StreamContext, cannot_serve
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request
from mill.api.response import Response
from mill.models.http.client import Client, Reply
from mill.models.http.engine import read_engine
from mill.models.http.failures import BODY_CAP, Failure
from mill.models.http.policy import ServerPolicy, counted_calls
from mill.models.http.probes import same_model
from mill.models.media.decode import content_part
from mill.models.spec.open import check_address, check_argument, check_key, check_whole
from mill.models.tokens.reasoning import stopped_too_early
from mill.models.tokens.rows import TokenPair, make_pair, move_spaces
from mill.models.tokens.tokenizer import TEMPLATE_OPTIONS, wanted
from mill.support.secrets import remember, scrub, split_password
from mill.support.terminal import describe, one_line, warn

OWN_OPTIONS = {"until", "max_gen_toks", "temperature", "seed", "logprobs", *TEMPLATE_OPTIONS, "reasoning_tags"}
"""Options of a request that a server gets under other names; all others are sent as they are."""
KEY_VARIABLES = ("MILL_API_KEY", "OPENAI_API_KEY")
POLL_S = 0.5
BUSY_S = 30.0  # how long the first probe of a server that answers 429 is retried, without --wait
MAX_CONCURRENCY = 1024

Send = Callable[[Request], Awaitable[Response]]


class ServerModel(MillModel):
    """A subclass implements the probe of its server (`_probe`) and one method for each kind of request."""

    accelerators = 0
    is_server = True
    start_command = ""
    """The command that starts such a server, for the message about one that is not running."""
    alternative = ""
    """A spec that needs no server, for the same message."""

    def __init__(self, model: str, base_url: str, *, api_key: str | None, timeout: float, concurrency: int) -> None:
        check_argument("model", model, valid=isinstance(model, str), needed="a string")
        seconds = isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and 0 < timeout < math.inf
        check_argument("timeout", timeout, valid=seconds, needed="a number of seconds above 0, such as 120")
        check_whole("concurrency", concurrency, least=1, most=MAX_CONCURRENCY)
        variable = next((name for name in KEY_VARIABLES if os.environ.get(name)), None)
        key = check_key(api_key, "api_key") or (check_key(os.environ[variable], variable) if variable else None)
        remember(key)
        check_address(base_url)
        base_url, login = split_password(base_url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if login and not key:
            remember(credentials := base64.b64encode(login.encode()).decode())
            headers = {"Authorization": f"Basic {credentials}"}
        self.model = model
        self.base_url = base_url.rstrip("/").removesuffix("/v1").rstrip("/")
        self.concurrency = concurrency
        self.client = Client(self.base_url, headers, timeout=timeout, concurrency=concurrency)
        # One that overrides a public method needs a response to every request.
        self.meters_calls = all(getattr(type(self), kind) is getattr(MillModel, kind) for kind in self._senders())
        self._served: dict[str, Any] = {}
        """What the server says about itself and its model. `identity` has those fields that change an answer."""
        self._warnings: list[str] = []
        self._model_mismatch = False
        self._reasons = False
        """Whether an answer had reasoning: stop strings are then not sent, but applied here to the answer alone."""

    @property
    def model_name(self) -> str:
        return self.model or self.base_url

    def set_concurrency(self, concurrency: int | None) -> None:
        """A requested concurrency applies from the first request on, instead of growing towards it."""
        self.client.concurrency, self.client.steady = concurrency or self.concurrency, concurrency is not None

    def warnings(self) -> list[str]:
        return list(self._warnings)

    def _warn(self, text: str) -> None:
        """Log a warning, and keep it for the manifest. Scrubbed, since a server may repeat the key in its messages."""
        text = scrub(text)
        warn(text)
        if text not in self._warnings:
            self._warnings.append(text)

    def _names(self) -> Sequence[str]:
        """The names that the server's responses may give the model."""
        return [self.model]

    async def _post(self, path: str, body: dict[str, Any], cap: int = BODY_CAP) -> Reply:
        """A call that runs the model; warns where another model answered."""
        return self._check_model(await self.client.post(path, body, cap))

    def _check_model(self, reply: Reply) -> Reply:
        """The same reply; warns once where another model answered."""
        answered_by = reply.body.get("model") if isinstance(reply.body, dict) else None
        known = [name for name in self._names() if name]
        if self._model_mismatch or not known or not isinstance(answered_by, str) or not answered_by.strip():
            return reply
        if not any(same_model(answered_by, name) for name in known):
            self._model_mismatch = True
            name, answering = self.client.name or self.base_url, one_line(answered_by[:200])
            self._warn(f"{name} answers as {answering}, but {known[0]} was requested: is it the same model?")
        return reply

    def check(self, request: Request) -> list[str]:
        if request.continues_answer and not self._continues_answers():
            raise CannotServe(
                f"the prompts begin the answer, and nothing shows that {self.client.name or self.base_url} would continue "
                "it: leave out --apply_chat_template, or use a backend that applies the chat template itself, such as hf"
            )
        return []

    def _continues_answers(self) -> bool:
        """Whether a last message of the assistant is continued, and not answered by a message of its own."""
        return False

    def ready(self, wait: float = 0.0) -> None:
        """Probe the server, again for `wait` seconds while it is unreachable or loading."""
        started = time.monotonic()
        deadline = started + wait
        while True:
            try:
                self._probe()
                self.use_engine(self._read_engine())
                return
            except Failure as failure:
                loading = failure.unreachable or failure.kind == "timeout" or failure.throttled
                busy = failure.status == 429 and time.monotonic() < started + BUSY_S  # it is up, and only overloaded
                if not busy and (not loading or time.monotonic() >= deadline):
                    raise (ServerGone if loading else ModelError)(self._not_ready(failure)) from failure
                time.sleep(min(failure.retry_after or POLL_S, BUSY_S))

    def _not_ready(self, failure: Failure) -> str:
        if failure.kind == "connection" and self.start_command:
            program = self.start_command.split()[0]
            other = f", use {self.alternative}" if self.alternative else ""
            reason = str(failure).rpartition(": ")[2]
            return (
                f"no {program} at {self.base_url} ({reason}); run `{self.start_command}`, pass --base_url{other}, or wait "
                "for the server with --wait SECONDS"
            )
        hint = "; start it, or wait for it with --wait SECONDS" if failure.kind == "connection" else ""
        if failure.status == 503:
            return f"{self.base_url} is still loading ({failure}); wait for it with --wait SECONDS"
        if failure.status == 401 and "Authorization" not in self.client.headers:
            return f"{self.base_url} requires a key: set {KEY_VARIABLES[0]} or pass api_key=..."
        return f"{failure}{hint}" if self.base_url in str(failure) else f"{self.base_url}: {failure}{hint}"

    @abstractmethod
    def _probe(self) -> None:
        """Check that the server is up and has the model, and detect its capabilities. Raises Failure or ModelError."""

    def _identify(self) -> None:
        """Read which model the server has, without computing anything; `identity` returns it."""
        return None

    def _read_engine(self) -> Engine:
        return read_engine(self.client, self.model)

    def verify(self) -> None:
        """Raise where the server is gone, or has another model than before; called in a separate thread."""
        try:
            self._identify_again()
        except UnknownName as error:  # it may have to load the model first
            raise ServerGone(str(error)) from error
        except Failure as failure:
            if failure.unreachable:
                raise ServerGone(str(failure)) from failure
            # else it is only overloaded

    def _identify_again(self) -> None:
        """Raise where the server cannot be identified now, or has another model than before."""
        now = copy.copy(self)
        now.client = replace(self.client, _session=None, _policy=None)
        now._identify()
        if now.identity() != self.identity():
            raise ModelError(f"{self.base_url} came back with another model; the earlier responses stay recorded")
        engine = now._read_engine()
        if changed := self.engine.differs(engine):
            what = f"{self.base_url} came back as another build ({changed})"
            raise ModelError(f"{what}; the earlier responses stay recorded: the same command asks again for them")
        self.use_engine(engine)

    async def _generate(self, request: Request) -> Response:
        raise cannot_serve(self, GENERATE)

    async def _generate_whole(self, request: Request, meter: CallMeter | None) -> Response:
        """An answer whose reasoning no stop string ended: that one is requested again, without sending the stop strings."""
        stops = self._sent_stops(request)
        response = await self._generate(request)
        if stops and stopped_too_early(request, response):
            self._reasons = True
            if meter is not None:
                meter.add(request, response)
            response = await self._generate(request)
        return response

    def _sent_stops(self, request: Request) -> list[str]:
        return [] if self._reasons else [*request.options["until"]]

    async def _score(self, request: Request) -> Response:
        raise cannot_serve(self, LOGLIKELIHOOD)

    async def _score_document(self, request: Request) -> Response:
        raise cannot_serve(self, ROLLING)

    async def _tokenize(self, text: str) -> list[int]:
        """The token ids of a text, for backends that score by them."""
        raise NotImplementedError

    async def _pair(self, context: str, continuation: str, window: int, prefix: int | None) -> TokenPair:
        """Context and continuation tokenized as one text, cut to a context of `window` tokens."""
        context, continuation = move_spaces(context, continuation)
        whole = await self._tokenize(context + continuation)
        n_context = len(await self._tokenize(context)) if context else 0
        pair = make_pair(whole, n_context, window=window - 1, prefix=prefix)
        if not pair.fits:
            raise Failure("http", f"the continuation is longer than the context of {window} tokens")
        return pair

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Completed]:
        """Requests with the same media or a shared prefix one after another, for the server's caches. With a budget they are
        sent in the order of the samples: what it reaches are the first samples, or a smaller random draw."""
        if kind not in self._senders():
            raise cannot_serve(self, kind)
        special = {(request.continues_answer, bool(request.tools), *wanted(request)): request for request in requests}
        for what, request in special.items():
            if any(what):
                self.check(request)  # also on a replica, which got no other check
        ordered = requests if context.meter else sorted(requests, key=lambda request: request.prefix_order)
        return ServerPolicy(self.client, self, context).stream(ordered)

    def _senders(self, meter: CallMeter | None = None) -> dict[str, Send]:
        generate = partial(self._generate_whole, meter=meter)
        return {
            GENERATE: generate,
            MULTI_ROUND: generate,
            LOGLIKELIHOOD: self._score,
            ROLLING: self._score_document,
        }

    async def send(self, request: Request, context: StreamContext) -> Response:
        meter = context.meter
        send = self._senders(meter)[request.kind]
        if meter is None:
            return await response_to(request, send)

        def before_retry() -> None:
            meter.spend(request)
            if not meter.room(request):
                raise BudgetReached("the budget is used up")

        try:
            return await asyncio.wait_for(response_to(request, send, before_retry), meter.patience_s())
        except BudgetReached:
            raise
        except asyncio.TimeoutError as error:
            warn("the time of the run is over: requests without a response are abandoned")
            meter.spend(request, whole=True)
            raise BudgetReached("no response before the time of the run was over") from error
        except BaseException:
            meter.spend(request, whole=True)
            raise

    def wait_for_server(self, gone: ServerGone, context: StreamContext) -> None:
        """Wait until the server is back with the same model; raises where it does not return."""
        patience_s = context.outage_patience_s
        if not patience_s:
            raise gone
        warn(f"{gone}; waiting for it to come back, {patience_s:.0f} s at most")
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._identify_again()
            except (Failure, UnknownName) as error:
                if isinstance(error, UnknownName):
                    warn(f"{self.base_url} is back, but does not have the model yet: {error}")
                if context.meter is not None and context.meter.reached():
                    raise BudgetReached("the budget was used up while the server was away") from error
                if time.monotonic() >= deadline:
                    raise ServerGone(f"{gone}; it did not come back in {patience_s:.0f} s ({error})") from error
            time.sleep(POLL_S)


async def response_to(request: Request, send: Send, before_retry: Callable[[], None] | None = None) -> Response:
    """The response to a request, failures included, with its retries and the time of all its calls.

    A reply that no schema foresaw is an error of its request.
    """
    with counted_calls(before_retry) as calls:
        try:
            response = as_response(await send(request), request.kind)
        except DataError as error:  # an image, video or audio that cannot be read
            response = Response(error=str(error))
        except MillError:
            raise
        except Failure as failure:
            response = Response(error=str(failure))
        except Exception as error:
            response = Response(error=f"the server's answer could not be read: {describe(error)}")
    seconds = response.seconds if response.seconds is None else calls.seconds
    if not calls.retries and not seconds:
        return response
    return replace(response, retries=calls.retries, retry_reason=calls.retry_reason, seconds=seconds)


def messages_of(request: Request) -> list[dict[str, Any]]:
    """A request's dialog in OpenAI's format; plain text is one user message."""
    if isinstance(request.context, str):
        return [{"role": "user", "content": request.context}]
    return [{"role": message.role, "content": _content(message), **message.tool_fields()} for message in request.context]


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Plain text as a string; with media, a list of content parts with inline files."""
    if not message.media:
        return message.text
    return [{"type": "text", "text": part} if isinstance(part, str) else content_part(part) for part in message.parts]
