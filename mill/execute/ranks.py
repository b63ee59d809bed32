"""Ranks: several processes of one command, as torchrun and accelerate start them. Each computes its share.

Ranks communicate through the launcher's key-value store only. Every rank sends heartbeats; rank 0 watches the others and
they watch rank 0, so that a failure of one ends all and nothing waits forever.

Where a model's ranks compute every batch together, as those of a sharded one do, all get the same number of requests. A rank
that has fewer gets copies of a request as padding, whose responses are counted and dropped.
"""

from __future__ import annotations

import _thread
import ast
import atexit
import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from mill.api.batching import Completed
from mill.api.errors import MillError, ModelError
from mill.api.model import MillModel, options_text
from mill.api.request import KINDS, Request
from mill.api.response import Response
from mill.execute.executor import Answers, Executor, LocalBackend, Store
from mill.execute.sample_state import SampleState
from mill.support import processes
from mill.support.terminal import describe

BEAT_S = 2.0
SILENCE_S = 60.0
JOIN_S = 600.0  # until all ranks have joined; they hash models and read data first
_POLL_S = 0.05

T = TypeVar("T")


class RankLost(ModelError):
    """Another rank failed, or sends no heartbeats any more."""

    exit_code = 1


def split_samples(states: Iterable[SampleState], size: int) -> list[list[SampleState]]:
    """The samples of each rank: every size-th one of a task, by its index in the data. Samples with equal requests go to
    one rank, so that they are computed once."""
    parts: list[list[SampleState]] = [[] for _ in range(size)]
    owners: dict[str, int] = {}
    indices: Counter[str] = Counter()
    for state in states:
        owner = owners.setdefault(state.first_request.key, indices[state.task.name] % size)
        indices[state.task.name] += 1
        parts[owner].append(state)
    return parts


