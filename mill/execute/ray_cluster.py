"""Workers as Ray actors, on this machine or on a running cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mill.api.budget import CallMeter
from mill.api.consent import Consent, consenting, current_consent
from mill.api.errors import FastPathFailed, MillError, ModelBroken, ModelError
from mill.api.model import MillModel, Replicated
from mill.api.registry import import_file, imported_files
from mill.api.request import Request
from mill.compat import silence_node_reports
from mill.execute.pool import Keyed, Pool, Report, WorkerLost
from mill.execute.workers import ExecutorChoice, LocalWorker, open_replica, portable_identity
from mill.models.spec.parse import Spec
from mill.support.terminal import CollectingHandler, describe, logger, warn

CLUSTER_TIMEOUT_S = 10.0
POLL_S = 5.0  # between two checks while a worker starts
SLOW_START_S = 60.0  # after which a worker that is not ready is reported
_FAILURES: dict[str, type[Exception]] = {kind.__name__: kind for kind in (WorkerLost, ModelBroken, FastPathFailed)}


class RayWorker:
    """A worker of the pool that is an actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def open(self, opening: Opening, check: Callable[[], None]) -> None:
        """`check` raises where the cluster is gone."""
        import ray

        with _lost_when_dead():
            opened = self.actor.open.remote(opening)
            reported = time.monotonic()
            while not ray.wait([opened], timeout=POLL_S)[0]:
                check()
                if time.monotonic() - reported > SLOW_START_S:
                    reported = time.monotonic()
                    warn("a worker is waiting for resources of the Ray cluster, or is loading its model")
            _handle(ray.get(opened))

    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None) -> Iterator[list[Keyed]]:
        import ray

        with _lost_when_dead():
            for reference in self.actor.stream.options(num_returns="streaming").remote(kind, list(requests)):
                update: Update = ray.get(reference)
                yield update.responses
                _handle(update)

    def report(self) -> Report:
        import ray

        with _lost_when_dead():
            report: Report = ray.get(self.actor.report.remote(), timeout=CLUSTER_TIMEOUT_S)
            return report

    def end(self) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self.actor)


def _handle(update: Update) -> None:
    for text in update.warnings:
        warn(text)
    if update.failure is not None:
        raise _FAILURES.get(update.failed_as, ModelError)(update.failure)


