"""The same questions several times over, each time under a condition of its own, such as how many are in flight at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mill.checks.answers import Answer
from mill.checks.subjects import CheckConfig, Subject, answer
from mill.runs.evaluate import Run


@dataclass(frozen=True)
class Condition:
    """A pass that is wanted: `width` requests in flight at once, None for as many as the backend likes."""

    name: str
    width: int | None


@dataclass(frozen=True)
class Pass:
    """A pass that was made. `sessions` tell how long it took."""

    name: str
    width: int | None
    answers: list[Answer]
    run: str
    sessions: Sequence[Mapping[str, Any]]

    def total(self, name: str) -> float:
        return sum(float(session.get(name, 0)) for session in self.sessions)


def make_passes(
    subject: Subject, asked: CheckConfig, wanted: Sequence[Condition], *, resume: bool, keep_model: bool = False
) -> tuple[list[Pass], list[str]]:
    """A run for each condition, one after another on one loaded model, and what a reader must know about them.

    What was measured before is not measured again by reading it: a check that ended starts anew. One that was interrupted
    goes on where it stopped, if `resume` says that its passes need not be of one time. `keep_model` leaves the model loaded
    for passes that follow.
    """
    wanted, warnings = _widths(subject, wanted)
    resumed = resume and not asked.fresh and _unfinished([_plan(subject, asked, one) for one in wanted])
    if resumed:
        warnings.append("goes on from an interrupted check: some passes are of an earlier time")
    passes = []
    for number, condition in enumerate(wanted, 1):
        run = _plan(subject, asked, condition, fresh=not resumed)
        subject.model.set_concurrency(condition.width)
        done = answer(subject, run, asked, keep_model=keep_model or number < len(wanted))
        sessions = run.folder.manifest()["sessions"]
        passes.append(Pass(condition.name, condition.width, done.answers, str(run.folder.path), sessions))
    return passes, warnings + subject.model.warnings()


def _widths(subject: Subject, wanted: Sequence[Condition]) -> tuple[list[Condition], list[str]]:
    """Without widths where the backend does not let them be chosen."""
    if subject.model.set_concurrency(wanted[0].width):
        return list(wanted), []
    note = f"{subject.spec.backend} does not let one choose how many requests are in flight at once"
    return [Condition(one.name, None) for one in wanted], [note]


def _plan(subject: Subject, asked: CheckConfig, condition: Condition, *, fresh: bool = False) -> Run:
    return subject.plan_check_run(asked, f"{condition.name} x{condition.width or 'auto'}", fresh=fresh)


def _unfinished(runs: Sequence[Run]) -> bool:
    """Whether a check was begun and did not come to its end: some answers of these runs are recorded, and not all."""
    counts = [
        sum(run.record.lookup(clone.key) is not None for clone in request.clones())
        for run in runs
        for job in run.jobs
        for request in job.open_requests()
    ]
    return any(counts) and not all(counts)
