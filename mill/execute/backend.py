"""Executor backends, which compute responses: the model in this process, or a pool of workers that each hold it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from mill.api.batching import Completed, describe
from mill.api.errors import MillError, ModelBroken, ModelError
from mill.api.model import HasPaths, MillModel, StreamContext, run_requests
from mill.api.request import Request
from mill.api.timing import ComputeDevice
from mill.api.warnings import warn


class ExecutorBackend(Protocol):
    meters_calls: bool
    """Whether the meter is asked before each request: the stream then ends early where there is no room for one."""

    def load(self, requests: Sequence[Request]) -> None:
        """Called before the first request, with those that follow, so that rates do not include loading."""

    def stream(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Generator[Completed, None, None]:
        """Every request with its response, as soon as it is complete. No two requests may be equal."""

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
        self.meters_calls = model.meters_calls

    def load(self, requests: Sequence[Request]) -> None:
        try:
            if self.model.startup is not None:
                self.model.startup.prepare(requests)
            self.model.load()
        except (MillError, KeyboardInterrupt):
            raise
        except BaseException as error:  # third-party code may raise anything
            raise ModelError(f"the model could not be loaded: {describe(error)}") from error

    def stream(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Generator[Completed, None, None]:
        completed: set[str] = set()
        try:
            for request, response in run_requests(self.model, kind, requests, context):
                completed.add(request.key)
                yield request, response
        except ModelBroken:
            if context.recorded is None or self.model.lock_step:
                raise
            for _, response in run_requests(self.model, context.recorded.kind, [context.recorded], context):
                if response.failed:
                    broken = "the model fails even on a request that it answered before"
                    raise ModelBroken(f"{broken}: {response.error}") from None
            remaining = [request for request in requests if request.key not in completed]
            yield from run_requests(self.model, kind, remaining, context)

    def undelivered(self) -> list[Completed]:
        return []

    def warnings(self) -> list[str]:
        return self.model.warnings()

    def execution_paths(self) -> dict[str, str]:
        return self.model.execution_paths() if isinstance(self.model, HasPaths) else {}

    def compute_device(self) -> ComputeDevice | None:
        return self.model.compute_device() if isinstance(self.model, HasPaths) else None

    def close(self) -> None:
        """A model that cannot free its memory has answered: the scores stay."""
        try:
            self.model.clean()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # third-party code may raise anything
            warn(f"{self.model.model_name}: clean() raised {describe(error)}")
