"""Judging after inference: a second model, opened before the run and loaded after the first one was freed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.engine import Reuse
from mill.api.errors import CannotServe, DataError, RunError, SpecError
from mill.api.identity import identity_of
from mill.api.model import MillModel, has_chat_template
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import Task
from mill.execute.executor import Answers, Executor, LocalBackend, Tally
from mill.execute.meter import JUDGE, Meter
from mill.models.spec.open import open_model, resolve_spec
from mill.models.spec.parse import Spec
from mill.plan.task_plan import TaskPlan
from mill.store.folder import run_folder, short_hash
from mill.store.record import Record
from mill.store.samples import RunSample
from mill.support.terminal import describe, warn
from mill.tasks.load import Selection

MOST_NAMED = 5


@dataclass(frozen=True)
class JudgeRunner:
    """A model that judges. Its judgements are recorded under its own name, for all runs that send it the same request."""

    model: MillModel
    identity: Mapping[str, Any]
    folder: Path
    root: Path
    """The output folder."""

    @property
    def label(self) -> str:
        """Differs between judges, so that runs with different judges have different folders."""
        return f"{self.model.model_name}-{short_hash(self.identity)}"

    def judge(
        self, judged: Sequence[tuple[Task, list[RunSample]]], *, quiet: bool = False, meter: Meter | None = None
    ) -> Tally:
        """Have every response of these samples judged and put the judgements into the samples. Where the run's budget ends
        before, the samples that are left have no judgements."""
        reuse = Reuse(now=frozenset(self.model.engines))
        record = Record(self.folder, shareable=False, root=self.root, reuse=reuse)
        executor = Executor(LocalBackend(self.model), record, quiet=quiet)
        answers: Answers = {}
        pending = [
            (samples, index, [_Judging(task, sample, responses, record, answers) for responses in sample.responses])
            for task, samples in judged
            for index, sample in enumerate(samples)
            if sample.unanswered is None
        ]
        judging = [one for _, _, repeats in pending for one in repeats]
        try:
            try:
                with executor.metered(meter, JUDGE) if meter is not None else nullcontext():
                    while requests := [request for one in judging for request in self._next_requests(one)]:
                        answers |= executor.run(requests)
                record.refuse_removed()
            finally:  # a judge that broke down has judged some, and failed on the others
                for samples, index, repeats in pending:
                    if executor.stopped and any(one.unsent for one in repeats):
                        continue
                    samples[index] = samples[index].updated(judgements=[one.texts() for one in repeats])
        finally:
            record.close()
            executor.backend.close()
        return executor.tally

    def _next_requests(self, one: _Judging) -> list[Request]:
        """Empty where the task has no more, where a judgement failed, and where the task fails to build the prompt: that
        counts as a failure of the judge."""
        texts = [text for text in one.texts() if text is not None]
        if one.failed or len(texts) < len(one.requests):
            return []
        try:
            chat = has_chat_template(self.model)
            found = one.task.judge_requests(one.sample.sample, one.responses, texts, chat=chat)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # third-party code may raise anything
            warn(f"{one.task.name} cannot build the judge's prompt for sample {one.sample.sample.id}: {describe(error)}")
            one.failed = True
            return []
        one.requests += found
        return found


@dataclass
class _Judging:
    """One answer that is judged, with the requests to the judge so far."""

    task: Task
    sample: RunSample
    responses: Sequence[Response]
    record: Record
    answers: Answers
    """Of the judge, in this session."""
    requests: list[Request] = field(default_factory=list)
    failed: bool = False
    """Whether the task could not build a request."""

    @property
    def unsent(self) -> bool:
        """Whether a request was not sent to the judge."""
        return any(one.key not in self.answers and self._text(one) is None for one in self.requests)

    def texts(self) -> list[str | None]:
        return [None, None] if self.failed else [self._text(request) for request in self.requests]

    def _text(self, request: Request) -> str | None:
        """The judge's text; None where the request failed or was not sent."""
        if request.key in self.answers:
            return self.answers[request.key][0].text
        try:
            recorded = self.record.response(request.key)
        except RunError:  # the run ends with the first error
            return None
        return recorded.text if recorded is not None else None


def failed_judgements(scored: Iterable[RunSample]) -> int:
    """How many requests to the judge failed."""
    return sum(text is None for one in scored for texts in one.judgements for text in texts)


def unread_judgements(scored: Iterable[RunSample]) -> list[str | int]:
    """The samples with a judgement from which no verdict could be read, once for each."""
    return [
        one.sample.id
        for one in scored
        for value, texts in zip(one.values.get("judge_read", ()), one.judgements, strict=False)
        if value == 0.0 and None not in texts
    ]


def judge_failures(scored: Sequence[RunSample]) -> int:
    """Judgements without a value: a run that has some ends with exit code 1."""
    return failed_judgements(scored) + len(unread_judgements(scored))


def judgement_warnings(scored: Sequence[RunSample]) -> list[str]:
    """What a reader of judged scores must know: how many judgements have no value, and of which samples."""
    unread, failed = unread_judgements(scored), failed_judgements(scored)
    names = ", ".join(map(str, unread[:MOST_NAMED])) + (" and others" if len(unread) > MOST_NAMED else "")
    lines = [f"{len(unread)} judgements could not be read and have no value: samples {names}"] if unread else []
    return lines + ([f"{failed} requests to the judge failed and count as not read"] if failed else [])


def check_prompts(plans: Sequence[TaskPlan]) -> None:
    """Fill in every judge's prompt once, before anything is computed."""
    for task, state in ((plan.task, plan.states[0]) for plan in plans if plan.task.judge is not None):
        try:
            task.judge_requests(state.sample, [Response(text="")], [], chat=False)
        except DataError:
            raise
        except Exception:  # it needs responses of another form, which are not there yet
            continue


def refuse_without_judge(tasks: Iterable[Task]) -> None:
    """For a run without a judge: refuse the tasks that have no score then."""
    for task in tasks:
        if task.judge is not None and task.judge.required:
            raise SpecError(f"{task.name} needs a judge: --judge MODEL names one")


def open_judge(spec: Spec, selection: Selection, output_dir: Path, *, wait: float = 0.0) -> JudgeRunner:
    """Open a judge without loading it; refused where no task is judged."""
    if not any(task.judge for task in selection.tasks):
        names = ", ".join(task.name for task in selection.tasks[:5])
        raise SpecError(f"--judge: none of these tasks is judged: {names}; `mill ls tasks` marks those that are")
    model = open_model(resolve_spec(spec))
    model.ready(wait)
    if not model.capabilities.serves(GENERATE):
        raise CannotServe(f"{model.model_name} generates no text, so it cannot judge")
    identity = identity_of(model)
    folder = run_folder(output_dir, model.model_name, identity, {"condition": "judge"})
    return JudgeRunner(model, identity, folder.path, output_dir)
