"""The models of a check, and the runs it needs of each; passes: the same requests several times, each time under another
condition, such as the number of requests in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mill.api.engine import Answered
from mill.api.errors import SpecError
from mill.api.model import Concurrent, MillModel, has_chat_template
from mill.api.request import generation_options
from mill.api.task import RenderSettings, Task
from mill.checks.answers import Answer, answers_of, truncation_warnings
from mill.checks.result import FOLDER
from mill.models.spec.parse import Spec
from mill.options.definitions import CheckOptions
from mill.plan.sampling import Claim, SampleChoice, read_claim
from mill.plan.task_plan import TaskPlan
from mill.runs.evaluate import Plan, RunConfig
from mill.runs.files import shown_settings
from mill.runs.plan import open_for_run, plan_run
from mill.score.run_scores import Outcome
from mill.support.secrets import is_secret, redact_addresses
from mill.tasks.load import Selection
from mill.tasks.suite import SuiteTask

DROPS = ("acc_drop", "score_drop")  # what a claim about two models may be about
CHECK_RUNS = "runs"  # folder of runs that only checks read; `mill collect` skips it


@dataclass(frozen=True)
class CheckConfig:
    """Tasks and the configuration of their runs, which all subjects of a check share."""

    selection: Selection
    run: RunConfig
    """`chat` says whether to apply the chat template; None decides by the models (`with_template`)."""
    quiet: bool = False

    @property
    def settings(self) -> RenderSettings:
        return self.run.settings

    def with_settings(self, **changed: Any) -> CheckConfig:
        return replace(self, run=replace(self.run, settings=replace(self.settings, **changed)))

    @property
    def decide(self) -> Claim | None:
        return self.run.samples.decide

    @property
    def shown(self) -> dict[str, Any]:
        """The settings of a check, with which samples it takes."""
        chosen = self.run.samples
        claim = {"decide": chosen.decide.text, "alpha": chosen.decide.alpha} if chosen.decide is not None else {}
        sample = {"sample": chosen.sample} if chosen.sample is not None else {}
        return {**shown_settings(self.settings), "limit": chosen.limit, **sample, **claim}

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self.selection.tasks]


def check_config(options: CheckOptions, selection: Selection, *, top_logprobs: int | None) -> CheckConfig:
    """What the models are sent. `top_logprobs` are requested for every generated token. The claim of a check is about a
    change, and the check takes its samples itself."""
    gen_kwargs = options.decoding
    if top_logprobs:
        gen_kwargs.setdefault("logprobs", top_logprobs)
    generation_options(**gen_kwargs)
    claim = read_claim(options.decide, options.alpha)
    if claim is not None and claim.metric not in DROPS:
        raise SpecError(
            f"--decide {claim.text}: the claims of compare are about {' or '.join(DROPS)}, such as acc_drop>0.01"
        )
    if claim is not None and not -1 < claim.bound < 1:
        raise SpecError(f"--decide {claim.text}: a drop is between -1 and 1")
    run = RunConfig(
        output_dir=Path(options.output_dir),
        settings=options.render_settings(gen_kwargs=gen_kwargs),
        samples=SampleChoice(limit=options.limit, sample=options.sample, decide=claim),
        fresh=options.fresh,
        reuse=options.reuse,
        wait=options.wait,
        chat=options.chat,
        steered=claim is not None,
    )
    return CheckConfig(selection, run, options.quiet)


def with_template(config: CheckConfig, subjects: Sequence[Subject]) -> CheckConfig:
    """Turn the chat template on or off for all models alike. By default it is applied to prompt suites if every model has
    one, since an instruct model may generate nothing without. Where a spec sets it, each model has its own setting: the
    template may be what is compared. Benchmarks stay as they are defined."""
    chat = config.run.chat
    if chat is None:
        suites_only = all(isinstance(task, SuiteTask) for task in config.selection.tasks)
        free = suites_only and all(subject.chat is None for subject in subjects)
        chat = free and all(has_chat_template(subject.model) for subject in subjects)
    chat = chat or config.settings.apply_chat_template
    changed = config.with_settings(apply_chat_template=chat)
    return replace(changed, run=replace(changed.run, chat=chat))


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

    def plan(self, config: CheckConfig) -> Plan:
        """A run as `mill eval` makes it; raises here if the model cannot serve the tasks."""
        return plan_run(self.spec, self.model, config.selection, self._options(config))

    def plan_check_run(
        self, config: CheckConfig, condition: str, tasks: Sequence[Task] = (), *, fresh: bool = False
    ) -> Plan:
        """A run that only a check reads, stored by its condition; all samples of `tasks` replace those of the config."""
        options = replace(
            self._options(config),
            output_dir=config.run.output_dir / FOLDER / CHECK_RUNS,
            condition=condition,
            fresh=config.run.fresh or fresh,
        )
        if not tasks:
            return plan_run(self.spec, self.model, config.selection, options)
        options = replace(options, samples=SampleChoice())
        return plan_run(self.spec, self.model, Selection(tuple(tasks), ()), options)

    def _options(self, config: CheckConfig) -> RunConfig:
        chat = config.settings.apply_chat_template or bool(self.chat)
        return config.with_settings(apply_chat_template=chat).run


@dataclass(frozen=True)
class CompletedRun:
    """A run that was executed, with its answers. `tasks` have the samples that ran."""

    subject: Subject
    plan: Plan
    outcome: Outcome
    tasks: Sequence[TaskPlan]

    @cached_property
    def answers(self) -> list[Answer]:
        return [answer for plan in self.tasks for answer in answers_of(plan.task, self.outcome.scored[plan.task.name])]

    def warnings(self) -> list[str]:
        """The model's warnings, truncated prompts, and answers of an earlier run."""
        model = self.subject.model
        limits = [model.no_logprobs] if model.no_logprobs else []
        return limits + model.warnings() + truncation_warnings(self.answers) + self._recorded_earlier()

    def _recorded_earlier(self) -> list[str]:
        """A server may answer differently by now, so answers that it gave to an earlier run are reported."""
        tally = self.outcome.tally
        if not self.outcome.reused or not self.subject.model.is_server:
            return []
        return [f"{tally.known} of {tally.known + tally.computed} answers were {self.outcome.reused}; --fresh asks again"]


