"""mill from Python: `mill.evaluate` and `mill.compare`, whose results are pandas data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mill.api.errors import MissingPackage, SpecError, UnknownName
from mill.api.files import check_path
from mill.api.model import MillModel
from mill.api.task import RenderSettings, Task
from mill.checks.compare import compare as make_check
from mill.checks.forced import FORCED_TOKENS
from mill.checks.result import Check
from mill.checks.subjects import TOP_LOGPROBS, CheckConfig, Subject, labelled, open_subject
from mill.models.spec.parse import Spec, parse_spec, split_list
from mill.runs.evaluate import Outcome, plan_run, prepare
from mill.runs.folder import check_writable
from mill.runs.judging import open_judge
from mill.runs.plan import parse_limit
from mill.tasks.load import Selection, load_builtin, select
from mill.tasks.suite import select_suites

if TYPE_CHECKING:
    import pandas as pd

Model = str | Spec | MillModel
Tasks = str | Sequence[str | Task]


@dataclass(frozen=True)
class Evaluation:
    """`scores` has a row for each task and metric, `samples` one for each sample."""

    scores: pd.DataFrame
    samples: pd.DataFrame
    outcome: Outcome


@dataclass(frozen=True)
class Comparison:
    """`figures` has a row for each figure of each candidate, `samples` one for each sample of each candidate."""

    figures: pd.DataFrame
    samples: pd.DataFrame
    check: Check

    def save_html(self, file: str | Path) -> Path:
        from mill.report.html import write_report

        return write_report([self.check], Path(file))


def evaluate(
    model: Model,
    tasks: Tasks,
    *,
    output_dir: str | Path = "results",
    limit: int | float | None = None,
    batch_size: int | None = None,
    fresh: bool = False,
    exact: bool = False,
    judge: str | Spec | None = None,
    quiet: bool = True,
    **settings: Any,
) -> Evaluation:
    """Run tasks on a model, as `mill eval` does. `settings` are those of RenderSettings: n_shots, seed, gen_kwargs, …"""
    pandas = _pandas("mill.evaluate")
    _check_arguments([model], tasks, output_dir)
    selection, rendering, place = _selection(tasks), _rendering(settings), Path(output_dir)
    grader = parse_spec(judge) if isinstance(judge, str) else judge
    if isinstance(model, MillModel):
        check_writable(place)
        model.ready()
        judging = open_judge(grader, selection, place) if grader is not None else None
        options: dict[str, Any] = {"limit": limit, "fresh": fresh, "judging": judging}
        run = plan_run(_spec_of(model), model, selection, rendering, output_dir=place, **options)
    else:
        options = {"limit": limit, "batch_size": batch_size, "fresh": fresh, "exact": exact, "judge": grader}
        run = prepare(model, selection, rendering, output_dir=place, **options)
    outcome = run.execute(quiet=quiet)
    scores = [
        {"model": outcome.model, "task": task.task, "metric": name, **vars(estimate), "errors": task.errors}
        for task in outcome.tasks
        for name, estimate in task.metrics.items()
    ]
    return Evaluation(pandas.DataFrame(scores), pandas.DataFrame(_sample_rows(outcome)), outcome)


def compare(
    a: Model,
    b: Model | Sequence[Model],
    *,
    prompts: str | None = None,
    tasks: Tasks | None = None,
    labels: Sequence[str | None] | None = None,
    output_dir: str | Path = "results",
    limit: int | float | None = None,
    forced_tokens: int = FORCED_TOKENS,
    chat: bool | None = None,
    quiet: bool = True,
    **settings: Any,
) -> Comparison:
    """Compare models with the first, on a prompt suite or on tasks, as `mill compare` and `mill sweep` do.

    Without tasks the suite `numerics` is asked. Prompts go through the chat template where every model has one, unless
    `chat` says otherwise. The first sentence about each candidate is `check.variants[i].verdict`.
    """
    pandas = _pandas("mill.compare")
    models = [a, *(b if isinstance(b, Sequence) and not isinstance(b, str) else [b])]
    _check_arguments(models, [] if tasks is None else tasks, output_dir)
    if prompts is not None and not isinstance(prompts, str):
        raise SpecError(f"prompts is the name of a suite or a file, not {type(prompts).__name__}")
    if not isinstance(forced_tokens, int) or forced_tokens < 0:
        raise SpecError(f"forced_tokens={forced_tokens!r}: give a whole number of at least 0")
    if len(models) < 2:
        raise SpecError("mill.compare needs a model to compare with the first")
    if labels is not None and len(labels) != len(models):
        raise SpecError(f"{len(labels)} labels for {len(models)} models")
    if tasks is not None and prompts is not None:
        raise SpecError("give prompts or tasks, not both")
    rendering = _rendering({**settings, "gen_kwargs": {"logprobs": TOP_LOGPROBS, **settings.get("gen_kwargs", {})}})
    if tasks is not None:
        selection = _selection(tasks)
    else:
        selection = Selection(select_suites(split_list(prompts or "numerics")), ())
    asked = CheckConfig(selection, rendering, Path(output_dir), parse_limit(limit), quiet, chat=chat)
    specs = [_spec_of(model) if isinstance(model, MillModel) else _parsed(model) for model in models]
    named = labelled(specs, labels or [None] * len(models))
    subjects = [_subject(label, spec, model, asked) for (label, spec), model in zip(named, models, strict=True)]
    check = make_check("compare" if len(models) == 2 else "sweep", subjects, asked, forced_tokens=forced_tokens)
    check.save(asked.output_dir)
    figures = [
        {"label": one.label, "figure": name, **vars(estimate), "p_value": one.p_values.get(name)}
        for one in check.variants
        for name, estimate in one.figures.items()
    ]
    samples = [{"label": one.label, **row} for one in check.variants for row in one.rows]
    return Comparison(pandas.DataFrame(figures), pandas.DataFrame(samples), check)


def _check_arguments(models: Sequence[Any], tasks: Any, output_dir: Any) -> None:
    """One line for what the command line could not even say."""
    for model in models:
        if not isinstance(model, (str, Spec, MillModel)):
            raise SpecError(f"a model is a spec such as 'hf[path=org/name]' or a MillModel, not {type(model).__name__}")
    listed = tasks if isinstance(tasks, (list, tuple)) else [tasks]
    for task in listed:
        if not isinstance(task, (str, Task)):
            raise SpecError(f"tasks are names or Task objects, not {type(task).__name__}")
    if not isinstance(output_dir, (str, Path)):
        raise SpecError(f"output_dir is a path, not {type(output_dir).__name__}")
    check_path(str(output_dir))


def _rendering(settings: Mapping[str, Any]) -> RenderSettings:
    known = [one.name for one in fields(RenderSettings)]
    for name in settings:
        if name not in known:
            raise UnknownName("argument", name, known, hint=f"settings are {', '.join(known)}")
    return RenderSettings(**settings)


def _pandas(what: str) -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingPackage(what, "pandas", "frames") from None
    return pandas


def _selection(tasks: Tasks) -> Selection:
    """Names as on the command line, and tasks that were made in Python, each once."""
    load_builtin()
    given = split_list(tasks) if isinstance(tasks, str) else tasks
    named = select([task for task in given if isinstance(task, str)])
    return Selection((*named.tasks, *(task for task in given if isinstance(task, Task))), named.benchmarks)


def _parsed(model: str | Spec) -> Spec:
    return parse_spec(model) if isinstance(model, str) else model


def _subject(label: str, spec: Spec, model: Model, asked: CheckConfig) -> Subject:
    if not isinstance(model, MillModel):
        return open_subject(label, spec, asked)
    model.ready()
    return Subject(label, spec, model)


def _spec_of(model: MillModel) -> Spec:
    """A model that was made in Python has no spec; its class and name stand for it."""
    arguments: Mapping[str, Any] = model.arguments or {"path": model.model_name}
    return Spec(type(model).__name__, arguments)


def _sample_rows(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "task": task,
            "id": one.record.sample.id,
            "prompt": one.record.sent or one.record.prompt,
            "target": one.record.target,
            "texts": [response.text for repeat in one.record.responses for response in repeat],
            "log_probs": [response.score for repeat in one.record.responses for response in repeat],
            "error": one.error,
            **{name: values[0] if len(values) == 1 else values for name, values in one.values.items()},
        }
        for task, scored in outcome.scored.items()
        for one in scored
    ]
