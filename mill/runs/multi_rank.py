"""A run by several ranks: one plan, a share of the samples for each rank, one record at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from mill.api.errors import RunError
from mill.api.response import Response
from mill.execute.executor import Executor, Tally
from mill.execute.ranks import Ranks, split_samples
from mill.execute.sample_state import SampleState, replay, run_samples
from mill.runs.record import Record


def run_share(ranks: Ranks, executor: Executor, record: Record, states: Sequence[SampleState]) -> None:
    """Run this rank's share, once rank 0 holds the lock. Rank 0 ends with all responses and the tally of all ranks."""
    ranks.exchange("it is our turn")
    record.refresh()
    parts = split_samples(states, ranks.size)
    run_samples(executor, parts[ranks.rank])
    tallies = ranks.exchange(asdict(executor.tally))
    if ranks.first:
        executor.tally = _total(tallies)
    _gather(ranks, record, parts)


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


def _gather(ranks: Ranks, record: Record, parts: Sequence[Sequence[SampleState]]) -> None:
    """Rank 0 reads what the others recorded where it can see their files, and is sent the rest."""
    missing: list[int] = []
    if ranks.first:
        record.refresh()
        # An error that is seen here may be an earlier session's, with a response since where that rank records.
        missing = [other for other, states in enumerate(parts) if not _replay_all(states, record.response)]
    missing = ranks.exchange(missing)[0]
    if ranks.first:
        for other in missing:
            for line in ranks.receive(other):
                record.adopt(json.loads(line))
            if not _replay_all(parts[other], record.lookup):
                raise RunError(f"rank {other} has not completed all of its samples")
    elif ranks.rank in missing:
        ranks.send(_lines(parts[ranks.rank]))


def _replay_all(states: Sequence[SampleState], lookup: Callable[[str], Response | None]) -> bool:
    """Attach the recorded responses to samples; False where some are missing."""
    return all(not state.open_requests() or replay(state, lookup) for state in states)


def _total(tallies: Iterable[dict[str, Any]]) -> Tally:
    """Counts add up; ranks work at the same time, so the longest time counts."""
    given = list(tallies)
    sums = {field.name: sum(tally[field.name] for tally in given) for field in fields(Tally)}
    return Tally(**{**sums, "answering_s": max(tally["answering_s"] for tally in given)})


def _lines(states: Iterable[SampleState]) -> Iterable[str]:
    for state in states:
        for request in state.all_requests():
            for clone, response in zip(request.clones(), request.resps, strict=True):
                head = {"key": clone.key, "kind": clone.kind, "deterministic": clone.deterministic}
                yield json.dumps({**head, "response": response.to_dict()})
