"""Where the requests of a run are computed: the model in this process, or a worker for each of several servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mill.api.errors import MillError, ModelError, ServerGone, SpecError
from mill.api.identity import identity_of
from mill.api.model import MillModel
from mill.execute.executor import ExecutorBackend, LocalBackend
from mill.execute.pool import Pool
from mill.models.spec.open import open_model
from mill.models.spec.parse import Spec, addresses_of, at_address
from mill.support.processes import world_size

RETURN_S = 30.0  # a new worker waits so long for its server to come back


def check_workers(workers: int | None, spec: Spec) -> None:
    """Refuse what cannot work, before anything starts."""
    servers = len(addresses_of(spec))
    if world_size() > 1 and servers > 1:
        raise SpecError(
            "a model with several addresses distributes the work itself: start mill without torchrun or accelerate"
        )
    if workers not in (None, 1) and servers < 2:
        raise SpecError(
            f"--workers {workers} needs a server with several addresses; torchrun starts processes for other models"
        )
    if workers is not None and workers < servers:
        raise SpecError(f"--workers {workers} would leave some of the {servers} addresses without one")


def make_backend(workers: int | None, spec: Spec, model: MillModel) -> ExecutorBackend:
    """`model` was opened to plan the run; its weights are loaded only where it runs in this process."""
    specs = [at_address(spec, address) for address in addresses_of(spec)] or [spec]
    if len(specs) == 1:
        return LocalBackend(model)

    def open_worker(number: int) -> MillModel:
        return open_replica(specs[number % len(specs)], model)

    return Pool(open_worker, workers or len(specs), meters_calls=model.meters_calls)


def check_servers(spec: Spec, model: MillModel, wait: float) -> None:
    """Every address of a model must serve the same one."""
    for address in addresses_of(spec)[1:]:
        other = open_model(at_address(spec, address))
        other.ready(wait)
        if portable_identity(other) != portable_identity(model):
            raise SpecError(f"{address} does not serve the same model as {addresses_of(spec)[0]}")
        if changed := model.engine.differs(other.engine):
            raise SpecError(f"{address} is another build than {addresses_of(spec)[0]}: {changed}")
        model.engines |= other.engines


def open_replica(spec: Spec, planned: MillModel) -> MillModel:
    """A worker's model, which must be the one that was planned with, and of the same build."""
    model = open_model(spec, batch_size=planned.batch_size)
    try:
        model.ready(RETURN_S)
    except MillError as error:  # the server was up when the run was planned
        raise ServerGone(str(error)) from error
    where = " ".join(addresses_of(spec))
    if portable_identity(model) != portable_identity(planned):
        raise ModelError(f"{where} serves another model than the one that the run was planned with")
    if changed := planned.engine.differs(model.engine):
        raise ModelError(f"{where} is another build than the one that the run was planned with: {changed}")
    return model


def portable_identity(model: MillModel) -> dict[str, Any]:
    """A model's identity without the addresses of its servers."""

    def without_addresses(values: Mapping[str, Any]) -> dict[str, Any]:
        portable = {name: value for name, value in values.items() if name not in ("base_url", "api_base")}
        return {name: without_addresses(value) if isinstance(value, Mapping) else value for name, value in portable.items()}

    return without_addresses(identity_of(model))
