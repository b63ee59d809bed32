"""A run by several ranks: one plan, a share of the samples for each rank, one record at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import islice
from typing import Any

from mill.api.errors import RunError
from mill.api.response import Response
from mill.execute.executor import Executor, Tally
from mill.execute.ranks import Ranks, split_samples
from mill.execute.sample_state import SampleState, replay, run_samples
from mill.store.record import Record
from mill.store.schema import SessionState
from mill.store.session import SessionFile, States
from mill.support.validate import convert

LINES = 1000  # of a record, that a rank tells at once


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
        for count, lines in enumerate(_batched(_lines(parts[ranks.rank])), 1):
            ranks.publish(f"lines/{count}", lines)
    counts = ranks.exchange(count) if missing else []
    for other in missing if ranks.first else ():
        for number in range(1, counts[other] + 1):
            for line in ranks.published_by(other, f"lines/{number}"):
                record.adopt(line)
        if not _replay_all(parts[other], record.lookup) and not partial:
            raise RunError(f"rank {other} has not completed all of its samples")


def _batched(lines: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(lines)
    while some := list(islice(rest, LINES)):
        yield some


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
