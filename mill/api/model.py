"""The base class of backends: implement the hooks, and MillModel batches, streams, shows progress and retries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol, runtime_checkable

from mill.api.batching import BatchLimits, Completed, Hook, Unit, as_response, free_memory, run_batches
from mill.api.budget import CallMeter, Price
from mill.api.engine import Engine
from mill.api.errors import CannotServe, FastPathFailed, MillError, ModelError
from mill.api.identity import Made, bound_arguments, plain_arguments, read_source
from mill.api.registry import source_digest
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request, tags_of
from mill.api.response import Response
from mill.support.secrets import is_secret, redact_addresses
from mill.support.terminal import Progress, TokenCount, describe

TEXT_KINDS = frozenset({GENERATE, MULTI_ROUND})
DEFAULT_BATCH_SIZE = 8  # of a backend that sets none; halved where memory runs out
LOGPROB_KINDS = frozenset({LOGLIKELIHOOD, ROLLING})


@dataclass(frozen=True)
class InputTokens:
    """Those of some requests, as far as they fit the context, and how many of the requests do not fit it as a whole."""

    count: int
    truncated: int = 0


@dataclass(frozen=True)
class ComputeDevice:
    """The device of a model, and the operations that one token takes in its layers, the vocabulary left out."""

    name: str
    dtype: str
    operations_per_token: float


@dataclass(frozen=True)
class ModelCapabilities:
    """What a model can serve. `kinds` is derived from `supports_logprobs` unless a backend gives its own."""

    modalities: set[str] = field(default_factory=lambda: {"text"})
    max_context_length: int | None = None
    supports_logprobs: bool = False
    supports_chat_template: bool = False
    kinds: frozenset[str] | None = None
    concurrency: int = 1
    top_logprobs: int | None = 0
    """How many top_logprobs it gives at each position of a scored continuation; None is the whole vocabulary."""
    supports_tools: bool = False
    """Whether the model gets the tools of a request, and the calls in its answer are read."""
    scores_dialogs: bool = True
    """Whether it scores a continuation after messages, not only after plain text."""

    def serves(self, kind: str) -> bool:
        kinds = self.kinds
        if kinds is None:
            kinds = TEXT_KINDS | LOGPROB_KINDS if self.supports_logprobs else TEXT_KINDS
        return kind in kinds


@dataclass
class StreamContext:
    """What the caller of a stream gives it, and what the stream tells while it runs."""

    meter: CallMeter | None = None
    """Where the run has a budget: a model with `meters_calls` asks it before each request."""
    outage_patience_s: float = 300.0
    """How long a server that went away is waited for; 0 where other workers can take over."""
    canary: Request | None = None
    """A request that the model has answered in this process. A server gets it again where many requests fail in a row."""
    recorded: Request | None = None
    """A request of which an answer is recorded. It is sent where every request fails: the model may be at fault, or they."""
    tokens: TokenCount = field(default_factory=TokenCount)
    """Of the stream in progress, where the backend counts them."""


class Preparation(Protocol):
    """What a model can begin before its first request."""

    @property
    def loading(self) -> bool:
        """Whether weights are being loaded in a thread now."""

    def expect(self, requests: Sequence[Request]) -> None:
        """The requests of the run, before `identity` is needed: work may begin where there probably is some."""

    def prepare(self, requests: Sequence[Request]) -> None:
        """The requests that are computed next, before `load`: what needs no weights may begin in a thread."""


class MillModel(ABC):
    """A model that answers requests.

    A backend implements the hooks for what it can serve. They take a batch and return one answer for each request in order:
    text, (log-probability, is_greedy), a log-probability, or a full Response. They may raise; the request that fails is
    isolated. A model of images has `_zero_shot_batch` or `_classify_batch`, which return Responses with labels.

    A backend that does more than batch its requests overrides `stream_responses`. What only some backends can do is a
    protocol of this module, such as `RendersPrompts`.
    """

    capabilities: ModelCapabilities = ModelCapabilities()
    arguments: Mapping[str, Any] = {}
    """The arguments of the spec; set by `open_model`."""
    made_with: Made
    _source: str | None = ""
    batch_size: int | None = None
    max_batch_tokens: int | None = None
    use_chat_template: bool = False
    accelerators: int = 1
    """How many a replica of the model takes, where there are any."""
    is_server: bool = False
    """Whether requests go to a server, which has its own memory and batches, and may go away."""
    meters_calls: bool = False
    """Whether the backend asks the meter before each request, and ends its stream where there is no room for one."""
    lock_step: bool = False
    """Whether all ranks must compute every batch together, as sharded models do; they then get equally many requests, and
    a stream ends when that of every rank does."""
    no_logprobs: str = ""
    """Why a server returns no log-probabilities of a prompt, where others of its kind do."""
    startup: Preparation | None = None
    engine: Engine = Engine()
    """What gives the answers now. That of a server is read when it is `ready`, and again when it was away."""
    engines: dict[str, Engine]
    """All known ones that have answered, by id."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Keeps the arguments, which identify a model that is made in Python."""
        model = super().__new__(cls)
        model.made_with = Made(bound_arguments(cls, arguments, named))
        model.arguments = plain_arguments(model.made_with.given)
        model.engines = {}
        return model

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._source = read_source(cls)  # now: a file may be edited later

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The model's name in tables and folders."""

    def use_engine(self, engine: Engine) -> None:
        """This is what answers from now on."""
        self.engine = engine
        if engine.id:
            self.engines[engine.id] = engine

    # Hooks of a backend.

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> Sequence[str | Response]:
        raise cannot_serve(self, GENERATE)

    def _loglikelihood_batch(self, batch: list[Request]) -> Sequence[tuple[float, bool] | Response]:
        raise cannot_serve(self, LOGLIKELIHOOD)

    def _loglikelihood_rolling_single(self, request: Request) -> float | Response:
        raise cannot_serve(self, ROLLING)

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Completed]:
        """Every request with its response, as soon as it is there and in any order. No two requests are equal."""
        for options, group in _by_options(requests):
            units = [Unit([request], len(request.text) + len(request.continuation)) for request in group]
            hook, limits = _hook(self, kind, options), _limits(self, kind)
            yield from run_batches(units, hook, limits=limits, healthy=context.canary is not None)

    def identity(self) -> dict[str, Any]:
        """Everything that would change the model's answers; equal identities share results.

        By default that is the class and every argument but the batch size and secrets.
        """
        arguments = {
            name: redact_addresses(value) if isinstance(value, str) else value
            for name, value in self.arguments.items()
            if name != "batch_size" and not is_secret(name)
        }
        module, name = type(self).__module__, type(self).__qualname__
        return {
            # The module of a user's file is named after it; `identity_of` adds its content instead.
            "class": name if source_digest(module) else f"{module}.{name}",
            "model": self.model_name,
            "arguments": arguments,
        }

    def ready(self, wait: float = 0.0) -> None:
        """Check that the model can be used, before any work; wait so many seconds for a server to come up."""
        return None

    def check(self, request: Request) -> list[str]:
        """Raise CannotServe for a request that can never be answered, such as one with more classes than the head has;
        returns what a reader of the task's scores must know about how the model gets its prompts.

        Called with the first request of every task, before weights load.
        """
        if refused := refused_media(self, request):
            raise CannotServe(refused)
        return []

    def load(self) -> None:
        """Load what takes long, such as weights; called before the first request, so that rates do not count it."""
        return None

    def warnings(self) -> list[str]:
        """What a reader of the scores must know about how they were computed, such as an option that the server ignored."""
        return []

    def clean(self) -> None:
        """Free accelerator memory after inference, for example for a judge."""
        free_memory()

    # The public methods, one a kind: responses in the order of the requests, with a progress bar.

    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        return _in_order(self, GENERATE, requests)

    def generate_until_multi_round(self, requests: Sequence[Request]) -> list[Response]:
        """One round of every open dialog; a request's messages hold the rounds before."""
        return _in_order(self, MULTI_ROUND, requests)

    def loglikelihood(self, requests: Sequence[Request]) -> list[Response]:
        return _in_order(self, LOGLIKELIHOOD, requests)

    def loglikelihood_rolling(self, requests: Sequence[Request]) -> list[Response]:
        return _in_order(self, ROLLING, requests)

    def zero_shot_classify(self, requests: Sequence[Request]) -> list[Response]:
        return _in_order(self, ZERO_SHOT, requests)

    def classify(self, requests: Sequence[Request]) -> list[Response]:
        return _in_order(self, CLASSIFY, requests)


