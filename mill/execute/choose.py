"""Chooses the executor backend of a run: the model in this process, a worker for each server, or workers on Ray."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from mill.api.consent import current_consent
from mill.api.errors import MissingPackage, SpecError
from mill.api.model import MillModel, Replicated
from mill.api.registry import imported_files
from mill.api.request import Request
from mill.execute.executor import ExecutorBackend, LocalBackend
from mill.execute.pool import Pool
from mill.execute.ray_cluster import Opening, RayCluster, RayWorker, environment
from mill.execute.workers import LocalWorker, open_replica, portable_identity
from mill.models.spec.open import open_model
from mill.models.spec.parse import Spec, addresses_of, at_address
from mill.support.processes import world_size

LOCAL, RAY = "local", "ray"
EXECUTORS = (LOCAL, RAY)


@dataclass(frozen=True)
class ExecutorChoice:
    """The user's options. `workers` None means one, or one for each server address."""

    executor: str = LOCAL
    workers: int | None = None
    address: str | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise SpecError(f"--executor {self.executor}: executors are {', '.join(EXECUTORS)}")
        if self.executor == LOCAL and self.address:
            raise SpecError("--address is that of a Ray cluster: add --executor ray")
        if self.executor == LOCAL and self.gpus_per_worker is not None:
            raise SpecError("--gpus_per_worker is for workers on Ray: add --executor ray")

    def check(self, spec: Spec) -> None:
        """Refuse options that cannot work, before anything starts."""
        servers = len(addresses_of(spec))
        if world_size() > 1 and (self.executor == RAY or servers > 1):
            reason = "--executor ray" if self.executor == RAY else "a model with several addresses"
            raise SpecError(f"{reason} distributes the work itself: start mill without torchrun or accelerate")
        if self.executor == LOCAL and self.workers not in (None, 1) and servers < 2:
            raise SpecError(f"--workers {self.workers}: add --executor ray, or give a server with several addresses")
        if self.workers is not None and self.workers < servers:
            raise SpecError(f"--workers {self.workers} would leave some of the {servers} addresses without one")
        if self.executor == RAY and importlib.util.find_spec("ray") is None:
            raise MissingPackage("--executor ray", "ray", "ray")


def make_backend(choice: ExecutorChoice, spec: Spec, model: MillModel) -> ExecutorBackend:
    """`model` was opened to plan the run; its weights are loaded only where it runs in this process."""
    specs = [at_address(spec, address) for address in addresses_of(spec)] or [spec]
    workers = choice.workers or len(specs)
    if choice.executor == RAY:
        return RayBackend(choice, specs, model, workers)
    return LocalBackend(model) if workers == 1 else _on_servers(specs, model, workers)


def check_servers(spec: Spec, model: MillModel, wait: float) -> None:
    """Every address of a model must serve the same one."""
    for address in addresses_of(spec)[1:]:
        other = open_model(at_address(spec, address))
        other.ready(wait)
        if portable_identity(other) != portable_identity(model):
            raise SpecError(f"{address} does not serve the same model as {addresses_of(spec)[0]}")


def _on_servers(specs: Sequence[Spec], model: MillModel, workers: int) -> Pool:
    identity = portable_identity(model)

    def start_worker(number: int) -> LocalWorker:
        return LocalWorker(open_replica(specs[number % len(specs)], model.batch_size, identity))

    return Pool(start_worker, workers, servers=True, meters_calls=model.meters_calls)


class RayBackend(Pool):
    """A pool on Ray; the cluster is joined before the first request, and left at the end."""

    def __init__(self, choice: ExecutorChoice, specs: Sequence[Spec], model: MillModel, workers: int) -> None:
        super().__init__(self._start_worker, workers, servers=model.is_server)
        self._cluster = RayCluster(choice.address, workers, choice.gpus_per_worker, model.accelerators)
        identity = portable_identity(model)
        chosen = model.replica_arguments() if isinstance(model, Replicated) else {}
        fixed = [Spec(spec.backend, {**spec.arguments, **chosen}) for spec in specs]
        shared = (imported_files(), identity, environment(model), current_consent())
        self._openings = [Opening(spec, model.batch_size, *shared) for spec in fixed]

    def load(self, requests: Sequence[Request]) -> None:
        self._cluster.join()

    def _start_worker(self, number: int) -> RayWorker:
        return self._cluster.start_worker(self._openings[number % len(self._openings)])

    def close(self) -> None:
        self._cluster.dismiss()
        super().close()
        self._cluster.leave()
