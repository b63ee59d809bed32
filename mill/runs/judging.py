"""Judging after inference: another model, opened before the run and loaded after the first one was cleaned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mill.api.batching import describe
from mill.api.errors import CannotServe, SpecError
from mill.api.model import MillModel, identity_of
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import Task
from mill.api.warnings import warn
from mill.execute.backend import LocalBackend
from mill.execute.executor import Executor, Tally
from mill.models.spec.open import open_model, resolve_spec
from mill.models.spec.parse import Spec
from mill.runs.folder import run_folder, short_hash
from mill.runs.plan import TaskPlan
from mill.runs.record import Record
from mill.runs.samples import SampleRecord
from mill.tasks.load import Selection


@dataclass(frozen=True)
class Judging:
    """A model that judges. Its verdicts are kept under its own name, for all runs that ask it the same."""

    model: MillModel
    identity: Mapping[str, Any]
    folder: Path
    root: Path
    """The output folder."""

    @property
    def label(self) -> str:
        """What tells runs with different judges apart."""
        return f"{self.model.model_name}-{short_hash(self.identity)}"

    def judge(self, judged: Sequence[tuple[Task, list[SampleRecord]]], *, quiet: bool = False) -> Tally:
        """Ask about every answer of these samples and put what the judge wrote into them."""
        record = Record(self.folder, shareable=False, root=self.root)
        executor = Executor(LocalBackend(self.model), record, quiet=quiet)
        asked = [
            (samples, place, [self._requests(task, sample, responses) for responses in sample.responses])
            for task, samples in judged
            for place, sample in enumerate(samples)
            if sample.error is None
        ]
        try:
            executor.run(request for _, _, repeats in asked for requests in repeats for request in requests)
            record.refuse_removed()
        finally:
            record.close()
            executor.backend.close()
        for samples, place, repeats in asked:
            told = [[request.resps[0].text for request in requests] or [None, None] for requests in repeats]
            samples[place] = replace(samples[place], judgements=told)
        return executor.tally

    def _requests(self, task: Task, sample: SampleRecord, responses: Sequence[Response]) -> list[Request]:
        """Nothing where the task cannot say what it asks of this sample: that counts as a judge that failed."""
        try:
            assert task.judge is not None
            told = task.judged_fields(sample.sample, responses)
            return task.judge.requests(told, chat=self.model.has_chat_template())
        except Exception as error:  # other people's code
            warn(f"{task.name} cannot ask the judge about sample {sample.sample.id}: {describe(error)}")
            return []


def check_prompts(plans: Sequence[TaskPlan]) -> None:
    """Fill in every judge's prompt once, before anything is computed."""
    for task, job in ((plan.task, plan.jobs[0]) for plan in plans if plan.task.judge is not None):
        try:
            told = task.judged_fields(job.sample, [Response(text="")])
        except Exception:  # it wants answers of another shape, which are not there yet
            continue
        assert task.judge is not None
        task.judge.requests(told, chat=False)


def open_judge(spec: Spec, selection: Selection, output_dir: Path, *, wait: float = 0.0) -> Judging:
    """Open a judge without loading it; refused where no task has anything to judge."""
    if not any(task.judge for task in selection.tasks):
        names = ", ".join(task.name for task in selection.tasks[:5])
        raise SpecError(f"--judge: none of these tasks is judged: {names}; `mill ls tasks` marks those that are")
    model = open_model(resolve_spec(spec))
    model.ready(wait)
    if not model.capabilities.serves(GENERATE):
        raise CannotServe(f"{model.model_name} writes no text, so it cannot judge")
    identity = identity_of(model)
    folder = run_folder(output_dir, model.model_name, identity, {"condition": "judge"})
    return Judging(model, identity, folder.path, output_dir)