# What only some backends can do.


@runtime_checkable
class HasChatTemplate(Protocol):
    """A model that finds out whether dialogs can be rendered."""

    def has_chat_template(self) -> bool:
        """May read files or ask the server, but loads no weights."""


@runtime_checkable
class RendersPrompts(Protocol):
    """A model whose chat template is applied in this process."""

    def rendered_prompt(self, request: Request) -> str:
        """The prompt as the model gets it, for people who read samples."""


@runtime_checkable
class CountsTokens(Protocol):
    """A model whose tokenizer is in this process."""

    def input_tokens(self, groups: Sequence[Sequence[Request]]) -> list[InputTokens | None]:
        """The input tokens of each group, without loading weights; None where they are not known."""


@runtime_checkable
class HasPaths(Protocol):
    """A model that computes requests in more than one way."""

    def planned_paths(self) -> dict[str, str]:
        """Which execution paths it will try, by stage, known before weights load."""

    def execution_paths(self) -> dict[str, str]:
        """Which execution paths computed requests since the model was opened, by stage, and why."""

    def compute_device(self) -> ComputeDevice | None:
        """What computed the answers; None where that is not known."""


@runtime_checkable
class HasWeights(Protocol):
    def weight_bytes(self) -> int | None:
        """The size of the weights on disk; None where it is not known."""