class Ranks:
    """The other ranks, seen from this one. `number` distinguishes several runs of one command."""

    def __init__(self, number: int = 0) -> None:
        self.rank, self.size = processes.rank(), processes.world_size()
        self._prefix = f"mill/{number}"
        self._store = _rendezvous()
        _send_heartbeats(self.rank)
        self._over = threading.Event()
        self._failure: str | None = None
        self._exchanges = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Participate during the block. An exception here ends the block on every rank."""
        self._thread.start()
        try:
            yield
            self._leave()
        except BaseException as error:
            if self._failure is not None:
                raise RankLost(self._failure) from error
            self._publish_failure(error)
            raise
        finally:
            self._over.set()
            self._thread.join()

    def _leave(self) -> None:
        """Rank 0 leaves last, since others may read from the store that it hosts."""
        self._set(f"left/{self.rank}", "1")
        if self.first:
            self._wait([f"left/{other}" for other in range(self.size)])

    def _publish_failure(self, error: BaseException) -> None:
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else describe(error)
        with contextlib.suppress(RankLost):
            self._set("failure", f"rank {self.rank}: {error if isinstance(error, MillError) else why}")

    def exchange(self, value: Any) -> list[Any]:
        """All-gather: the value of every rank, in order. All ranks must call it equally often."""
        self._exchanges += 1
        turn = f"exchange/{self._exchanges}"
        self._set(f"{turn}/{self.rank}", json.dumps(value))
        names = [f"{turn}/{other}" for other in range(self.size)]
        self._wait(names)
        return [json.loads(self._get(name)) for name in names]

    def publish(self, name: str, value: Any) -> None:
        """Give a value to the other ranks, without waiting for them; it replaces an earlier one."""
        self._set(f"{name}/{self.rank}", json.dumps(value))

    def published(self, name: str) -> list[Any]:
        """The values that other ranks have published last."""
        others = [other for other in range(self.size) if other != self.rank and self._check([f"{name}/{other}"])]
        return [self.published_by(other, name) for other in others]

    def published_by(self, other: int, name: str) -> Any:
        return json.loads(self._get(f"{name}/{other}"))

    def _wait(self, names: Sequence[str]) -> None:
        self._until(lambda: self._check(names))

    def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._failure is not None:
                raise RankLost(self._failure)
            time.sleep(_POLL_S)

    def _watch(self) -> None:
        """Watch the heartbeats of the others; a failure of theirs interrupts this process."""
        watched = range(1, self.size) if self.first else range(1)
        beats = {other: ("", time.monotonic()) for other in watched}
        joined = time.monotonic()
        while not self._over.wait(BEAT_S):
            try:
                if self._check(["failure"]):
                    return self._end(self._get("failure"))
                for other in watched:
                    beat = self._call(lambda other=other: _last_heartbeat(self._store, other))  # type: ignore[misc]
                    last, changed = beats[other]
                    timeout = SILENCE_S if beat else JOIN_S
                    if self._check([f"left/{other}"]):
                        continue
                    if beat != last:
                        beats[other] = (beat, time.monotonic())
                    elif time.monotonic() - max(changed, joined) > timeout:
                        return self._end(f"rank {other} sent no heartbeat for {timeout:.0f} s")
            except RankLost as error:
                return self._end(str(error))

    def _end(self, why: str) -> None:
        if not self._over.is_set():
            self._failure = why
            _thread.interrupt_main()

    def _set(self, name: str, text: str) -> None:
        self._call(lambda: self._store.set(f"{self._prefix}/{name}", text.encode("utf-8", "surrogatepass")))

    def _get(self, name: str) -> str:
        value: bytes = self._call(lambda: self._store.get(f"{self._prefix}/{name}"))
        return value.decode("utf-8", "surrogatepass")

    def _check(self, names: Sequence[str]) -> bool:
        return bool(self._call(lambda: self._store.check([f"{self._prefix}/{name}" for name in names])))

    def _call(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except RuntimeError as error:  # torch raises these for network errors
            raise RankLost(f"the store of the launcher is gone: {describe(error)}") from error


@cache
def _send_heartbeats(rank: int) -> None:
    """Heartbeats as long as the process lives: between two runs of a command rank 0 scores while others wait."""
    store, over = _rendezvous(), threading.Event()

    def beat() -> None:
        for number in itertools.count():
            try:
                store.set(f"mill/beat/{rank}", str(number))
            except RuntimeError:  # the store is gone; the watching threads report it
                return
            if over.wait(BEAT_S):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join(timeout=BEAT_S)

    atexit.register(end)


def _last_heartbeat(store: Any, rank: int) -> str:
    name = f"mill/beat/{rank}"
    return store.get(name).decode() if store.check([name]) else ""


@cache
def _rendezvous() -> Any:
    """One store for the whole process: rank 0 may host it, and the next run of the command uses it too."""
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_S)))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"the ranks cannot reach each other: {describe(error)}") from error
    return store


class LockStepExecutor(Executor):
    """`padding` has a request of every kind that any rank may get."""

    def __init__(
        self, model: MillModel, store: Store, ranks: Ranks, padding: Mapping[str, Request], *, quiet: bool = False
    ) -> None:
        super().__init__(LocalBackend(model), store, quiet=quiet)
        self.model, self.ranks, self.padding = model, ranks, padding

    def run(self, requests: Iterable[Request], *, round_number: int = 1) -> Answers:
        """Every rank runs every kind in the same order, even where it has no such requests."""
        self.round_number = round_number
        pending, answers = list(requests), Answers()
        for kind in (kind for kind in KINDS if kind in self.padding):
            answers |= self._run_kind(kind, [request for request in pending if request.kind == kind])
        return answers

    def any_active(self, active: bool) -> bool:
        return any(self.ranks.exchange(active))

    def _compute(self, kind: str, requests: list[Request], responses: dict[str, Response]) -> None:
        left = list(requests)
        while (count := self._fitting_together(left)) is not None:
            self._compute_window(kind, left[:count], responses)
            left = left[count:]

    def _compute_window(self, kind: str, requests: list[Request], responses: dict[str, Response]) -> None:
        padding = self._padding(kind, requests)
        self.backend.load([])
        with self._progress(kind, len(requests)) as progress, self._counted(kind):
            stream = self.backend.stream(kind, [*requests, *padding], self.context)
            self._record_all(_without_padding(stream), responses, progress)
        self.tally.padded += len(padding)

    def _fitting_together(self, left: list[Request]) -> int | None:
        """How many requests this rank computes next, while any rank has some; None where all are done, and where the budget
        of one is used up: all ranks stop with it."""
        count = self._fitting(left)
        ranks = self.ranks.exchange([len(left), count, self.stopped])
        stopped = next((reason for _, _, reason in ranks if reason), "")
        if stopped and self.meter is not None:
            self.meter.stop(stopped)
        return None if stopped or not any(open_requests for open_requests, _, _ in ranks) else count

    def _padding(self, kind: str, requests: Iterable[Request]) -> list[Request]:
        """For each set of options, which are separate batches, as many requests as the rank with the largest has more."""
        mine = Counter(map(options_text, requests))
        counts = self.ranks.exchange(mine)
        largest = {text: max(count.get(text, 0) for count in counts) for count in counts for text in count}
        missing = [text for text in sorted(largest) for _ in range(largest[text] - mine[text])]
        return [
            replace(self.padding[kind], options=dict(ast.literal_eval(text)), draw=-number)
            for number, text in enumerate(missing, 1)
        ]


def _without_padding(stream: Generator[Completed, None, None]) -> Generator[Completed, None, None]:
    """Padding has a negative draw, which no other request has."""
    with closing(stream):
        for request, response in stream:
            if request.draw >= 0:
                yield request, response
