"""The base class of backends: implement the hooks, and MillModel batches, streams, shows progress and retries."""

from __future__ import annotations

import gc
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from mill.api.batching import BatchLimits, Completed, Hook, Unit, as_response, run_batches
from mill.api.budget import CallMeter, Price
from mill.api.errors import CannotServe, FastPathFailed, MillError, ModelError
from mill.api.identity import Made, bound_arguments, plain_arguments, read_source
from mill.api.reasoning import tags_of
from mill.api.registry import source_digest
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request
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


@dataclass(frozen=True)
class ComputeDevice:
    """The device of a model, and the operations that one token takes in its layers, the vocabulary left out."""

    name: str
    dtype: str
    operations_per_token: float


class MillModel(ABC):
    """A model that answers requests.

    Hooks take a batch and return one answer for each request in order: text, (log-probability, is_greedy), a
    log-probability, or a full Response. They may raise; the base class isolates the request that fails.
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
    outage_patience_s: float = 0.0
    """How long a server that went away is waited for; 0 where other workers can take over."""
    lock_step: bool = False
    """Whether all ranks must compute every batch together, as sharded models do; they then get equally many requests."""
    no_logprobs: str = ""
    """Why a server returns no log-probabilities of a prompt, where others of its kind do."""
    token_count: TokenCount | None = None
    """Planned and computed tokens of the stream in progress, where the backend knows them."""
    canary: Request | None = None
    """A request that the model answered. It is sent again to test whether the model, or only a request, fails."""

    meter: CallMeter | None = None
    """Says whether there is room for a request, where the run has a budget and `meters_calls` is true."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Keeps the arguments, which identify a model that is made in Python."""
        model = super().__new__(cls)
        model.made_with = Made(bound_arguments(cls, arguments, named))
        model.arguments = plain_arguments(model.made_with.given)
        return model

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._source = read_source(cls)  # now: a file may be edited later

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The model's name in tables and folders."""

    @property
    def meters_calls(self) -> bool:
        """Whether the backend asks its meter before each request, and ends its stream where there is no room for one."""
        return False

    def price(self) -> Price | None:
        """What tokens cost; None where that is not known, or nothing is charged."""
        return None

    # Hooks of a backend.

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> Sequence[str | Response]:
        raise self._cannot(GENERATE)

    def _loglikelihood_batch(self, batch: list[Request]) -> Sequence[tuple[float, bool] | Response]:
        raise self._cannot(LOGLIKELIHOOD)

    def _loglikelihood_rolling_single(self, request: Request) -> float | Response:
        raise self._cannot(ROLLING)

    def _zero_shot_batch(self, batch: list[Request]) -> Sequence[Response]:
        raise self._cannot(ZERO_SHOT)

    def _classify_batch(self, batch: list[Request]) -> Sequence[Response]:
        raise self._cannot(CLASSIFY)

    # What the executor needs of a model.

    def prepare_requests(self, kind: str, requests: Sequence[Request]) -> None:  # noqa: B027
        """Called before weights load, with the requests that come first: what needs no weights may begin in a thread."""

    def start_hashing(self) -> None:  # noqa: B027
        """Begin to compute what `identity` needs, if that takes long: tasks are planned meanwhile."""

    def start_loading(self, requests: Sequence[Request]) -> None:  # noqa: B027
        """Called before `identity` if no other model computes before this one, with the requests of the run: what takes long
        may begin as soon as it is likely that there is something to compute."""

    @property
    def loads_in_thread(self) -> bool:
        """Whether it is being loaded in a thread now."""
        return False

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

    def check(self, request: Request) -> None:
        """Raise CannotServe for a request that can never be answered, such as one with more classes than the head has.

        Called with the first request of every task, before weights load.
        """
        if refused := self._refused_media(request):
            raise CannotServe(refused)

    def _refused_media(self, request: Request) -> str:
        """Why a request's images, videos or audio cannot be answered; empty if they can."""
        media = request.media
        if not media:
            return ""
        takes = set(self.capabilities.modalities)
        kinds = sorted({one.kind for one in media} - takes)
        return f"the request has {' and '.join(kinds)}; {self.model_name} takes {', '.join(sorted(takes))}" if kinds else ""

    def warnings(self) -> list[str]:
        """What a reader of the scores must know about how they were computed, such as an option that the server ignored."""
        return []

    def prompt_warnings(self, requests: Iterable[Request]) -> list[str]:
        """What a reader of a task's scores must know about how this model gets its prompts; known before weights load."""
        return []

    def planned_paths(self) -> dict[str, str]:
        """Which execution paths this model will try, by stage, known before weights load; empty if there is only one."""
        return {}

    def execution_paths(self) -> dict[str, str]:
        """Which execution paths computed requests since the model was opened, by stage, and why."""
        return {}

    def load(self) -> None:
        """Load what takes long, such as weights; called before the first request, so that rates do not count it."""
        return None

    def has_chat_template(self) -> bool:
        """Whether dialogs can be rendered; may read files, but not weights."""
        return self.capabilities.supports_chat_template

    def rendered_prompt(self, request: Request) -> str:
        """The prompt as the model gets it, for people who read samples: after the chat template where it is applied in
        this process, else the messages as JSON."""
        if isinstance(request.context, str):
            return request.context
        return json.dumps([message.to_json() for message in request.context], ensure_ascii=False)

    def count_tokens(self, requests: Sequence[Request]) -> int | None:
        """How many input tokens these requests have, without loading weights; None where that is not known."""
        return None

    def count_each(self, groups: Sequence[Sequence[Request]]) -> list[InputTokens | None]:
        """The input tokens of each group; None where they are not known."""
        counts = (self.count_tokens(group) for group in groups)
        return [None if count is None else InputTokens(count) for count in counts]

    def request_cost(self, request: Request) -> int:
        """The length of a request, for ordering and batching; in characters where there is no tokenizer."""
        return len(request.text) + len(request.continuation)

    def set_concurrency(self, concurrency: int | None) -> bool:
        """Have at most so many requests in flight from now on, None for the backend's default.

        False where the backend has no such setting.
        """
        return False

    def synchronize(self) -> None:
        """Wait for the other ranks. Called after each group of requests where the model runs in lock-step."""
        return None

    def fixed_arguments(self) -> Mapping[str, Any]:
        """Arguments that the model chose for this machine, and that its replicas on other machines must get too."""
        return {}

    def variables(self) -> Sequence[str]:
        """Environment variables that a replica needs on another machine, besides those of data and hubs."""
        return ()

    def weight_bytes(self) -> int | None:
        """The size of the weights on disk; None where it is not known."""
        return None

    def compute_device(self) -> ComputeDevice | None:
        """What computed the answers in this process; None where that is not known."""
        return None

    def clean(self) -> None:
        """Free accelerator memory after inference, for example for a judge."""
        gc.collect()

    def _free_memory(self) -> None:
        """Called between attempts when memory ran out."""
        gc.collect()

    # The one path of answers: a stream, which the executor records and the public methods put in order.

    def stream_responses(self, kind: str, requests: Sequence[Request]) -> Generator[Completed, None, None]:
        """Every request with its response, as soon as it is there and in any order. No two requests may be equal.

        A backend that overrides a public method, such as `generate_until`, is called through it.
        """
        if getattr(type(self), kind) is not getattr(MillModel, kind):
            yield from zip(requests, self._overridden(kind, requests), strict=True)
            return
        yield from self._tracked(kind, requests)

    def _overridden(self, kind: str, requests: Sequence[Request]) -> list[Response]:
        """The responses of a public method that a subclass overrides, checked."""
        name = f"{type(self).__name__}.{kind}"
        try:
            responses = getattr(self, kind)(requests)
        except (MillError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise ModelError(f"{name} raised {describe(error)}") from error
        if isinstance(responses, (str, bytes)) or not isinstance(responses, Sequence):
            raise ModelError(f"{name} returned {type(responses).__name__}, not a list of responses")
        if len(responses) != len(requests):
            raise ModelError(f"{name} returned {len(responses)} of {len(requests)} responses")
        return [as_response(response, kind) for response in responses]

    def _tracked(self, kind: str, requests: Sequence[Request]) -> Generator[Completed, None, None]:
        self.token_count = None
        refused = {id(request): error for request in requests if (error := self._refused_media(request))}
        yield from ((request, Response(error=refused[id(request)])) for request in requests if id(request) in refused)
        served = [request for request in requests if id(request) not in refused] if refused else requests
        for request, response in self._stream(kind, served) if served else ():
            if self.canary is None and not response.failed:
                self.canary = request
            yield request, response

    def _stream(self, kind: str, requests: Sequence[Request]) -> Iterator[Completed]:
        """A backend that does more than batch its requests overrides this."""
        for options, group in _by_options(requests):
            units = [Unit([request], self.request_cost(request)) for request in group]
            yield from self._stream_units(units, self._hook(kind, options), self._limits(kind))

    def _stream_units(self, units: Sequence[Unit], hook: Hook, limits: BatchLimits) -> Iterator[Completed]:
        healthy = self.canary is not None
        return run_batches(units, hook, limits=limits, free_memory=self._free_memory, healthy=healthy)

    # The public methods, one a kind: responses in the order of the requests, with a progress bar.

    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        return self._ordered(GENERATE, requests)

    def generate_until_multi_round(self, requests: Sequence[Request]) -> list[Response]:
        """One round of every open dialog; a request's messages hold the rounds before."""
        return self._ordered(MULTI_ROUND, requests)

    def loglikelihood(self, requests: Sequence[Request]) -> list[Response]:
        return self._ordered(LOGLIKELIHOOD, requests)

    def loglikelihood_rolling(self, requests: Sequence[Request]) -> list[Response]:
        return self._ordered(ROLLING, requests)

    def zero_shot_classify(self, requests: Sequence[Request]) -> list[Response]:
        return self._ordered(ZERO_SHOT, requests)

    def classify(self, requests: Sequence[Request]) -> list[Response]:
        return self._ordered(CLASSIFY, requests)

    def _ordered(self, kind: str, requests: Sequence[Request]) -> list[Response]:
        """Equal requests are computed once."""
        distinct = list({request.key: request for request in requests}.values())
        try:
            responses = self._responses(kind, distinct)
        except FastPathFailed:  # it is off from now on
            responses = self._responses(kind, distinct)
        return [responses[request.key] for request in requests]

    def _responses(self, kind: str, requests: Sequence[Request]) -> dict[str, Response]:
        responses: dict[str, Response] = {}
        with (
            Progress(kind, len(requests), tokens=lambda: self.token_count) as progress,
            closing(self._tracked(kind, requests)) as stream,
        ):
            for request, response in stream:
                responses[request.key] = response
                progress.advance(failed=response.failed)
        return responses

    def _limits(self, kind: str) -> BatchLimits:
        if kind == ROLLING:
            return BatchLimits(requests=1)
        if self.batch_size is None and self.max_batch_tokens is None:
            return BatchLimits(requests=DEFAULT_BATCH_SIZE)
        return BatchLimits(self.batch_size, self.max_batch_tokens)

    def _hook(self, kind: str, options: dict[str, Any]) -> Hook:
        """A backend's hook for a kind, adapted to units and responses."""
        hooks: dict[str, Callable[[list[Request]], Sequence[Any]]] = {
            GENERATE: lambda batch: self._generate_batch(batch, dict(options)),
            MULTI_ROUND: lambda batch: self._generate_batch(batch, dict(options)),
            LOGLIKELIHOOD: self._loglikelihood_batch,
            ROLLING: lambda batch: [self._loglikelihood_rolling_single(request) for request in batch],
            ZERO_SHOT: self._zero_shot_batch,
            CLASSIFY: self._classify_batch,
        }

        def call(batch: list[Unit]) -> list[list[Response]]:
            answers = hooks[kind]([unit.requests[0] for unit in batch])
            if isinstance(answers, (str, bytes)) or not isinstance(answers, Sequence):
                raise ModelError(f"the backend's hook for {kind} returned {type(answers).__name__}, not a list of answers")
            responses = [as_response(answer, kind) for answer in answers]
            if kind in (GENERATE, MULTI_ROUND) and len(responses) == len(batch):  # else they are refused
                pairs = zip(batch, responses, strict=True)
                responses = [_split(unit.requests[0], response) for unit, response in pairs]
            return [[response] for response in responses]

        return call

    def _cannot(self, kind: str) -> CannotServe:
        return CannotServe(f"{self.model_name} ({type(self).__name__}) does not answer {kind} requests")


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
