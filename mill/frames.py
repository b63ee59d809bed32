"""mill from Python: `mill.evaluate` and `mill.compare`, whose results are pandas data frames."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mill.api.errors import SpecError, import_pandas
from mill.api.identity import held_by_user, unidentified_parts
from mill.api.model import MillModel
from mill.api.task import Task
from mill.checks.compare import compare as make_check
from mill.checks.decide import decision_checks
from mill.checks.kinds import TOP_LOGPROBS
from mill.checks.result import Check
from mill.checks.subjects import CheckConfig, Subject, check_config, labelled, open_subject
from mill.export.tracker import check_trackers, logged_to
from mill.models.spec.parse import Spec, make_spec
from mill.options.definitions import CheckOptions, EvalOptions, merge
from mill.options.option import Option, one_call, options_of, read_all, split_names
from mill.report.collect import COLUMNS, data_frame, score_rows
from mill.report.scores import model_warnings, score_warnings
from mill.runs.plan import plan, plan_run
from mill.score.run_scores import Outcome
from mill.store.folder import check_writable
from mill.store.sample_row import columns_of, run_columns
from mill.store.samples import row_of
from mill.support.terminal import warn
from mill.tasks.load import Selection, expand_task_files, load_builtin, load_files, select
from mill.tasks.suite import select_suites
from mill.view.offline import write_check_page

if TYPE_CHECKING:
    import pandas as pd

Model = str | Spec | MillModel
Tasks = str | Path | Task | Sequence[str | Path | Task]

_SHOWN_ROWS = 12
# What of the command line makes no sense in Python, or is an argument by itself.
_NOT_IN_PYTHON = ("models", "tasks", "dry_run", "fail_on", "require", "strict", "report")
_FOR_OPENING = ("base_url", "batch_size", "exact", "workers", "no_remote_code")
_EVALUATE = {name: option for name, option in options_of(EvalOptions).items() if name not in _NOT_IN_PYTHON}
_COMPARE = {name: option for name, option in options_of(CheckOptions).items() if name not in _NOT_IN_PYTHON}


@dataclass(frozen=True, repr=False)
class Evaluation:
    """`scores` has the columns of `mill collect`, with a row for each metric of each task and benchmark; `samples` those of
    samples/<task>.jsonl, with a row for each sample. Its `status` is right, wrong, graded, unscored, failed, or pending for
    samples that a budget left out. `warnings` are the lines that `mill eval` prints below its table."""

    scores: pd.DataFrame
    samples: pd.DataFrame
    outcome: Outcome
    warnings: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        head = f"Evaluation of {self.outcome.model} in {self.outcome.folder.path}: {len(self.samples)} samples"
        return _short(head, self.scores, ("task", "metric", "value", "stderr", "n", "failed"))


@dataclass(frozen=True, repr=False)
class Comparison:
    """`metrics` has a row for each metric of each candidate, `samples` one for each sample of each candidate."""

    metrics: pd.DataFrame
    samples: pd.DataFrame
    check: Check

    def __repr__(self) -> str:
        head = f"Comparison with {self.check.baseline}: {len(self.samples)} samples"
        return _short(head, self.metrics, ("label", "metric", "value", "p_value", "n"))

    def save_html(self, file: str | Path) -> Path:
        return write_check_page(self.check, Path(file))


def evaluate(model: Model, tasks: Tasks, **options: Any) -> Evaluation:
    """Run tasks on a model, as `mill eval` does.

    `options` are those of `mill eval` by their names: limit, n_shots, gen_kwargs, output_dir and so on. `judge` may be a
    Spec. A model that is open already takes none of the options about opening a model, such as batch_size.
    """
    import_pandas("mill.evaluate")
    _check_arguments([model], tasks)
    values = read_all(options, _EVALUATE, "argument", skip=("judge",) if isinstance(options.get("judge"), Spec) else ())
    given = EvalOptions(**{"quiet": True, **merge(values)})
    check_trackers(given.log_to)
    with one_call(msgspec.structs.asdict(given)), held_by_user([model]):
        return _evaluate(model, tasks, given, values)


def _evaluate(model: Model, tasks: Tasks, given: EvalOptions, values: Mapping[str, Any]) -> Evaluation:
    load_files(tuple(given.task_paths))
    selection, how = _selection(tasks), given.run
    if isinstance(model, MillModel):
        if refused := next((name for name in _FOR_OPENING if name in values), None):
            raise SpecError(f"{refused} is for a model that mill opens; this model is open already: set it there")
        _warn_unidentified(model)
        check_writable(how.output_dir)
        model.ready(how.wait)
        planned = plan_run(_spec_of(model), model, selection, how)
    else:
        planned = plan(make_spec(model, base_url=given.base_url or "") if isinstance(model, str) else model, selection, how)
    for task in planned.tasks:  # before the run, such as how a data file is read
        for line in task.warnings():
            warn(f"{task.task.name}: {line}")
    with logged_to(planned.folder, given.log_to):
        outcome = planned.execute(quiet=given.quiet)
    for check in decision_checks(outcome, planned.model.model_name, planned.spec.backend):
        check.save(how.output_dir)
    warnings = score_warnings(outcome)
    for line in warnings:
        warn(line)
    scores = score_rows(outcome.model, outcome.folder, outcome.results)
    columns = run_columns(outcome.model, outcome.folder)
    samples = [columns_of(row_of(columns, task, one)) for task, scored in outcome.scored.items() for one in scored]
    frames = data_frame("mill.evaluate", scores, COLUMNS), data_frame("mill.evaluate", samples)
    return Evaluation(*frames, outcome, [*warnings, *model_warnings(outcome)])


def compare(
    a: Model,
    b: Model | Sequence[Model],
    *,
    tasks: Tasks | None = None,
    labels: Sequence[str | None] | None = None,
    **options: Any,
) -> Comparison:
    """Compare models with the first one, on a prompt suite or on tasks, as `mill compare` and `mill sweep` do.

    `options` are those of `mill compare` by their names: prompts, limit, chat, forced_tokens and so on. Without tasks the
    prompt suite is `numerics`. Prompts go through the chat template if every model has one, unless `chat` decides it.
    `check.variants[i].verdict` summarizes each candidate.
    """
    import_pandas("mill.compare")
    models = [a, *(b if isinstance(b, Sequence) and not isinstance(b, str) else [b])]
    _check_arguments(models, [] if tasks is None else tasks)
    given = CheckOptions(**{"quiet": True, **merge(read_all(options, _COMPARE, "argument"))})
    if len(models) < 2:
        raise SpecError("mill.compare needs a model to compare with the first")
    if given.decide is not None and len(models) > 2:
        raise SpecError(
            f"decide={given.decide!r} is about two models, not {len(models)}: call mill.compare for each candidate"
        )
    if labels is not None and len(labels) != len(models):
        raise SpecError(f"{len(labels)} labels for {len(models)} models")
    if tasks is not None and given.prompts is not None:
        raise SpecError("give prompts or tasks, not both")
    with one_call(msgspec.structs.asdict(given)), held_by_user(models):
        return _compare(models, tasks, labels, given)


def _compare(
    models: Sequence[Model], tasks: Tasks | None, labels: Sequence[str | None] | None, given: CheckOptions
) -> Comparison:
    load_files(tuple(given.task_paths))
    selection = _selection(tasks) if tasks is not None else Selection(select_suites(given.prompts or ["numerics"]), ())
    config = check_config(given, selection, top_logprobs=TOP_LOGPROBS)
    specs = [_spec_of(model, given.base_url or "") for model in models]
    named = labelled(specs, labels or [None] * len(models))
    subjects = [_subject(label, spec, model, config) for (label, spec), model in zip(named, models, strict=True)]
    kind = "compare" if len(models) == 2 else "sweep"
    check = make_check(kind, subjects, config, forced_tokens=given.forced_tokens)
    check.save(config.run.output_dir)
    metrics = [
        {"label": variant.label, "metric": name, **vars(estimate), "p_value": variant.p_values.get(name)}
        for variant in check.variants
        for name, estimate in variant.metrics.items()
    ]
    samples = [{"label": variant.label, **row} for variant in check.variants for row in variant.rows]
    return Comparison(data_frame("mill.compare", metrics), data_frame("mill.compare", samples), check)


def _short(head: str, table: pd.DataFrame, columns: Sequence[str]) -> str:
    """A line and the first rows of a table, for notebooks and the Python prompt."""
    shown = table[[name for name in columns if name in table]]
    rows = shown.head(_SHOWN_ROWS).to_string(index=False) if len(shown) else "no scores"
    more = f"\n... {len(shown) - _SHOWN_ROWS} more rows" if len(shown) > _SHOWN_ROWS else ""
    return f"{head}\n{rows}{more}"


def _signature(function: Any, options: Mapping[str, Option]) -> inspect.Signature:
    """The signature with every option instead of `**options`, for help() and notebooks."""
    plain = inspect.signature(function)
    named = [parameter for parameter in plain.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    taken = {parameter.name for parameter in named}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=True if name == "quiet" else option.default)
        for name, option in options.items()
        if name not in taken
    ]
    return plain.replace(parameters=[*named, *added])


def _check_arguments(models: Sequence[Any], tasks: Any) -> None:
    """Refuse what the command line cannot express."""
    for model in models:
        if not isinstance(model, (str, Spec, MillModel)):
            raise SpecError(f"a model is a spec such as 'hf[path=org/name]' or a MillModel, not {type(model).__name__}")
    for task in tasks if isinstance(tasks, (list, tuple)) else [tasks]:
        if not isinstance(task, (str, Path, Task)):
            raise SpecError(f"tasks are names or Task objects, not {type(task).__name__}")


def _selection(tasks: Tasks) -> Selection:
    """Task names as on the command line, paths of files, and Task objects, each once."""
    load_builtin()
    listed = split_names(tasks) if isinstance(tasks, str) else [tasks] if isinstance(tasks, (Path, Task)) else tasks
    given = [str(task) if isinstance(task, Path) else task for task in listed]
    named = select(expand_task_files(task for task in given if isinstance(task, str)))
    objects = {id(task): task for task in given if isinstance(task, Task)}
    return Selection((*named.tasks, *objects.values()), named.benchmarks)


def _subject(label: str, spec: Spec, model: Model, config: CheckConfig) -> Subject:
    if not isinstance(model, MillModel):
        return open_subject(label, spec, config)
    _warn_unidentified(model)
    model.ready(config.run.wait)
    return Subject(label, spec, model)


def _spec_of(model: Model, base_url: str = "") -> Spec:
    """A model made in Python has no spec: its class and arguments identify it."""
    if isinstance(model, MillModel):
        return Spec(type(model).__name__, model.arguments or {"path": model.model_name})
    return make_spec(model, base_url=base_url, if_served=True) if isinstance(model, str) else model


def _warn_unidentified(model: MillModel) -> None:
    """Warn that a model shares no answers, because a part of it cannot be compared with that of another."""
    for part in unidentified_parts(model)[:1]:
        warn(f"{part} cannot be read: no answer of an earlier call is reused, and none of this call will be")


evaluate.__signature__ = _signature(evaluate, _EVALUATE)  # type: ignore[attr-defined]
compare.__signature__ = _signature(compare, _COMPARE)  # type: ignore[attr-defined]
