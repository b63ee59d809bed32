"""Passes: the same requests several times, each time under another condition, such as the number of requests in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mill.api.model import Concurrent
from mill.checks.answers import Answer
from mill.checks.subjects import CheckConfig, Subject, execute
from mill.runs.evaluate import Plan


@dataclass(frozen=True)
class Condition:
    """A pass to make, with `concurrency` requests in flight; None leaves the number to the backend."""

    name: str
    concurrency: int | None


@dataclass(frozen=True)
class Pass:
    """A pass that was made. `sessions` are those of the run's manifest, with its times."""

    name: str
    concurrency: int | None
    answers: list[Answer]
    run: str
    sessions: Sequence[Mapping[str, Any]]

    def total(self, name: str) -> float:
        return sum(float(session.get(name, 0)) for session in self.sessions)


def make_passes(
    subject: Subject, config: CheckConfig, conditions: Sequence[Condition], *, resume: bool, keep_model: bool = False
) -> tuple[list[Pass], list[str]]:
    """Execute a run for each condition, one after another on one loaded model; returns the passes and their warnings.

    A check that finished measures again. One that was interrupted resumes, if `resume` allows passes of different times.
    `keep_model` leaves the model loaded for later passes.
    """
    conditions, warnings = _supported(subject, conditions)
    resumed = resume and not config.fresh and _unfinished([_plan(subject, config, condition) for condition in conditions])
    if resumed:
        warnings.append("resumes an interrupted check: some passes were made earlier")
    passes = []
    for number, condition in enumerate(conditions, 1):
        plan = _plan(subject, config, condition, fresh=not resumed)
        if isinstance(subject.model, Concurrent):
            subject.model.set_concurrency(condition.concurrency)
        completed = execute(subject, plan, config, keep_model=keep_model or number < len(conditions))
        sessions = plan.folder.manifest()["sessions"]
        passes.append(Pass(condition.name, condition.concurrency, completed.answers, str(plan.folder.path), sessions))
    return passes, warnings + subject.model.warnings()


def _supported(subject: Subject, conditions: Sequence[Condition]) -> tuple[list[Condition], list[str]]:
    """Without a concurrency where the backend does not let it be set."""
    if isinstance(subject.model, Concurrent):
        return list(conditions), []
    warning = f"{subject.spec.backend} does not support a fixed number of requests in flight"
    return [Condition(condition.name, None) for condition in conditions], [warning]


def _plan(subject: Subject, config: CheckConfig, condition: Condition, *, fresh: bool = False) -> Plan:
    return subject.plan_check_run(config, f"{condition.name} x{condition.concurrency or 'auto'}", fresh=fresh)


def _unfinished(plans: Sequence[Plan]) -> bool:
    """Whether a check started and did not finish: some responses of these runs are recorded, but not all."""
    recorded = [
        sum(plan.record.lookup(clone.key) is not None for clone in request.clones())
        for plan in plans
        for state in plan.states
        for request in state.open_requests()
    ]
    return any(recorded) and not all(recorded)
