"""The same questions several times over, each time under a condition of its own, such as how many are under way at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mill.checks.answers import Answer
from mill.checks.subjects import Asked, Subject, answer


@dataclass(frozen=True)
class Pass:
    """`width` requests were under way at once; None is as many as the backend likes. `sessions` tell how long it took."""

    name: str
    width: int | None
    answers: list[Answer]
    run: str
    sessions: Sequence[Mapping[str, Any]]

    def total(self, name: str) -> float:
        return sum(float(session.get(name, 0)) for session in self.sessions)


def make_passes(subject: Subject, asked: Asked, wanted: Sequence[tuple[str, int | None]]) -> tuple[list[Pass], list[str]]:
    """A run for each (name, width), one after another on one loaded model, and what a reader must know about them."""
    passes, notes = [], []
    for place, (name, width) in enumerate(wanted):
        if not subject.model.set_width(width):
            width = None
            notes = [f"{subject.spec.backend} does not let one choose how many requests are under way at once"]
        run = subject.plan_apart(asked, f"{name} x{width or 'auto'}")
        done = answer(subject, run, asked, keep_model=place + 1 < len(wanted))
        sessions = run.folder.manifest()["sessions"]
        passes.append(Pass(name, width, done.answers, str(run.folder.path), sessions))
    return passes, notes + subject.model.remarks()
