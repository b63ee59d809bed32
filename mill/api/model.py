"""What a backend is: subclass MillModel, implement the hooks, and the base class batches, shows progress and retries."""

from __future__ import annotations

import gc
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from mill.api.batching import BatchLimits, Hook, Observer, Unit, as_response, run_batches
from mill.api.errors import CannotServe, ModelBroken, ModelError
from mill.api.files import source_digest
from mill.api.progress import Progress
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, ZERO_SHOT, Request
from mill.api.response import Response
from mill.api.secrets import is_secret, redact_addresses

TEXT_KINDS = frozenset({GENERATE, MULTI_ROUND})
DEFAULT_BATCH_SIZE = 8  # of a backend that says nothing; halved where that is too much
LOGPROB_KINDS = frozenset({LOGLIKELIHOOD, ROLLING})


@dataclass(frozen=True)
class ModelCapabilities:
    """What a model can be asked. `kinds` is derived from `supports_logprobs` unless a backend names its own."""

    modalities: set[str] = field(default_factory=lambda: {"text"})
    max_context_length: int | None = None
    supports_logprobs: bool = False
    supports_chat_template: bool = False
    kinds: frozenset[str] | None = None
    concurrency: int = 1
    top_logprobs: int | None = 0
    """How many of the likeliest tokens it names at each place of a scored continuation; None is the whole vocabulary."""
    scores_dialogs: bool = True
    """Whether it scores a continuation after messages, not only after plain text."""

    def serves(self, kind: str) -> bool:
        kinds = self.kinds
        if kinds is None:
            kinds = TEXT_KINDS | LOGPROB_KINDS if self.supports_logprobs else TEXT_KINDS
        return kind in kinds


