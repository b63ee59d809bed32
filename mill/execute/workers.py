"""Workers of a pool: each holds the model and computes chunks of requests, and may be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from mill.api.budget import CallMeter
from mill.api.errors import MillError, ModelError, ServerGone
from mill.api.identity import identity_of
from mill.api.model import HasPaths, MillModel, StreamContext, run_requests
from mill.api.request import Request
from mill.api.response import Response
from mill.models.spec.open import open_model
from mill.models.spec.parse import Spec

RETURN_S = 30.0  # a new worker waits so long for its server to come back

Keyed = tuple[str, Response]
"""A response with the key of its request, which identifies the request across processes."""


class WorkerLost(Exception):
    """A worker died or its server is gone; the cause need not be a request."""


class Worker(Protocol):
    """One worker."""

    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None) -> Iterator[list[Keyed]]:
        """The responses to a chunk as they arrive. Raises WorkerLost if the worker dies, MillError if the model fails. A
        worker in this process asks the meter before each request."""

    def warnings(self) -> list[str]: ...

    def execution_paths(self) -> dict[str, str]: ...

    def end(self) -> None: ...


def worker_context() -> StreamContext:
    """A worker does not wait for a server that is gone: other workers continue."""
    return StreamContext(outage_patience_s=0.0)


def stream_chunk(model: MillModel, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[list[Keyed]]:
    """A model's responses to a chunk. A server that cannot be reached is a lost worker: others may reach theirs."""
    try:
        for request, response in run_requests(model, kind, requests, context):
            yield [(request.key, response)]
    except ServerGone as gone:
        raise WorkerLost(str(gone)) from gone


def open_replica(spec: Spec, batch_size: int | None, identity: Mapping[str, Any]) -> MillModel:
    """A worker's model, ready to load, which must have this identity."""
    model = open_model(spec, batch_size=batch_size)
    try:
        model.ready(RETURN_S)
    except MillError as error:
        if model.is_server:  # it was up when the run was planned
            raise WorkerLost(str(error)) from error
        raise
    if portable_identity(model) != identity:
        raise ModelError(f"a worker finds another model under {spec.backend} than the command does")
    return model


def portable_identity(model: MillModel) -> dict[str, Any]:
    """A model's identity without the addresses of its servers."""

    def without_addresses(values: Mapping[str, Any]) -> dict[str, Any]:
        portable = {name: value for name, value in values.items() if name not in ("base_url", "api_base")}
        return {name: without_addresses(value) if isinstance(value, Mapping) else value for name, value in portable.items()}

    return without_addresses(identity_of(model))


class LocalWorker:
    """A worker that is a thread of this process, for a model on a server."""

    def __init__(self, model: MillModel) -> None:
        self.model, self._context = model, worker_context()

    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None) -> Iterator[list[Keyed]]:
        self._context.meter = meter
        return stream_chunk(self.model, kind, requests, self._context)

    def warnings(self) -> list[str]:
        return self.model.warnings()

    def execution_paths(self) -> dict[str, str]:
        return self.model.execution_paths() if isinstance(self.model, HasPaths) else {}

    def end(self) -> None:
        self.model.clean()
