"""Ranks: several processes of one command, as torchrun and accelerate start them. All make one plan, each computes its share
of the samples, and rank 0 ends with one record.

Ranks communicate through the launcher's key-value store only, and no wait is endless: a rank that waits for others ends when
one of them has failed, or sends no heartbeats any more. What it has computed until then is recorded.

Where a model's ranks compute every batch together, as those of a sharded one do, all get the same number of requests. A rank
that has fewer gets copies of a request as padding, whose responses are counted and dropped.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import hashlib
import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields, replace
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from mill.api.batching import Completed
from mill.api.errors import MillError, ModelError, RunError
from mill.api.model import MillModel, options_text
from mill.api.request import KINDS, Request
from mill.api.response import Response
from mill.execute.executor import Answers, Executor, LocalBackend, Store, Tally
from mill.execute.sample_state import SampleState, replay, run_samples
from mill.store.record import Record
from mill.store.schema import SessionState
from mill.store.session import SessionFile, States
from mill.support import processes
from mill.support.terminal import describe
from mill.support.validate import convert

BEAT_S = 2.0
SILENCE_S = 60.0
JOIN_S = 600.0  # until all ranks have joined; they hash models and read data first
_POLL_S = 0.05
LINES = 1000  # of a record, that a rank tells at once

T = TypeVar("T")


class RankLost(ModelError):
    """Another rank failed, or sends no heartbeats any more."""

    exit_code = 1


class Ranks:
    """The other ranks, seen from this one. `number` distinguishes several runs of one command."""

    def __init__(self, number: int = 0) -> None:
        self.rank, self.size = processes.rank(), processes.world_size()
        self._prefix = f"mill/{number}"
        self._store = _rendezvous()
        _send_heartbeats(self.rank)
        self._exchanges = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Participate during the block. An exception here ends the block on every rank, where it waits for this one."""
        try:
            yield
            self._set(f"left/{self.rank}", "1")
            if self.first:  # it leaves last, since others may read from the store that it hosts
                self._wait([f"left/{other}" for other in range(self.size)])
        except RankLost:
            raise
        except BaseException as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else describe(error)
            with contextlib.suppress(RankLost):
                self._set("failure", f"rank {self.rank}: {error if isinstance(error, MillError) else why}")
            raise

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
        """Until all of these are set. Rank 0 watches the heartbeats of the others, and they watch those of rank 0."""
        watched = range(1, self.size) if self.first else range(1)
        beats: dict[int, tuple[str, float]] = {}
        looked = -math.inf
        while not self._check(names):
            now = time.monotonic()
            if now - looked > BEAT_S:
                looked = now
                if self._check(["failure"]):
                    raise RankLost(self._get("failure"))
                for other in watched:
                    beat = self._call(lambda other=other: _last_heartbeat(self._store, other))  # type: ignore[misc]
                    last, since = beats.setdefault(other, (beat, now))
                    timeout = SILENCE_S if beat else JOIN_S
                    if beat != last:
                        beats[other] = (beat, now)
                    elif now - since > timeout:
                        failure = f"rank {other} sent no heartbeat for {timeout:.0f} s"
                        self._set("failure", failure)
                        raise RankLost(failure)
            time.sleep(_POLL_S)

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
            padding = self._padding(kind, left[:count])
            self.backend.load([])
            with self._progress(kind, count) as progress, self._counted(kind):
                stream = self.backend.stream(kind, [*left[:count], *padding], self.context)
                self._record_all(_without_padding(stream), responses, progress)
            self.tally.padded += len(padding)
            left = left[count:]

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


