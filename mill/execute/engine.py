"""Who computes answers: the model in this process, or workers elsewhere that each hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mill.api.batching import Observer
from mill.api.model import MillModel
from mill.api.request import Request


class Engine(Protocol):
    def load(self) -> None:
        """Get ready to answer; called before the first request, so that rates count work alone."""

    def answer(self, kind: str, requests: Sequence[Request], observer: Observer) -> None:
        """Answer requests of one kind, telling the observer of each answer as it comes, in this thread."""

    def remarks(self) -> list[str]:
        """What a reader of the scores must know about how they came about."""

    def close(self) -> None:
        """Free what computing took."""


class HereEngine:
    """The model itself, in this process."""

    def __init__(self, model: MillModel) -> None:
        self.model = model

    def load(self) -> None:
        self.model.load()

    def answer(self, kind: str, requests: Sequence[Request], observer: Observer) -> None:
        getattr(self.model, kind)(requests, observer)

    def remarks(self) -> list[str]:
        return self.model.remarks()

    def close(self) -> None:
        self.model.clean()
