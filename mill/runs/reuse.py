"""`--reuse MODEL_OR_RUN`: where the scores of the other model come from: a recorded run, or a run before the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mill.api.budget import BudgetReached
from mill.runs.control import ControlRun, executed_control, recorded_control
from mill.runs.evaluate import Run
from mill.runs.folder import MANIFEST, RunFolder
from mill.runs.outcome import Outcome


@dataclass(frozen=True)
class Reuse:
    """The other model: recorded already, or a run of all samples that is planned."""

    recorded: ControlRun | None = None
    planned: Run | None = None

    def give(self, runs: Sequence[Run], execute: Callable[[Run], Outcome | None]) -> None:
        """Give the scores to the runs that reuse them; `execute` makes the planned run first."""
        control = self.recorded
        if self.planned is not None:
            outcome = execute(self.planned)
            if outcome is None:  # another rank than the first, which decides and scores alone
                return
            if outcome.stopped:
                raise BudgetReached(
                    f"--reuse: the run of {outcome.model} {outcome.stopped}; it must have all samples, and the other models "
                    "were not run; the same command with a larger budget continues"
                )
            control = executed_control(outcome.model, outcome.scored, self.planned.plans)
        assert control is not None
        for run in runs:
            control.refuse_unusable(run.plans)
            run.control = control


def open_reuse(given: str, runs: Sequence[Run], prepare: Callable[[str], Run]) -> Reuse:
    """`prepare` plans a run of a model. A recorded run that lacks samples is refused here."""
    folder = Path(given)
    if not (folder / MANIFEST).is_file():
        return Reuse(planned=prepare(given))
    control = recorded_control(RunFolder(folder))
    for run in runs:
        control.refuse_unusable(run.plans)
    return Reuse(recorded=control)