def open_subject(label: str, spec: Spec, config: CheckConfig) -> Subject:
    option = "--chat (--no_chat switches it off)" if config.run.chat else "--no_chat"
    return Subject(label, *open_for_run(spec, config.selection, config.run, option))


def open_subjects(specs: Sequence[tuple[str, Spec]], config: CheckConfig) -> list[Subject]:
    """Open all models before the first request, so that a mistake in the last one is reported at once."""
    return [open_subject(label, spec, config) for label, spec in specs]


def execute(subject: Subject, plan: Plan, config: CheckConfig, *, keep_model: bool = False) -> CompletedRun:
    return CompletedRun(subject, plan, plan.execute(quiet=config.quiet, keep_model=keep_model), plan.tasks)


def label_of(spec: Spec) -> str:
    """A short name: the last component of the path, model name or address."""
    given = next((str(spec.arguments[key]) for key in ("path", "model", "base_url") if spec.arguments.get(key)), "")
    return _short(spec.config or given or spec.backend).removesuffix(".gguf").removesuffix(".py") or spec.backend


def _short(value: str) -> str:
    """The last component of a path, or the host and port of an address."""
    shown = redact_addresses(value)
    return urlsplit(shown).netloc.rpartition("@")[2] if "://" in shown else shown.rstrip("/").rpartition("/")[2]


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
            differing.append(f"{name}={_short(str(value))}")
    return differing


@dataclass(frozen=True)
class Pass:
    """A pass that was made. `sessions` are those of the run's manifest, with its times."""

    name: str
    concurrency: int | None
    answers: list[Answer]
    run: str
    sessions: Sequence[Mapping[str, Any]]
    answered: Answered = field(default_factory=Answered)

    def total(self, name: str) -> float:
        return sum(float(session.get(name, 0)) for session in self.sessions)


def make_passes(
    subject: Subject, config: CheckConfig, levels: Mapping[str, int | None], *, resume: bool, keep_model: bool = False
) -> tuple[list[Pass], list[str]]:
    """Execute a run for each name, one after another on one loaded model, with so many requests in flight (None leaves the
    number to the backend); returns the passes and their warnings.

    A check that finished measures again. One that was interrupted resumes, if `resume` allows passes of different times.
    `keep_model` leaves the model loaded for later passes.
    """
    warnings, model = list[str](), subject.model
    if not isinstance(model, Concurrent):
        warnings.append(f"{subject.spec.backend} does not support a fixed number of requests in flight")
        levels = dict.fromkeys(levels)

    def plan(name: str, *, fresh: bool) -> Plan:
        return subject.plan_check_run(config, f"{name} x{levels[name] or 'auto'}", fresh=fresh)

    resumed = resume and not config.run.fresh and _unfinished([plan(name, fresh=False) for name in levels])
    if resumed:
        warnings.append("resumes an interrupted check: some passes were made earlier")
    passes = []
    for number, (name, concurrency) in enumerate(levels.items(), 1):
        planned = plan(name, fresh=not resumed)
        if isinstance(model, Concurrent):
            model.set_concurrency(concurrency)
        completed = execute(subject, planned, config, keep_model=keep_model or number < len(levels))
        sessions = planned.folder.manifest()["sessions"]
        answered = completed.outcome.answered
        passes.append(Pass(name, concurrency, completed.answers, str(planned.folder.path), sessions, answered))
    return passes, warnings + model.warnings()


def _unfinished(plans: Sequence[Plan]) -> bool:
    """Whether a check started and did not finish: some responses of these runs are recorded, but not all."""
    recorded = [
        sum(plan.record.lookup(clone.key) is not None for clone in request.clones())
        for plan in plans
        for state in plan.states
        for request in state.open_requests()
    ]
    return any(recorded) and not all(recorded)
