"""Executor backends, which compute responses: the model in this process, or a pool of workers that each hold it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from mill.api.batching import Completed
from mill.api.budget import CallMeter
from mill.api.errors import MillError, ModelBroken, ModelError
from mill.api.model import ComputeDevice, MillModel
from mill.api.request import Request
from mill.support.terminal import TokenCount, describe, warn


class ExecutorBackend(Protocol):
    canary: Request | None
    """A request that this model has answered; sent again where the model fails on every request."""
    meters_calls: bool
    """Whether the meter is asked before each request: the stream then ends early where there is no room for one."""

    def set_meter(self, meter: CallMeter | None) -> None:
        """Ask this before each request, where the model sends calls; None removes it."""

    def prepare_requests(self, kind: str, requests: Sequence[Request]) -> None:
        """Called before `load` with the requests that follow: what they need and the weights do not may begin."""

    def load(self) -> None:
        """Called before the first request, so that rates do not include loading."""

    def stream(self, kind: str, requests: Sequence[Request]) -> Generator[Completed, None, None]:
        """Every request with its response, as soon as it is complete. No two requests may be equal."""

    def token_count(self) -> TokenCount | None:
        """Planned and computed tokens of the stream in progress; None where they are not known."""

    def undelivered(self) -> list[Completed]:
        """Responses that had arrived when the stream was closed before its end."""

    def warnings(self) -> list[str]:
        """Warnings about how the scores were computed."""

    def execution_paths(self) -> dict[str, str]:
        """Which execution paths of the model computed the answers, by stage."""

    def compute_device(self) -> ComputeDevice | None:
        """What computed the answers in this process; None where that is not known."""

    def close(self) -> None:
        """Free memory and workers."""


class LocalBackend:
    """The model in this process."""

    def __init__(self, model: MillModel) -> None:
        self.model = model
        self.canary: Request | None = None
        self.meters_calls = model.meters_calls

    def set_meter(self, meter: CallMeter | None) -> None:
        self.model.meter = meter if self.meters_calls else None

    def prepare_requests(self, kind: str, requests: Sequence[Request]) -> None:
        self.model.prepare_requests(kind, requests)

    def load(self) -> None:
        try:
            self.model.load()
        except (MillError, KeyboardInterrupt):
            raise
        except BaseException as error:  # third-party code may raise anything
            raise ModelError(f"the model could not be loaded: {describe(error)}") from error

    def stream(self, kind: str, requests: Sequence[Request]) -> Generator[Completed, None, None]:
        completed: set[str] = set()
        try:
            for request, response in self.model.stream_responses(kind, requests):
                completed.add(request.key)
                yield request, response
        except ModelBroken:
            if self.canary is None or self.model.lock_step:
                raise
            for _, response in self.model.stream_responses(self.canary.kind, [self.canary]):
                if response.failed:
                    broken = "the model fails even on a request that it answered before"
                    raise ModelBroken(f"{broken}: {response.error}") from None
            remaining = [request for request in requests if request.key not in completed]
            yield from self.model.stream_responses(kind, remaining)

    def token_count(self) -> TokenCount | None:
        return self.model.token_count

    def undelivered(self) -> list[Completed]:
        return []

    def warnings(self) -> list[str]:
        return self.model.warnings()

    def execution_paths(self) -> dict[str, str]:
        return self.model.execution_paths()

    def compute_device(self) -> ComputeDevice | None:
        return self.model.compute_device()

    def close(self) -> None:
        """A model that cannot free its memory has answered: the scores stay."""
        try:
            self.model.clean()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # third-party code may raise anything
            warn(f"{self.model.model_name}: clean() raised {describe(error)}")
