"""What samples have before they have responses: their files, so that a run can be read while it is in progress, and their
prompts as the model gets them. Both are made in a thread while the model computes, where that is possible."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence

from mill.api.model import MillModel, RendersPrompts
from mill.api.request import Request
from mill.execute.sample_state import SampleState
from mill.plan.task_plan import TaskPlan
from mill.store.folder import RunFolder
from mill.store.samples import RunSample, prompt_requests, score_sample, with_answers, without_answers, write_samples
from mill.support.clocks import WRITING, phase
from mill.support.processes import Background


class SamplesAhead:
    """Those of one run."""

    def __init__(self, folder: RunFolder, model: MillModel) -> None:
        self._folder, self._model = folder, model
        self._prompts: dict[tuple[str, str | int], list[str]] = {}
        self._asked: dict[tuple[str, str | int], RunSample] = {}
        self._beside: Background[None] | None = None
        self.unwritten: Sequence[TaskPlan] = ()
        """The tasks whose samples no earlier session has written."""

    @property
    def fixed(self) -> bool:
        """Whether the samples do not change while they are answered. Dialogs grow."""
        return not any(state.rounds for plan in self.unwritten for state in plan.states)

    def write(self) -> None:
        plans, self.unwritten = self.unwritten, ()
        with phase(WRITING):
            for plan in plans:
                unanswered = (score_sample(plan.task, self._without_answers(state)) for state in plan.states)
                # Without fsync: they are written again.
                write_samples(self._folder, self._model.model_name, plan.task.name, unanswered, sync=False)

    def start(self, states: Sequence[SampleState]) -> None:
        """In a thread, while the model computes."""
        self.finish_files()

        def prepare() -> None:
            self.write()
            self._render(state for state in states if not state.rounds)

        self._beside = Background(prepare)

    def finish_files(self) -> None:
        """Wait until the files are written, or write them if that has not begun."""
        if self._beside is not None:
            with phase(WRITING):
                self._beside.result()
            self._beside = None
        elif self.unwritten:
            self.write()

    def finish_prompts(self, states: Iterable[SampleState]) -> None:
        """Render what is left, after the last request and before the model is closed: some keep no tokenizer."""
        if self._beside is not None:
            self.finish_files()
        self._render(state for state in states if _name(state) not in self._prompts)

    def answered(self, state: SampleState) -> RunSample:
        """The sample with its answers and its `prompt_requests` after the model's chat template."""
        return with_answers(self._without_answers(state), state, self._prompts.get(_name(state), []))

    def _without_answers(self, state: SampleState) -> RunSample:
        if state.rounds:
            return without_answers(state)
        name = _name(state)
        if name not in self._asked:
            self._asked[name] = without_answers(state)
        return self._asked[name]

    def _render(self, states: Iterable[SampleState]) -> None:
        rendered = self._model.rendered_prompt if isinstance(self._model, RendersPrompts) else _as_it_is
        for state in states:
            with contextlib.suppress(Exception):  # the samples then show the prompt as it was before the template
                self._prompts[_name(state)] = [rendered(request) for request in prompt_requests(state)]


def _as_it_is(request: Request) -> str:
    """A text, or messages as JSON."""
    if isinstance(request.context, str):
        return request.context
    return json.dumps([message.to_json() for message in request.context], ensure_ascii=False)


def _name(state: SampleState) -> tuple[str, str | int]:
    return state.task.name, state.sample.id
