"""Workers as Ray actors: on the cores and accelerators of this machine, or of a cluster that is running."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mill.api.batching import describe
from mill.api.errors import ModelBroken, ModelError
from mill.api.request import Request
from mill.api.warnings import warn
from mill.compat.ray import silence_node_reports
from mill.execute.ray_actor import Opening, Update, Worker
from mill.execute.workers import Tell, WorkerLost

PATIENCE_S = 10.0  # for a cluster that is there to answer
POLL_S = 5.0  # between two looks at a cluster from which a worker is expected
ROOM_S = 60.0  # after which a worker that is not ready yet is told of


class RayWorker:
    """One actor, as the pool knows workers."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def open(self, opening: Opening, check: Callable[[], None]) -> None:
        """`check` raises where there is nobody any more to wait for."""
        import ray

        with _lost_when_dead():
            opened = self.actor.open.remote(opening)
            told = time.monotonic()
            while not ray.wait([opened], timeout=POLL_S)[0]:
                check()
                if time.monotonic() - told > ROOM_S:
                    told = time.monotonic()
                    warn("a worker waits for room on the Ray cluster, or loads its model")
            _pass_on(ray.get(opened))

    def answer(self, kind: str, requests: Sequence[Request], tell: Tell) -> None:
        import ray

        with _lost_when_dead():
            for reference in self.actor.answer.options(num_returns="streaming").remote(kind, list(requests)):
                news: Update = ray.get(reference)
                tell(news.answers)
                _pass_on(news)

    def check_canary(self, canary: Request) -> None:
        import ray

        with _lost_when_dead():
            _pass_on(ray.get(self.actor.check_canary.remote(canary)))

    def warnings(self) -> list[str]:
        import ray

        with _lost_when_dead():
            found: list[str] = ray.get(self.actor.warnings.remote(), timeout=PATIENCE_S)
            return found

    def execution_paths(self) -> dict[str, str]:
        import ray

        with _lost_when_dead():
            paths: dict[str, str] = ray.get(self.actor.execution_paths.remote(), timeout=PATIENCE_S)
            return paths

    def end(self) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self.actor)


def _pass_on(news: Update) -> None:
    for text in news.warnings:
        warn(text)
    if news.lost is not None:
        raise WorkerLost(news.lost)
    if news.failure is not None:
        raise (ModelBroken if news.broken else ModelError)(news.failure)


class RayCluster:
    """A Ray cluster for the time of a run: the one at `address`, else one of this machine's own."""

    def __init__(self, address: str | None, workers: int, gpus: float | None, accelerators: int) -> None:
        """`gpus` is what a person wants each worker to have, `accelerators` what the model takes where there are any."""
        self.address, self.workers, self.gpus, self.accelerators = address, workers, gpus, accelerators
        self._actor: Any = None
        self._joined = False
        self._head = self._node = ""
        self._workers: list[RayWorker] = []

    def start_worker(self, opening: Opening) -> RayWorker:
        self._check()
        hand = RayWorker(self._actor.remote())
        self._workers.append(hand)
        try:
            hand.open(opening, self._check)
        except BaseException:
            hand.end()
            raise
        return hand

    def _check(self) -> None:
        """Refuse to wait for a cluster whose head is gone, or that this process is no part of any more."""
        import ray

        _check_listening(self._head, patience=PATIENCE_S)
        if not any(node["Alive"] and node["NodeID"] == self._node for node in ray.nodes()):  # type: ignore[no-untyped-call]
            raise ModelError("the node of the Ray cluster that this command is on died")

    def join(self) -> None:
        if self._joined:
            return
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if self.address is not None:
            _check_listening(self.address)
        elif "ray" not in sys.modules:
            # Ray listens on every network there is: only who knows this run's token gets in. It looks once, when imported.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        import ray

        silence_node_reports(ray)
        if ray.is_initialized():
            raise ModelError("this process is in a Ray cluster already: mill joins or starts its own")
        self._joined = True  # also where what follows fails half-way
        ended_by = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=self.address or "local",  # never one that somebody else started here
                include_dashboard=None if self.address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            where = f"the Ray cluster at {self.address}" if self.address else "Ray on this machine"
            token = "; it wants a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" if _wants_token(error) else ""
            raise ModelError(f"{where} cannot be reached: {describe(error)}{token}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ended_by)  # Ray's own way to end tells nobody
        context = ray.get_runtime_context()
        self._head, self._node = context.gcs_address, context.get_node_id()
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        self._actor = ray.remote(Worker).options(**self._resources(machines), max_restarts=0)

    def _resources(self, machines: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """A worker's share: the accelerators its model takes, and as many cores as each of them can have. No worker is ever
        spread over two machines."""
        found = sum(machine.get("GPU", 0.0) for machine in machines)
        gpus = self.gpus if self.gpus is not None else (float(self.accelerators) if found else 0.0)

        def places(cores: float) -> int:
            return sum(min(_times(one.get("CPU", 0.0), cores), _times(one.get("GPU", 0.0), gpus)) for one in machines)

        if places(0.0) < self.workers:
            raise ModelError(
                f"{self.workers} workers with {gpus:g} GPUs each do not fit on the machines of the cluster, which have "
                f"{found:g}: take fewer --workers, or a smaller --gpus_per_worker"
            )
        most = int(max(machine.get("CPU", 0.0) for machine in machines))
        shares = [*map(float, range(most, 0, -1)), *(0.99 / parts for parts in range(1, self.workers + 1))]
        return {"num_cpus": next((cores for cores in shares if places(cores) >= self.workers), 0.0), "num_gpus": gpus}

    def dismiss(self) -> None:
        """End all workers, also those that are still on their way: nobody waits for them any more."""
        for hand in self._workers:
            with contextlib.suppress(Exception):  # it is gone already
                hand.end()
        self._workers.clear()

    def leave(self) -> None:
        if self._joined:
            import ray

            ray.shutdown()
            self._joined = False


def _check_listening(address: str, patience: float = 0.0) -> None:
    """Refuse an address where nobody is; Ray itself takes minutes to say so, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # `auto`
        return
    deadline = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
        except OSError as error:
            if time.monotonic() >= deadline:
                why = error.strerror or error
                raise ModelError(f"nothing answers at the Ray cluster's address {address}: {why}") from error
        time.sleep(1.0)


def _times(there: float, part: float) -> int:
    """How often a part fits into what is there; nothing fits any number of times."""
    return int(there / part + 1e-9) if part else 1 << 30


@contextlib.contextmanager
def _lost_when_dead() -> Iterator[None]:
    """Ray's word for a worker that is gone as the pool's."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:  # a mistake of the worker's own code: another worker would make it too
        raise ModelError(f"a worker failed: {describe(error.cause)}") from error
    except RayError as error:
        raise WorkerLost(_reason(error)) from error


def _wants_token(error: BaseException | None) -> bool:
    while error is not None:
        if "AuthToken" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    """Ray's own explanation is a page long; what a person needs is the cause of death."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":
        return "out of memory"
    for sign, words in _CAUSES.items():
        if sign in text:
            return words
    return f"{type(error).__name__}: {text[:120]}"


_CAUSES = {
    "SYSTEM_ERROR": "killed or crashed",
    "unexpectedly": "killed or crashed",
    "unavailable": "not to be reached any more",
    "node": "its machine is gone",
}
