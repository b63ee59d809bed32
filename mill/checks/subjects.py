"""The models of a check, and the runs it needs of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError
from mill.api.model import MillModel
from mill.api.secrets import is_secret, redact_addresses
from mill.api.task import RenderSettings, Task
from mill.checks.answers import Answer, answers_of
from mill.checks.result import FOLDER
from mill.checks.warnings import truncation_warnings
from mill.models.spec.open import open_model, resolve_spec, split_chat_template
from mill.models.spec.parse import Spec
from mill.runs.claims import Claim
from mill.runs.evaluate import Run
from mill.runs.folder import check_writable
from mill.runs.outcome import Outcome
from mill.runs.plan import refuse_early
from mill.runs.prepare import plan_run
from mill.runs.sampling import SampleChoice
from mill.tasks.load import Selection
from mill.tasks.suite import SuiteTask

CHECK_RUNS = "runs"  # folder of runs that only checks read; `mill collect` skips it
TOP_LOGPROBS = 10  # requested for each generated token


@dataclass(frozen=True)
class CheckConfig:
    """Tasks and settings that all subjects of a check share, and where results are written."""

    selection: Selection
    settings: RenderSettings
    output_dir: Path
    limit: int | float | None = None
    quiet: bool = False
    wait: float = 0.0
    fresh: bool = False
    samples: SampleChoice | None = None
    """Which samples, where not those of the limit."""
    chat: bool | None = False
    """Whether to apply the chat template; None decides by the models (`with_template`)."""

    @property
    def decide(self) -> Claim | None:
        return self.samples.decide if self.samples is not None else None

    @property
    def sampling(self) -> dict[str, Any]:
        """Which samples, for the settings of a check."""
        chosen = self.samples
        if chosen is None:
            return {"limit": self.limit}
        claim = {"decide": chosen.decide.text, "alpha": chosen.decide.alpha} if chosen.decide is not None else {}
        return {"limit": None, **({"sample": chosen.sample} if chosen.sample is not None else {}), **claim}

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self.selection.tasks]


def with_template(config: CheckConfig, subjects: Sequence[Subject]) -> CheckConfig:
    """Turn the chat template on or off for all models alike. By default it is applied to prompt suites if every model has
    one, since an instruct model may generate nothing without. Where a spec sets it, each model has its own setting: the
    template may be what is compared. Benchmarks stay as they are defined."""
    chat = config.chat
    if chat is None:
        suites_only = all(isinstance(task, SuiteTask) for task in config.selection.tasks)
        free = suites_only and all(subject.chat is None for subject in subjects)
        chat = free and all(subject.model.has_chat_template() for subject in subjects)
    chat = chat or config.settings.apply_chat_template
    return replace(config, chat=chat, settings=replace(config.settings, apply_chat_template=chat))


@dataclass(frozen=True)
class Subject:
    """A model and its label. The model is open and its server was checked; weights are not loaded yet."""

    label: str
    spec: Spec
    model: MillModel
    chat: bool | None = None
    """What the spec says about the chat template."""

    @property
    def templated(self) -> bool:
        """Whether this model applies its chat template, also where the others do not."""
        return bool(self.chat) or self.model.use_chat_template

    def plan(self, config: CheckConfig) -> Run:
        """A run as `mill eval` makes it; raises here if the model cannot serve the tasks."""
        return self._plan(config, config.selection, config.output_dir, "", limit=config.limit, samples=config.samples)

    def plan_check_run(self, config: CheckConfig, condition: str, tasks: Sequence[Task] = (), *, fresh: bool = False) -> Run:
        """A run that only a check reads, stored by its condition; `tasks` replace those of the config."""
        selection = Selection(tuple(tasks), ()) if tasks else config.selection
        limit = None if tasks else config.limit
        config = replace(config, fresh=config.fresh or fresh)
        samples = None if tasks else config.samples
        folder = config.output_dir / FOLDER / CHECK_RUNS
        return self._plan(config, selection, folder, condition, limit=limit, samples=samples)

    def _plan(
        self,
        config: CheckConfig,
        selection: Selection,
        output_dir: Path,
        condition: str,
        *,
        limit: int | float | None,
        samples: SampleChoice | None,
    ) -> Run:
        return plan_run(
            self.spec,
            self.model,
            selection,
            replace(config.settings, apply_chat_template=config.settings.apply_chat_template or bool(self.chat)),
            output_dir=output_dir,
            limit=limit,
            samples=samples,
            in_stages=False,
            fresh=config.fresh,
            condition=condition,
        )


@dataclass(frozen=True)
class CompletedRun:
    """A run that was executed, with its answers."""

    subject: Subject
    run: Run
    outcome: Outcome

    @cached_property
    def answers(self) -> list[Answer]:
        return [answer for plan in self.run.plans for answer in answers_of(plan.task, self.outcome.scored[plan.task.name])]

    def warnings(self) -> list[str]:
        """The model's warnings, truncated prompts, and answers of an earlier run."""
        model = self.subject.model
        limits = [model.no_logprobs] if model.no_logprobs else []
        return limits + model.warnings() + truncation_warnings(self.answers) + self._recorded_earlier()

    def _recorded_earlier(self) -> list[str]:
        """A server may answer differently by now, so answers that it gave to an earlier run are reported."""
        tally = self.outcome.tally
        if not tally.known or self.subject.model.accelerators:
            return []
        n = tally.known + tally.computed
        return [f"{tally.known} of {n} answers are from an earlier run; --fresh sends the requests again"]


