"""Who computes answers: the model in this process, or workers elsewhere that each hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mill.api.batching import Observer
from mill.api.errors import ModelBroken
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.response import Response


class Engine(Protocol):
    canary: Request | None
    """Something that this model is known to have answered: where it fails on all it is asked, it is asked that."""

    def load(self) -> None:
        """Get ready to answer; called before the first request, so that rates count work alone."""

    def answer(self, kind: str, requests: Sequence[Request], observer: Observer) -> None:
        """Answer requests of one kind, telling the observer of each answer as it comes, in this thread."""

    def warnings(self) -> list[str]:
        """What a reader of the scores must know about how they came about."""

    def execution_paths(self) -> dict[str, str]:
        """Which execution paths of the model computed the answers, by stage."""

    def close(self) -> None:
        """Free what computing took."""


class _Told:
    """An observer that remembers of what it was told."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.requests: set[int] = set()

    def answered(self, request: Request, response: Response) -> None:
        self.requests.add(id(request))
        self.observer.answered(request, response)


class LocalBackend:
    """The model itself, in this process."""

    def __init__(self, model: MillModel) -> None:
        self.model = model
        self.canary: Request | None = None

    def load(self) -> None:
        self.model.load()

    def answer(self, kind: str, requests: Sequence[Request], observer: Observer) -> None:
        told = _Told(observer)
        try:
            getattr(self.model, kind)(requests, told)
        except ModelBroken:
            if self.canary is None or self.model.lock_step:
                raise
            self.model.check_canary(
                self.canary
            )  # which raises too where the model is broken; else only these questions fail
            getattr(self.model, kind)([request for request in requests if id(request) not in told.requests], observer)

    def warnings(self) -> list[str]:
        return self.model.warnings()

    def execution_paths(self) -> dict[str, str]:
        return self.model.execution_paths()

    def close(self) -> None:
        self.model.clean()
