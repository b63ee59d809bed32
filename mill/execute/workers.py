"""Where the requests of a run are computed: the model in this process, a worker for each server, or workers on Ray."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mill.api.budget import CallMeter
from mill.api.errors import MillError, MissingPackage, ModelError, ServerGone, SpecError
from mill.api.identity import identity_of
from mill.api.model import HasPaths, MillModel, StreamContext, run_requests
from mill.api.request import Request
from mill.execute.executor import ExecutorBackend, LocalBackend
from mill.execute.pool import Keyed, Pool, Report, WorkerLost
from mill.models.spec.open import open_model
from mill.models.spec.parse import Spec, addresses_of, at_address
from mill.support.processes import world_size

RETURN_S = 30.0  # a new worker waits so long for its server to come back
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
            raise SpecError("--address needs --executor ray")
        if self.executor == LOCAL and self.gpus_per_worker is not None:
            raise SpecError("--gpus_per_worker needs --executor ray")

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
        from mill.execute.ray_cluster import RayBackend

        return RayBackend(choice, specs, model, workers)
    if workers == 1:
        return LocalBackend(model)
    identity = portable_identity(model)

    def start_worker(number: int) -> LocalWorker:
        return LocalWorker(open_replica(specs[number % len(specs)], model.batch_size, identity))

    return Pool(start_worker, workers, servers=True, meters_calls=model.meters_calls)


def check_servers(spec: Spec, model: MillModel, wait: float) -> None:
    """Every address of a model must serve the same one."""
    for address in addresses_of(spec)[1:]:
        other = open_model(at_address(spec, address))
        other.ready(wait)
        if portable_identity(other) != portable_identity(model):
            raise SpecError(f"{address} does not serve the same model as {addresses_of(spec)[0]}")


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
    """A worker that holds its model in this process: a thread for a model on a server, or an actor of Ray."""

    def __init__(self, model: MillModel) -> None:
        self.model = model
        self._context = StreamContext(outage_patience_s=0.0)  # while a server is gone, other workers continue

    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None) -> Iterator[list[Keyed]]:
        """A server that cannot be reached is a lost worker: others may reach theirs."""
        self._context.meter = meter
        try:
            for request, response in run_requests(self.model, kind, requests, self._context):
                yield [(request.key, response)]
        except ServerGone as gone:
            raise WorkerLost(str(gone)) from gone

    def report(self) -> Report:
        return self.model.warnings(), self.model.execution_paths() if isinstance(self.model, HasPaths) else {}

    def end(self) -> None:
        self.model.clean()