class RayCluster:
    """The Ray cluster of a run: the one at `address`, else a local one."""

    def __init__(self, address: str | None, workers: int, gpus: float | None, accelerators: int) -> None:
        """`gpus` is the user's number for each worker, `accelerators` the model's, used where there are GPUs."""
        self.address, self.workers, self.gpus, self.accelerators = address, workers, gpus, accelerators
        self._actor: Any = None
        self._joined = False
        self._head = self._node = ""
        self._workers: list[RayWorker] = []

    def start_worker(self, opening: Opening) -> RayWorker:
        self._check()
        worker = RayWorker(self._actor.remote())
        self._workers.append(worker)
        try:
            worker.open(opening, self._check)
        except BaseException:
            worker.end()
            raise
        return worker

    def _check(self) -> None:
        """Raise where the head of the cluster is gone, or this process is not part of the cluster any more."""
        import ray

        _check_listening(self._head, timeout=CLUSTER_TIMEOUT_S)
        if not any(node["Alive"] and node["NodeID"] == self._node for node in ray.nodes()):  # type: ignore[no-untyped-call]
            raise ModelError("the node of the Ray cluster that this command is on died")

    def join(self) -> None:
        if self._joined:
            return
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if self.address is not None:
            _check_listening(self.address)
        elif "ray" not in sys.modules:
            # Ray listens on every network interface: a token keeps others out. Ray reads it once, when imported.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        import ray

        silence_node_reports(ray)
        if ray.is_initialized():
            raise ModelError("this process is in a Ray cluster already; mill must join or start one itself")
        self._joined = True  # also where init() fails
        previous_handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=self.address or "local",  # never one that another user started here
                include_dashboard=None if self.address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            where = f"the Ray cluster at {self.address}" if self.address else "Ray on this machine"
            token = "; it requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" if _needs_token(error) else ""
            raise ModelError(f"{where} cannot be reached: {describe(error)}{token}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, previous_handler)  # Ray's own handler would end the process silently
        context = ray.get_runtime_context()
        self._head, self._node = context.gcs_address, context.get_node_id()
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        self._actor = ray.remote(ReplicaActor).options(**self._resources(machines), max_restarts=0)

    def _resources(self, machines: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The resources of a worker: the accelerators of its model, and as many cores as each worker can have. A worker is
        never split over two machines."""
        available = sum(machine.get("GPU", 0.0) for machine in machines)
        gpus = self.gpus if self.gpus is not None else (float(self.accelerators) if available else 0.0)

        def fitting(cores: float) -> int:
            """How many workers with so many cores fit."""
            return sum(min(_times(node.get("CPU", 0.0), cores), _times(node.get("GPU", 0.0), gpus)) for node in machines)

        if fitting(0.0) < self.workers:
            raise ModelError(
                f"{self.workers} workers with {gpus:g} GPUs each do not fit on the machines of the cluster, which have "
                f"{available:g}: take fewer --workers, or a smaller --gpus_per_worker"
            )
        largest = int(max(machine.get("CPU", 0.0) for machine in machines))
        shares = [*map(float, range(largest, 0, -1)), *(0.99 / parts for parts in range(1, self.workers + 1))]
        return {"num_cpus": next((cores for cores in shares if fitting(cores) >= self.workers), 0.0), "num_gpus": gpus}

    def dismiss(self) -> None:
        """End all workers, also those that are still starting."""
        for worker in self._workers:
            with contextlib.suppress(Exception):  # it is gone already
                worker.end()
        self._workers.clear()

    def leave(self) -> None:
        if self._joined:
            import ray

            ray.shutdown()
            self._joined = False


def _check_listening(address: str, timeout: float = 0.0) -> None:
    """Refuse an address where nothing listens; Ray itself takes minutes to notice, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # `auto`
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=CLUSTER_TIMEOUT_S).close()
        except OSError as error:
            if time.monotonic() >= deadline:
                why = error.strerror or error
                raise ModelError(f"nothing answers at the Ray cluster's address {address}: {why}") from error
        time.sleep(1.0)


def _times(available: float, share: float) -> int:
    """How many times a share fits; a share of 0 always fits."""
    return int(available / share + 1e-9) if share else 1 << 30


@contextlib.contextmanager
def _lost_when_dead() -> Iterator[None]:
    """Turn Ray's exceptions for a dead actor into WorkerLost."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:  # an error of the worker's code: another worker would raise it too
        raise ModelError(f"a worker failed: {describe(error.cause)}") from error
    except RayError as error:
        raise WorkerLost(_reason(error)) from error


def _needs_token(error: BaseException | None) -> bool:
    while error is not None:
        if "AuthToken" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    """A short cause of death; Ray's own message is a page long."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":
        return "out of memory"
    for pattern, cause in _CAUSES.items():
        if pattern in text:
            return cause
    return f"{type(error).__name__}: {text[:120]}"


_CAUSES = {
    "SYSTEM_ERROR": "killed or crashed",
    "unexpectedly": "killed or crashed",
    "unavailable": "unreachable",
    "node": "its machine is gone",
}


CHUNK_S = 0.1  # responses within this time are sent together
_FORWARDED = ("MILL_DATA", "MILL_CACHE", "HF_HUB_OFFLINE", "HF_HOME", "HF_TOKEN")


@dataclass(frozen=True)
class Opening:
    """What a worker needs to open the model: the spec, the files that register backends, the identity it must have, the
    variables of this machine that it reads (as an argument, which Ray does not log), and what the user allows."""

    spec: Spec
    batch_size: int | None
    files: tuple[str, ...]
    identity: Mapping[str, Any]
    environment: Mapping[str, str]
    consent: Consent


@dataclass(frozen=True)
class Update:
    """A worker's message: responses with the keys of their requests, warnings to log, and why it cannot continue."""

    responses: list[Keyed]
    warnings: list[str]
    failure: str | None = None
    failed_as: str = ""
    """The name of the error, where the command treats it apart."""


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
                self.worker = LocalWorker(open_replica(opening.spec, opening.batch_size, opening.identity))
            self.worker.model.load()
        except Exception as error:
            return self._update([], error)
        return self._update([])

    def report(self) -> Report:
        return self.worker.report()

    def stream(self, kind: str, requests: list[Request]) -> Iterator[Update]:
        """Responses as they arrive, a few at a time."""
        results: queue.SimpleQueue[list[Keyed] | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                for responses in self.worker.stream(kind, requests, None):
                    results.put(responses)
                results.put(None)
            except BaseException as error:  # a library that calls exit() would leave the driver waiting
                results.put(error)

        threading.Thread(target=work, daemon=True).start()
        item: list[Keyed] | BaseException | None = []
        while isinstance(item, list):
            item = results.get()
            responses, until = list[Keyed](), time.monotonic() + CHUNK_S
            with contextlib.suppress(queue.Empty):
                while isinstance(item, list):
                    responses += item
                    item = results.get(timeout=max(0.0, until - time.monotonic()))
            yield self._update(responses, item if isinstance(item, BaseException) else None)

    def _update(self, responses: list[Keyed], error: BaseException | None = None) -> Update:
        if error is None:
            return Update(responses, self._logged.take())
        text = str(error) if isinstance(error, (MillError, WorkerLost)) else describe(error)
        return Update(responses, self._logged.take(), text, type(error).__name__)


class RayBackend(Pool):
    """A pool on Ray; the cluster is joined before the first request, and left at the end."""

    def __init__(self, choice: ExecutorChoice, specs: Sequence[Spec], model: MillModel, workers: int) -> None:
        super().__init__(self._start_worker, workers, servers=model.is_server)
        self._cluster = RayCluster(choice.address, workers, choice.gpus_per_worker, model.accelerators)
        identity = portable_identity(model)
        chosen = model.replica_arguments() if isinstance(model, Replicated) else {}
        fixed = [Spec(spec.backend, {**spec.arguments, **chosen}) for spec in specs]
        own = model.replica_variables() if isinstance(model, Replicated) else ()
        environment = {name: os.environ[name] for name in (*_FORWARDED, *own) if name in os.environ}
        shared = (imported_files(), identity, environment, current_consent())
        self._openings = [Opening(spec, model.batch_size, *shared) for spec in fixed]

    def load(self, requests: Sequence[Request]) -> None:
        self._cluster.join()

    def _start_worker(self, number: int) -> RayWorker:
        return self._cluster.start_worker(self._openings[number % len(self._openings)])

    def close(self) -> None:
        self._cluster.dismiss()
        super().close()
        self._cluster.leave()
