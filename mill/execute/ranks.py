"""Several processes of one command, as torchrun and accelerate start them: each answers its share, rank 0 has the record.

Nothing here waits for ever. Ranks talk through the launcher's key-value store alone, every rank gives a sign of life every
few seconds, and what ends one of them ends all: rank 0 watches the others and they watch rank 0.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from mill.api import ranks
from mill.api.batching import describe
from mill.api.errors import MillError, ModelError
from mill.execute.sample_state import Job

BEAT_S = 2.0
SILENCE_S = 60.0
JOIN_S = 600.0  # until all ranks have come, with models to hash and data to read before
_POLL_S = 0.05

T = TypeVar("T")


class RankLost(ModelError):
    """Another rank failed, or gives no sign of life any more."""

    exit_code = 1


def shares(jobs: Iterable[Job], size: int) -> list[list[Job]]:
    """For each rank its part of all jobs: every size-th sample of a task, by its place in the data. Samples that ask the
    same thing belong to one rank, so that it is computed once."""
    found: list[list[Job]] = [[] for _ in range(size)]
    owners: dict[str, int] = {}
    places: Counter[str] = Counter()
    for job in jobs:
        owner = owners.setdefault(job.first_request.key, places[job.task.name] % size)
        places[job.task.name] += 1
        found[owner].append(job)
    return found


class Ranks:
    """The other ranks, seen from this one. `number` tells several runs of one command apart."""

    def __init__(self, number: int = 0) -> None:
        self.rank, self.size = ranks.rank(), ranks.world_size()
        self._prefix = f"mill/{number}"
        self._store = _rendezvous()
        _give_signs(self.rank)
        self._over = threading.Event()
        self._failure: str | None = None
        self._exchanges = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def joined(self) -> Iterator[None]:
        """One of the ranks while the block lasts. What ends the block here ends it everywhere."""
        self._thread.start()
        try:
            yield
            self._leave()
        except BaseException as error:
            if self._failure is not None:
                raise RankLost(self._failure) from error
            self._tell_failure(error)
            raise
        finally:
            self._over.set()
            self._thread.join()

    def _leave(self) -> None:
        """Rank 0 leaves last, since others may read from the store that it keeps."""
        self._set(f"left/{self.rank}", "1")
        if self.first:
            self._wait([f"left/{other}" for other in range(self.size)])

    def _tell_failure(self, error: BaseException) -> None:
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else describe(error)
        with contextlib.suppress(RankLost):
            self._set("failure", f"rank {self.rank}: {error if isinstance(error, MillError) else why}")

    def exchange(self, value: Any) -> list[Any]:
        """What every rank gives here, in their order. All ranks must come this way equally often."""
        self._exchanges += 1
        turn = f"exchange/{self._exchanges}"
        self._set(f"{turn}/{self.rank}", json.dumps(value))
        names = [f"{turn}/{other}" for other in range(self.size)]
        self._wait(names)
        return [json.loads(self._get(name)) for name in names]

    def send(self, lines: Iterable[str]) -> None:
        """To rank 0, a megabyte at a time: the next when the last one was taken."""
        for number, text in enumerate(_chunks(lines)):
            name = f"sent/{self.rank}/{number}"
            self._set(name, text)
            self._until(lambda name=name: not self._check([name]))  # type: ignore[misc]
        self._set(f"sent/{self.rank}/end", "1")

    def receive(self, other: int) -> Iterable[str]:
        number, end = 0, f"sent/{other}/end"
        while True:
            name = f"sent/{other}/{number}"
            self._until(lambda name=name: self._check([name]) or self._check([end]))  # type: ignore[misc]
            if not self._check([name]):
                return
            text = self._get(name)
            self._call(lambda name=name: self._store.delete_key(f"{self._prefix}/{name}"))  # type: ignore[misc]
            yield from text.split("\n")
            number += 1

    def _wait(self, names: Sequence[str]) -> None:
        self._until(lambda: self._check(names))

    def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._failure is not None:
                raise RankLost(self._failure)
            time.sleep(_POLL_S)

    def _watch(self) -> None:
        """Look for signs of life of the others; an end of theirs interrupts this process."""
        watched = range(1, self.size) if self.first else range(1)
        signs = {other: ("", time.monotonic()) for other in watched}
        joined = time.monotonic()
        while not self._over.wait(BEAT_S):
            try:
                if self._check(["failure"]):
                    return self._end(self._get("failure"))
                for other in watched:
                    sign = self._call(lambda other=other: _last_sign(self._store, other))  # type: ignore[misc]
                    last, when = signs[other]
                    patience = SILENCE_S if sign else JOIN_S
                    if self._check([f"left/{other}"]):
                        continue
                    if sign != last:
                        signs[other] = (sign, time.monotonic())
                    elif time.monotonic() - max(when, joined) > patience:
                        return self._end(f"rank {other} gave no sign of life for {patience:.0f} s")
            except RankLost as error:
                return self._end(str(error))

    def _end(self, why: str) -> None:
        if not self._over.is_set():
            self._failure = why
            _thread.interrupt_main()

    def _set(self, name: str, text: str) -> None:
        self._call(lambda: self._store.set(f"{self._prefix}/{name}", text.encode("utf-8", "surrogatepass")))

    def _get(self, name: str) -> str:
        found: bytes = self._call(lambda: self._store.get(f"{self._prefix}/{name}"))
        return found.decode("utf-8", "surrogatepass")

    def _check(self, names: Sequence[str]) -> bool:
        return bool(self._call(lambda: self._store.check([f"{self._prefix}/{name}" for name in names])))

    def _call(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except RuntimeError as error:  # torch's errors of the network are of this kind
            raise RankLost(f"the store of the launcher is gone: {describe(error)}") from error


@cache
def _give_signs(rank: int) -> None:
    """Signs of life as long as the process lives: between two runs of a command rank 0 scores, and others wait."""
    store, over = _rendezvous(), threading.Event()

    def beat() -> None:
        for number in itertools.count():
            try:
                store.set(f"mill/beat/{rank}", str(number))
            except RuntimeError:  # the store is gone, as whoever asks it will see
                return
            if over.wait(BEAT_S):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join(timeout=BEAT_S)

    atexit.register(end)


def _last_sign(store: Any, rank: int) -> str:
    name = f"mill/beat/{rank}"
    return store.get(name).decode() if store.check([name]) else ""


@cache
def _rendezvous() -> Any:
    """One for the whole process: rank 0 may hold the store itself, and the next run of the command needs it too."""
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_S)))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"the ranks cannot reach each other: {describe(error)}") from error
    return store


def _chunks(lines: Iterable[str]) -> Iterable[str]:
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size > 1 << 20:
            yield "\n".join(held)
            held, size = [], 0
    if held:
        yield "\n".join(held)