@runtime_checkable
class Concurrent(Protocol):
    def set_concurrency(self, concurrency: int | None) -> None:
        """Have at most so many requests in flight from now on; None for the backend's default."""


@runtime_checkable
class Priced(Protocol):
    def price(self) -> Price | None:
        """What tokens cost; None where that is not known, or nothing is charged."""


def has_chat_template(model: MillModel) -> bool:
    return model.has_chat_template() if isinstance(model, HasChatTemplate) else model.capabilities.supports_chat_template


def cannot_serve(model: MillModel, kind: str) -> CannotServe:
    return CannotServe(f"{model.model_name} ({type(model).__name__}) does not answer {kind} requests")


def refused_media(model: MillModel, request: Request) -> str:
    """Why a request's images, videos or audio cannot be answered; empty if they can."""
    media = request.media
    if not media:
        return ""
    takes = set(model.capabilities.modalities)
    kinds = sorted({one.kind for one in media} - takes)
    return f"the request has {' and '.join(kinds)}; {model.model_name} takes {', '.join(sorted(takes))}" if kinds else ""


# The one path of answers: a stream, which the executor records and the public methods put in order.


def run_requests(
    model: MillModel, kind: str, requests: Sequence[Request], context: StreamContext | None = None
) -> Generator[Completed, None, None]:
    """Every request with its response, as soon as it is there and in any order. No two requests may be equal.

    A backend that overrides a public method, such as `generate_until`, is called through it.
    """
    overrides = getattr(type(model), kind) is not getattr(MillModel, kind)
    with closing(_stream(model, kind, requests, context or StreamContext())) as stream:
        for request, response in zip(requests, _overridden(model, kind, requests), strict=True) if overrides else stream:
            response.engine = model.engine.id or None
            yield request, response


def _stream(
    model: MillModel, kind: str, requests: Sequence[Request], context: StreamContext
) -> Generator[Completed, None, None]:
    refused = {id(request): error for request in requests if (error := refused_media(model, request))}
    yield from ((request, Response(error=refused[id(request)])) for request in requests if id(request) in refused)
    served = [request for request in requests if id(request) not in refused] if refused else requests
    for request, response in model.stream_responses(kind, served, context) if served else ():
        if context.canary is None and not response.failed:
            context.canary = request
        yield request, response