class MillModel(ABC):
    """A model that answers requests.

    Hooks take a batch and return one answer for each request in order: text, (log-probability, is_greedy), a
    log-probability, or a full Response. They may raise; the base class finds out which request is to blame.
    """

    capabilities: ModelCapabilities = ModelCapabilities()
    arguments: Mapping[str, Any] = {}
    """What the model was opened with; set by `open_model`."""
    batch_size: int | None = None
    max_batch_tokens: int | None = None
    use_chat_template: bool = False
    accelerators: int = 1
    """How many a copy of the model takes, where there are any."""
    lock_step: bool = False
    """Whether all ranks must compute every batch together, as sharded models do; they are then asked equally often."""
    canary: Request | None = None
    """Something that it answered: a model that has done so and now fails is not broken from the start."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name people know the model by."""

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

    # What the executor asks of a model.

    def identity(self) -> dict[str, Any]:
        """Everything that would change the model's answers; equal identities share results.

        By default that is the class and every argument but the batch size and secrets.
        """
        told = {
            name: redact_addresses(value) if isinstance(value, str) else value
            for name, value in self.arguments.items()
            if name != "batch_size" and not is_secret(name)
        }
        return {"class": f"{type(self).__module__}.{type(self).__qualname__}", "model": self.model_name, "arguments": told}

    def ready(self, wait: float = 0.0) -> None:
        """Check that the model can be used, before any work; a server that is not there yet is waited for."""
        return None

    def check(self, request: Request) -> None:
        """Raise CannotServe for a request that can never be answered, such as one with more classes than the head has.

        Called with the first request of every task, before weights load.
        """
        return None

    def warnings(self) -> list[str]:
        """What a reader of the scores must know about how this model was asked, such as what its server ignored."""
        return []

    def load(self) -> None:
        """Load what takes long, such as weights; called before the first request, so that rates count work alone."""
        return None

    def has_chat_template(self) -> bool:
        """Whether dialogs can be rendered; may look at files, but not at weights."""
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

    def request_cost(self, request: Request) -> int:
        """How long a request is, for ordering and batching; characters stand in where no tokenizer is at hand."""
        return len(request.text) + len(request.continuation)

    def set_concurrency(self, width: int | None) -> bool:
        """From now on have at most so many requests under way at once, None for the backend's own choice.

        False where that cannot be chosen.
        """
        return False

    def settle(self) -> None:
        """Called on every rank after each group of requests where the model runs in lock-step: wait for the others."""
        return None

    def check_canary(self, canary: Request) -> None:
        """Answer something that this model answered elsewhere; raises where it cannot."""
        (found,) = getattr(self, canary.kind)([canary], Unseen())
        if found.failed:
            raise ModelBroken(f"the model fails even on what it answered before: {found.error}")

    def fixed_arguments(self) -> Mapping[str, Any]:
        """Arguments that the model chose by the machine it is on, and that its copies on other machines must be given."""
        return {}

    def variables(self) -> Sequence[str]:
        """Environment variables that a copy of the model needs on another machine, beside those of data and hubs."""
        return ()

    def weight_bytes(self) -> int | None:
        """How large the weights are where they lie; None where that is not known."""
        return None

    def clean(self) -> None:
        """Free accelerator memory after inference, so that a judge can have it."""
        gc.collect()

    def _free_memory(self) -> None:
        """Called between attempts when memory ran out."""
        gc.collect()

    # The public methods, one a kind; the executor finds them by the kind's name.

    def generate_until(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        return self._answer(GENERATE, requests, observer)

    def generate_until_multi_round(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        """One round of every open dialog; a request's messages hold the rounds before."""
        return self._answer(MULTI_ROUND, requests, observer)

    def loglikelihood(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        return self._answer(LOGLIKELIHOOD, requests, observer)

    def loglikelihood_rolling(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        return self._answer(ROLLING, requests, observer)

    def zero_shot_classify(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        return self._answer(ZERO_SHOT, requests, observer)

    def classify(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        return self._answer(CLASSIFY, requests, observer)

    def _answer(self, kind: str, requests: Sequence[Request], observer: Observer | None) -> list[Response]:
        """Run a kind's hook over all requests in batches and return the responses in the order asked."""
        found: dict[int, Response] = {}
        with watched(kind, requests, observer) as watching:
            for options, group in _by_options(requests):
                units = [Unit([request], self.request_cost(request)) for request in group]
                found |= self._run_units(units, self._hook(kind, options), self._limits(kind), watching)
        return [found[id(request)] for request in requests]

    def _run_units(self, units: Sequence[Unit], hook: Hook, limits: BatchLimits, observer: Observer) -> dict[int, Response]:
        """Run units in batches, tell the observer of each answer, and return the responses by id() of their requests."""
        found: dict[int, Response] = {}
        proven = self.canary is not None
        for request, response in run_batches(units, hook, limits=limits, free_memory=self._free_memory, proven=proven):
            if self.canary is None and not response.failed:
                self.canary = request
            found[id(request)] = response
            observer.answered(request, response)
        return found

    def _limits(self, kind: str) -> BatchLimits:
        if kind == ROLLING:
            return BatchLimits(requests=1)
        if self.batch_size is None and self.max_batch_tokens is None:
            return BatchLimits(requests=DEFAULT_BATCH_SIZE)
        return BatchLimits(self.batch_size, self.max_batch_tokens)

    def _hook(self, kind: str, options: dict[str, Any]) -> Hook:
        """A backend's hook for a kind, made to take units and to return responses."""
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
            return [[as_response(answer, kind)] for answer in answers]

        return call

    def _cannot(self, kind: str) -> CannotServe:
        return CannotServe(f"{self.model_name} ({type(self).__name__}) does not answer {kind} requests")


def identity_of(model: MillModel) -> dict[str, Any]:
    """A model's identity, with the source of a backend that is a person's own file: edited, it is another model."""
    source = source_digest(type(model).__module__)
    return {**model.identity(), **({"source": source} if source else {})}


class Unseen:
    """An observer that shows nothing."""

    def answered(self, request: Request, response: Response) -> None:
        return None


class _Bar:
    """The observer of a model that is called directly: it only moves a progress bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def answered(self, request: Request, response: Response) -> None:
        self._progress.advance(failed=response.failed)


@contextmanager
def watched(kind: str, requests: Sequence[Request], observer: Observer | None) -> Iterator[Observer]:
    """The observer given, or a progress bar where there is none."""
    if observer is not None:
        yield observer
        return
    with Progress(kind, len(requests)) as progress:
        yield _Bar(progress)


def options_text(request: Request) -> str:
    """A request's options as a literal; equal ones have equal texts."""
    return repr(sorted(request.options.items()))


def _by_options(requests: Sequence[Request]) -> list[tuple[dict[str, Any], list[Request]]]:
    """Requests that share decoding options share batches."""
    ordered = sorted(requests, key=options_text)
    groups = ((options, list(group)) for options, group in groupby(ordered, key=options_text))
    return [(dict(group[0].options), group) for _, group in groups]
