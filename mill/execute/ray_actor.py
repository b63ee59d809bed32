"""The actor of a worker on Ray: it opens the model, computes chunks of requests, and sends errors as text."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mill.api.batching import describe
from mill.api.consent import Consent, consenting
from mill.api.errors import MillError
from mill.api.files import import_file
from mill.api.model import HasPaths, MillModel, Replicated
from mill.api.request import Request
from mill.api.warnings import CollectingHandler, logger
from mill.execute.workers import Keyed, WorkerLost, open_replica, stream_chunk, worker_context
from mill.models.spec.parse import Spec

CHUNK_S = 0.1  # responses within this time are sent together
_FORWARDED = ("MILL_DATA", "MILL_CACHE", "HF_HUB_OFFLINE", "HF_HOME", "HF_TOKEN")


@dataclass(frozen=True)
class Opening:
    """What a worker needs to open the model: the spec, the files that register backends, the identity it must have, and what
    the user allows."""

    spec: Spec
    batch_size: int | None
    files: tuple[str, ...]
    identity: Mapping[str, Any]
    environment: Mapping[str, str]
    consent: Consent


def environment(model: MillModel) -> dict[str, str]:
    """The variables of this machine that a worker needs; keys are sent as actor arguments, which Ray does not log."""
    own = model.replica_variables() if isinstance(model, Replicated) else ()
    return {name: os.environ[name] for name in (*_FORWARDED, *own) if name in os.environ}


@dataclass(frozen=True)
class Update:
    """A worker's message: responses with the keys of their requests, warnings to log, and why it cannot continue."""

    responses: list[Keyed]
    warnings: list[str]
    failure: str | None = None
    failed_as: str = "ModelError"
    """The name of the error, where the command treats it apart."""
    lost: str | None = None
    """Why this worker cannot be used any more, though others may."""


class ReplicaActor:
    """Holds the model and computes chunks. Errors are sent as text, since few exceptions can be pickled."""

    def __init__(self) -> None:
        self._logged = CollectingHandler()  # a worker's standard error is not shown: the driver logs these again
        logger.addHandler(self._logged)

    def open(self, opening: Opening) -> Update:
        os.environ.update(opening.environment)
        try:
            for file in opening.files:
                import_file(file, "file")
            with consenting(opening.consent):
                self.model = open_replica(opening.spec, opening.batch_size, opening.identity)
            self._context = worker_context()
            self.model.load()
        except WorkerLost as lost:
            return Update([], self._warnings(), lost=str(lost))
        except Exception as error:
            return Update([], self._warnings(), _error_text(error))
        return Update([], self._warnings())

    def warnings(self) -> list[str]:
        return self.model.warnings()

    def execution_paths(self) -> dict[str, str]:
        return self.model.execution_paths() if isinstance(self.model, HasPaths) else {}

    def stream(self, kind: str, requests: list[Request]) -> Iterator[Update]:
        """Responses as they arrive, a few at a time."""
        results: queue.Queue[Any] = queue.Queue()

        def work() -> None:
            try:
                for responses in stream_chunk(self.model, kind, requests, self._context):
                    results.put(responses)
                results.put(None)
            except BaseException as error:  # a library that calls exit() would leave the driver waiting
                results.put(error)

        threading.Thread(target=work, daemon=True).start()
        item = results.get()
        while item is not None:
            responses, until = [], time.monotonic() + CHUNK_S
            while isinstance(item, list):
                responses += item
                try:
                    item = results.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    item = []
                    break
            if isinstance(item, WorkerLost):
                yield Update(responses, self._warnings(), lost=str(item))
                return
            if isinstance(item, BaseException):
                yield Update(responses, self._warnings(), _error_text(item), failed_as=type(item).__name__)
                return
            if responses:
                yield Update(responses, self._warnings())
            if item == []:
                item = results.get()

    def _warnings(self) -> list[str]:
        return self._logged.take()


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, MillError) else describe(error)
