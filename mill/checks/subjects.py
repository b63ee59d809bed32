"""The models of a check, and the runs it needs of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mill.api.errors import SpecError
from mill.api.model import MillModel
from mill.api.secrets import is_secret, redact_addresses
from mill.api.task import RenderSettings, Task
from mill.checks.answers import Answer, answers_of
from mill.checks.result import FOLDER
from mill.models.spec.open import open_model, resolve_spec
from mill.models.spec.parse import Spec
from mill.runs.evaluate import Outcome, Run, plan_run
from mill.runs.folder import check_writable
from mill.runs.plan import refuse_early
from mill.tasks.load import Selection
from mill.tasks.suite import SuiteTask

APART = "runs"  # below the checks, where `mill collect` does not look


TOP_LOGPROBS = 10  # of the likeliest tokens, told beside each generated one


@dataclass(frozen=True)
class CheckConfig:
    """What all subjects of a check are asked, and where the answers go."""

    selection: Selection
    settings: RenderSettings
    output_dir: Path
    limit: int | float | None = None
    quiet: bool = False
    wait: float = 0.0
    fresh: bool = False
    chat: bool | None = False
    """Whether prompts go through the chat template; None asks the models (`with_template`)."""

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self.selection.tasks]


def with_template(asked: CheckConfig, subjects: Sequence[Subject]) -> CheckConfig:
    """With the chat template on or off for all models alike. Where nobody said, prompts go through it if every model has
    one: an instruct model may have nothing to say without. Benchmarks stay as they are defined."""
    chat = asked.chat
    if chat is None:
        prompts = all(isinstance(task, SuiteTask) for task in asked.selection.tasks)
        chat = prompts and all(subject.model.has_chat_template() for subject in subjects)
    chat = chat or asked.settings.apply_chat_template
    return replace(asked, chat=chat, settings=replace(asked.settings, apply_chat_template=chat))


@dataclass(frozen=True)
class Subject:
    """A model under a label. Opened, its server looked at, its weights not loaded yet."""

    label: str
    spec: Spec
    model: MillModel

    def plan(self, asked: CheckConfig) -> Run:
        """A run as `mill eval` makes it; refused here if the model cannot serve what is asked."""
        return self._plan(asked, asked.selection, asked.output_dir, asked.limit, "")

    def plan_check_run(self, asked: CheckConfig, condition: str, tasks: Sequence[Task] = (), *, fresh: bool = False) -> Run:
        """A run that only a check reads, under a condition of its own; of other tasks than asked where they are given."""
        selection = Selection(tuple(tasks), ()) if tasks else asked.selection
        limit = None if tasks else asked.limit
        asked = replace(asked, fresh=asked.fresh or fresh)
        return self._plan(asked, selection, asked.output_dir / FOLDER / APART, limit, condition)

    def _plan(self, asked: CheckConfig, selection: Selection, place: Path, limit: int | float | None, condition: str) -> Run:
        return plan_run(
            self.spec,
            self.model,
            selection,
            asked.settings,
            output_dir=place,
            limit=limit,
            fresh=asked.fresh,
            condition=condition,
        )


@dataclass(frozen=True)
class CompletedRun:
    """A run that was made, with its answers."""

    subject: Subject
    run: Run
    outcome: Outcome

    @property
    def answers(self) -> list[Answer]:
        return [one for plan in self.run.plans for one in answers_of(plan.task, self.outcome.scored[plan.task.name])]

    def warnings(self) -> list[str]:
        """What a reader of the answers must know: what the model says of itself, and prompts that did not fit."""
        cut = [
            f"{task.truncated} of {task.n} prompts of {task.task} were cut on the left to fit the context"
            for task in self.outcome.tasks
            if task.truncated
        ]
        return self.subject.model.warnings() + cut + self._read()

    def _read(self) -> list[str]:
        """Answers that were not asked for now; of a server nobody knows whether it would still give them."""
        tally = self.outcome.tally
        if not tally.known or self.subject.model.accelerators:
            return []
        return [f"{tally.known} of {tally.known + tally.computed} answers were read from an earlier run: --fresh asks again"]


def open_subject(label: str, spec: Spec, asked: CheckConfig) -> Subject:
    check_writable(asked.output_dir)
    resolved = resolve_spec(spec)
    refuse_early(asked.selection, resolved.backend)
    model = open_model(resolved)
    model.ready(asked.wait)
    return Subject(label, resolved, model)


def open_subjects(specs: Sequence[tuple[str, Spec]], asked: CheckConfig) -> list[Subject]:
    """All of them, before the first is asked, so that a mistake in the last is found at once."""
    return [open_subject(label, spec, asked) for label, spec in specs]


def answer(subject: Subject, run: Run, asked: CheckConfig, *, keep_model: bool = False) -> CompletedRun:
    return CompletedRun(subject, run, run.execute(quiet=asked.quiet, keep_model=keep_model))


def label_of(spec: Spec) -> str:
    """A short name: the last part of what names the model."""
    named = next(
        (redact_addresses(str(spec.arguments[name])) for name in ("path", "model", "base_url") if spec.arguments.get(name)),
        "",
    )
    short = (spec.config or named or spec.backend).rstrip("/").rpartition("/")[2].removesuffix(".gguf").removesuffix(".py")
    return short or spec.backend


def labelled(specs: Sequence[Spec], given: Sequence[str | None]) -> list[tuple[str, Spec]]:
    """Specs under the labels given, else under short names; equal ones are told apart by what their specs differ in."""
    short = [label or label_of(spec) for spec, label in zip(specs, given, strict=True)]
    if len(set(short)) < len(short):
        short = [
            name if label else " ".join([name, *_apart(spec, specs)])
            for name, label, spec in zip(short, given, specs, strict=True)
        ]
    twice = [label for label, count in Counter(short).items() if count > 1]
    if twice:
        how = "--label_a and --label_b, label=model in --models, labels= in Python"
        raise SpecError(f"two models have the label {twice[0]!r}: give each a label of its own ({how})")
    return list(zip(short, specs, strict=True))


def _apart(spec: Spec, others: Sequence[Spec]) -> list[str]:
    """What this spec says that not all of them say."""
    found = [spec.backend] if len({other.backend for other in others}) > 1 else []
    for name, value in spec.arguments.items():
        if any(other.arguments.get(name) != value for other in others) and not is_secret(name):
            found.append(f"{name}={redact_addresses(str(value)).rpartition('/')[2]}")
    return found