def _overridden(model: MillModel, kind: str, requests: Sequence[Request]) -> list[Response]:
    """The responses of a public method that a subclass overrides, checked."""
    name = f"{type(model).__name__}.{kind}"
    try:
        responses = getattr(model, kind)(requests)
    except (MillError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ModelError(f"{name} raised {describe(error)}") from error
    if isinstance(responses, (str, bytes)) or not isinstance(responses, Sequence):
        raise ModelError(f"{name} returned {type(responses).__name__}, not a list of responses")
    if len(responses) != len(requests):
        raise ModelError(f"{name} returned {len(responses)} of {len(requests)} responses")
    return [as_response(response, kind) for response in responses]


def _in_order(model: MillModel, kind: str, requests: Sequence[Request]) -> list[Response]:
    """Equal requests are computed once."""
    distinct = list({request.key: request for request in requests}.values())
    try:
        responses = _responses(model, kind, distinct)
    except FastPathFailed:  # it is off from now on
        responses = _responses(model, kind, distinct)
    for request in requests:
        request.resps.append(responses[request.key])
    return [responses[request.key] for request in requests]


def _responses(model: MillModel, kind: str, requests: Sequence[Request]) -> dict[str, Response]:
    responses: dict[str, Response] = {}
    context = StreamContext()
    with (
        Progress(kind, len(requests), tokens=lambda: context.tokens) as progress,
        closing(_stream(model, kind, requests, context)) as stream,
    ):
        for request, response in stream:
            responses[request.key] = response
            progress.advance(failed=response.failed)
    return responses


def _limits(model: MillModel, kind: str) -> BatchLimits:
    if kind == ROLLING:
        return BatchLimits(requests=1)
    if model.batch_size is None and model.max_batch_tokens is None:
        return BatchLimits(requests=DEFAULT_BATCH_SIZE)
    return BatchLimits(model.batch_size, model.max_batch_tokens)


def _hook(model: MillModel, kind: str, options: dict[str, Any]) -> Hook:
    """A backend's hook for a kind, adapted to units and responses."""
    hooks: dict[str, Callable[[list[Request]], Sequence[Any]] | None] = {
        GENERATE: lambda batch: model._generate_batch(batch, dict(options)),
        MULTI_ROUND: lambda batch: model._generate_batch(batch, dict(options)),
        LOGLIKELIHOOD: model._loglikelihood_batch,
        ROLLING: lambda batch: [model._loglikelihood_rolling_single(request) for request in batch],
        ZERO_SHOT: getattr(model, "_zero_shot_batch", None),
        CLASSIFY: getattr(model, "_classify_batch", None),
    }
    hook = hooks[kind]
    if hook is None:
        raise cannot_serve(model, kind)

    def call(batch: list[Unit]) -> list[list[Response]]:
        answers = hook([unit.requests[0] for unit in batch])
        if isinstance(answers, (str, bytes)) or not isinstance(answers, Sequence):
            raise ModelError(f"the backend's hook for {kind} returned {type(answers).__name__}, not a list of answers")
        responses = [as_response(answer, kind) for answer in answers]
        if kind in TEXT_KINDS and len(responses) == len(batch):  # else they are refused
            pairs = zip(batch, responses, strict=True)
            responses = [_split(unit.requests[0], response) for unit, response in pairs]
        return [[response] for response in responses]

    return call


def _split(request: Request, response: Response) -> Response:
    """A text with reasoning in it, where the backend did not take it apart itself."""
    tags = tags_of(request)
    if tags is None or response.reasoning is not None or not isinstance(response.text, str):
        return response
    reasoning, text = tags.split(response.text)
    return response if reasoning is None else replace(response, reasoning=reasoning, text=text)


def options_text(request: Request) -> str:
    """A request's options as a Python literal; equal options have equal texts."""
    return repr(sorted(request.options.items()))


def _by_options(requests: Sequence[Request]) -> list[tuple[dict[str, Any], list[Request]]]:
    """Requests that share decoding options share batches."""
    ordered = sorted(requests, key=options_text)
    groups = ((options, list(group)) for options, group in groupby(ordered, key=options_text))
    return [(dict(group[0].options), group) for _, group in groups]