class RankShare:
    """This rank's share of the samples, once rank 0 has its turn. Rank 0 ends with all responses and the tally of all
    ranks."""

    def __init__(self, ranks: Ranks, executor: Executor, record: Record) -> None:
        self._ranks, self._executor, self._record = ranks, executor, record
        self._known: dict[str, SessionState] = {}
        self._over = False

    def start(self, session: SessionFile) -> None:
        if self._ranks.first:
            session.take_turn()
        self.sessions(session.states())
        self._ranks.exchange("it is our turn")
        if not self._ranks.first:
            session.take_turn()

    def answer(self, states: Sequence[SampleState]) -> None:
        """Answer this rank's part of the samples; rank 0 ends with the responses of all."""
        ranks, executor = self._ranks, self._executor
        parts = split_samples(states, ranks.size)
        run_samples(executor, parts[ranks.rank])
        stopped = next(filter(None, ranks.exchange(executor.stopped)), "")
        if stopped and executor.meter is not None:
            executor.meter.stop(stopped)
        _gather(ranks, self._record, parts, partial=bool(stopped))

    def end(self, session: SessionFile) -> None:
        self.sessions(session.states())
        tallies = self._ranks.exchange(asdict(self._executor.tally))
        if self._ranks.first:
            self._executor.tally = _total(tallies)
        self.sessions({})
        self._over = True

    def sessions(self, own: States) -> States:
        """Tell the other ranks of the sessions that are known here; returns those that they have told of, whose files this
        rank may not see."""
        if own and not self._over:
            self._ranks.publish("sessions", {name: asdict(replace(one, published={})) for name, one in own.items()})
        for given in [] if self._over else self._ranks.published("sessions"):
            self._known |= convert(given, dict[str, SessionState], "what another rank tells of its sessions", RunError)
        return self._known


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


def check_same_plan(ranks: Ranks, states: Sequence[SampleState]) -> None:
    """All ranks must have the same plan: a machine with other data would send other requests."""
    digest = hashlib.blake2b(digest_size=16)
    for state in states:
        digest.update(f"{state.task.name}\0{state.sample.id}\0".encode("utf-8", "surrogatepass"))
        for request in state.open_requests():
            digest.update(request.key.encode())
    digests = ranks.exchange(digest.hexdigest())
    other = next((rank for rank, text in enumerate(digests) if text != digests[0]), None)
    if other is not None:
        raise RunError(f"rank {other} has other samples or renders them otherwise than rank 0: its data or options differ")


def _gather(ranks: Ranks, record: Record, parts: Sequence[Sequence[SampleState]], *, partial: bool) -> None:
    """Rank 0 reads what the others recorded where it can see their files, and is told the rest. What ranks have is
    `partial` where they stopped at a budget."""
    missing: list[int] = []
    if ranks.first:
        record.refresh()
        # An error that is seen here may be an earlier session's, with a response since where that rank records.
        missing = [other for other in range(1, ranks.size) if not _replay_all(parts[other], record.response)]
    missing = ranks.exchange(missing)[0]
    count = 0
    if ranks.rank in missing:
        lines = _lines(parts[ranks.rank])
        for count, some in enumerate(iter(lambda: list(islice(lines, LINES)), []), 1):
            ranks.publish(f"lines/{count}", some)
    counts = ranks.exchange(count) if missing else []
    for other in missing if ranks.first else ():
        for number in range(1, counts[other] + 1):
            for line in ranks.published_by(other, f"lines/{number}"):
                record.adopt(line)
        if not _replay_all(parts[other], record.lookup) and not partial:
            raise RunError(f"rank {other} has not completed all of its samples")


def _replay_all(states: Sequence[SampleState], lookup: Callable[[str], Response | None]) -> bool:
    """Attach the recorded responses to all samples that have them; False where some are missing."""
    missing = [state for state in states if state.open_requests() and not replay(state, lookup)]
    return not missing


def _total(tallies: Iterable[dict[str, Any]]) -> Tally:
    """Counts add up; ranks work at the same time, so the longest time counts."""
    given = list(tallies)
    sums = {field.name: sum(tally[field.name] for tally in given) for field in fields(Tally)}
    longest = {name: max(tally[name] for tally in given) for name in ("answering_s", "scoring_s")}
    return Tally(**{**sums, **longest})


def _lines(states: Iterable[SampleState]) -> Iterator[dict[str, Any]]:
    """As `Record.adopt` takes them."""
    for state in states:
        for request in state.all_requests():
            for clone, response in zip(request.clones(), state.answers.get(request.key, ()), strict=False):
                head = {"key": clone.key, "kind": clone.kind, "deterministic": clone.deterministic}
                yield {**head, "response": response.to_dict()}
