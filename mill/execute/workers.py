"""What a worker of a pool is: somebody who holds the model and answers bundles, and who may be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mill.api.errors import MillError, ModelError, ServerGone
from mill.api.model import MillModel, identity_of
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http.server import ServerModel
from mill.models.spec.open import open_model
from mill.models.spec.parse import Spec

RETURN_S = 30.0  # for a server to come back, each time a worker is hired for it

Tell = Callable[[list[tuple[int, Response]]], None]
"""Takes answers as they come, each with the place of its request in the bundle."""


class WorkerLost(Exception):
    """A worker is gone, by no fault of what it was asked that is known."""


class Worker(Protocol):
    """One worker."""

    def answer(self, kind: str, requests: Sequence[Request], tell: Tell) -> None:
        """Answer a bundle; raises WorkerLost when the worker dies, and a MillError when the model cannot go on."""

    def check_canary(self, canary: Request) -> None:
        """Answer what another worker answered; raises WorkerLost where that fails."""

    def warnings(self) -> list[str]: ...

    def execution_paths(self) -> dict[str, str]: ...

    def end(self) -> None: ...


def answer_chunk(model: MillModel, kind: str, requests: Sequence[Request], tell: Tell) -> None:
    """Have a model answer a bundle. A server that cannot be reached is a lost worker: others may reach theirs."""
    places = {id(request): place for place, request in enumerate(requests)}

    class Watching:
        def answered(self, request: Request, response: Response) -> None:
            tell([(places[id(request)], response)])

    try:
        getattr(model, kind)(requests, Watching())
    except ServerGone as gone:
        raise WorkerLost(str(gone)) from gone


def open_replica(spec: Spec, batch_size: int | None, identity: Mapping[str, Any]) -> MillModel:
    """A worker's model, ready to be loaded, which must be the one with this identity. A server that went away may come back,
    but while others can answer nobody waits for it in the middle of a bundle."""
    model = open_model(spec, batch_size=batch_size)
    try:
        model.ready(RETURN_S)
    except MillError as error:
        if isinstance(model, ServerModel):  # which was looked at before: others may be better off
            raise WorkerLost(str(error)) from error
        raise
    if portable_identity(model) != identity:
        raise ModelError(f"a worker finds another model under {spec.backend} than the command does")
    if isinstance(model, ServerModel):
        model.patience_s = 0.0
    return model


def portable_identity(model: MillModel) -> dict[str, Any]:
    """What a model is, wherever it is served."""

    def without_addresses(told: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in told.items() if name not in ("base_url", "api_base")}
        return {name: without_addresses(value) if isinstance(value, Mapping) else value for name, value in kept.items()}

    return without_addresses(identity_of(model))


def check_canary(model: MillModel, canary: Request) -> None:
    try:
        model.check_canary(canary)
    except ModelError as error:
        raise WorkerLost(str(error)) from error


class LocalWorker:
    """A worker that is a thread of this process: for models behind servers, which only wait."""

    def __init__(self, model: MillModel) -> None:
        self.model = model

    def answer(self, kind: str, requests: Sequence[Request], tell: Tell) -> None:
        answer_chunk(self.model, kind, requests, tell)

    def check_canary(self, canary: Request) -> None:
        check_canary(self.model, canary)

    def warnings(self) -> list[str]:
        return self.model.warnings()

    def execution_paths(self) -> dict[str, str]:
        return self.model.execution_paths()

    def end(self) -> None:
        self.model.clean()
