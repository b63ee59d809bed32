"""The samples of a plan, written before they have responses: a run can be read while it is in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mill.runs.folder import RunFolder
from mill.runs.samples import from_state, score_sample, write_samples
from mill.runs.task_plan import TaskPlan
from mill.support.clocks import WRITING, phase
from mill.support.processes import Background


@dataclass
class PlannedSamples:
    """Those of tasks whose samples no earlier session has written."""

    folder: RunFolder
    model_name: str
    plans: Sequence[TaskPlan]
    _writing: Background[None] | None = field(default=None, repr=False)
    _done: bool = False

    @property
    def fixed(self) -> bool:
        """Whether they do not change while they are answered. Dialogs grow."""
        return not any(state.rounds for plan in self.plans for state in plan.states)

    def write(self) -> None:
        self._done = True
        with phase(WRITING):
            for plan in self.plans:
                unanswered = (score_sample(plan.task, from_state(state)) for state in plan.states)
                write_samples(self.folder, self.model_name, plan.task.name, unanswered, sync=False)  # they are written again

    def start_writing(self) -> None:
        """In a thread, while the model computes."""
        self._writing = Background(self.write)

    def finish(self) -> None:
        """Wait until they are written, or write them if that has not begun."""
        if self._writing is not None:
            with phase(WRITING):
                self._writing.result()
        elif not self._done:
            self.write()