def open_subject(label: str, spec: Spec, config: CheckConfig) -> Subject:
    check_writable(config.output_dir)
    resolved = resolve_spec(spec)
    refuse_early(config.selection, resolved.backend)
    option = "--chat (--no_chat switches it off)" if config.chat else "--no_chat"
    resolved, chat = split_chat_template(resolved, config.chat, option)
    model = open_model(resolved)
    model.ready(config.wait)
    return Subject(label, resolved, model, chat)


def open_subjects(specs: Sequence[tuple[str, Spec]], config: CheckConfig) -> list[Subject]:
    """Open all models before the first request, so that a mistake in the last one is reported at once."""
    return [open_subject(label, spec, config) for label, spec in specs]


def execute(subject: Subject, run: Run, config: CheckConfig, *, keep_model: bool = False) -> CompletedRun:
    return CompletedRun(subject, run, run.execute(quiet=config.quiet, keep_model=keep_model))


def label_of(spec: Spec) -> str:
    """A short name: the last component of the path, model name or address."""
    name = next(
        (redact_addresses(str(spec.arguments[key])) for key in ("path", "model", "base_url") if spec.arguments.get(key)),
        "",
    )
    short = (spec.config or name or spec.backend).rstrip("/").rpartition("/")[2].removesuffix(".gguf").removesuffix(".py")
    return short or spec.backend


def labelled(specs: Sequence[Spec], given: Sequence[str | None]) -> list[tuple[str, Spec]]:
    """A label for each spec: the given one, else a short name. Arguments that differ are appended to equal short names."""
    labels = [label or label_of(spec) for spec, label in zip(specs, given, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [
            name if label else " ".join([name, *_differing_arguments(spec, specs)])
            for name, label, spec in zip(labels, given, specs, strict=True)
        ]
    duplicates = [label for label, count in Counter(labels).items() if count > 1]
    if duplicates:
        options = "--label_a and --label_b of compare, label=model in --models of sweep, labels= in Python"
        raise SpecError(f"two models have the label {duplicates[0]!r}: set different labels ({options})")
    return list(zip(labels, specs, strict=True))


def _differing_arguments(spec: Spec, others: Sequence[Spec]) -> list[str]:
    """The backend and the arguments that not all specs share."""
    differing = [spec.backend] if len({other.backend for other in others}) > 1 else []
    for name, value in spec.arguments.items():
        if any(other.arguments.get(name) != value for other in others) and not is_secret(name):
            differing.append(f"{name}={redact_addresses(str(value)).rpartition('/')[2]}")
    return differing
