"""The tasks of a plan, made before weights load: which rendering of each task, which samples, which requests."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mill.api.errors import CannotServe, SpecError
from mill.api.message import Message
from mill.api.model import MillModel, ModelCapabilities, has_chat_template
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, Request, option_name
from mill.api.task import RenderSettings, Sample, Task
from mill.execute.sample_state import SampleState
from mill.models.spec.backends import backend_info, backends_serving
from mill.plan.sampling import (
    SampleChoice,
    describe_choice,
    groups_of,
    refuse_too_few,
    resolve_count,
    stratified_order,
)
from mill.sandbox.programs import refuse_unsafe_code, sandbox_warnings
from mill.store.schema import SampledData
from mill.support.files import hash_docs
from mill.tasks import hooks
from mill.tasks.load import Selection, letter_rendering, renderings, serve
from mill.tasks.suite import ForcedTask


@dataclass(frozen=True)
class TaskPlan:
    """One task of a run. `requested` is the name that the user gave; another rendering of it may run."""

    requested: str
    task: Task
    states: Sequence[SampleState]
    """The samples that run, or may, in the order of the data."""
    total: int
    data_hash: str
    task_warnings: Sequence[str] = ()
    sampled: SampledData | None = None
    """How the states were chosen, where they are not all of the data."""
    positions: Mapping[str | int, int] = field(default_factory=dict)
    """Of a random sample: the position of each sample, by its id, in the order in which those of its group are drawn."""

    @property
    def n_shots(self) -> int:
        shots = self.states[0].settings.n_shots if self.states else None
        return self.task.n_shots if shots is None or not self.task.takes_shots else shots

    def warnings(self, ran: int | None = None) -> list[str]:
        """What a reader of the score must know: another rendering, another split, an option that does not apply. `ran` is
        how many of the samples did, where a budget left some out."""
        lines = list(self.task_warnings)
        if self.requested != self.task.name:
            lines.insert(0, f"{self.task.name} runs instead of {self.requested}, which this model cannot serve")
        if self.states and self.states[0].settings.n_shots and not self.task.takes_shots:
            lines.append("this task takes no examples, so --n_shots does not apply")
        if self.states and self.task.kind not in (GENERATE, MULTI_ROUND):
            unused = _spellings(self.states[0].settings.gen_kwargs)
            if unused:
                apply = "does not apply" if len(unused) == 1 else "do not apply"
                lines.append(f"this task generates no text, so {' and '.join(unused)} {apply}")
        return [*lines, *self.sampled_part(ran), *sandbox_warnings(self.task), *self.without_effect()]

    def sampled_part(self, ran: int | None = None) -> list[str]:
        """Which part of the data runs."""
        n = len(self.states) if ran is None else ran
        part = describe_choice(self.sampled, n, self.total) if self.sampled is not None else ""
        return [part] if part else []

    def without_effect(self) -> list[str]:
        """Sampling options that have no effect, because decoding is greedy."""
        if not self.states or not self.states[0].first_request.deterministic:
            return []
        settings, lines = self.states[0].settings, []
        if settings.repeats > 1:
            lines.append(
                f"decoding is greedy, so all {settings.repeats} repeats give the same response; "
                "--gen_kwargs temperature=0.7 would sample"
            )
        if settings.gen_kwargs.get("seed") is not None and self.task.kind in (GENERATE, MULTI_ROUND):
            lines.append("decoding is greedy, so the seed of --gen_kwargs has no effect")
        return lines

    def requests(self) -> list[Request]:
        return [request for state in self.states for request in state.open_requests()]


def _spellings(decoding: Mapping[str, Any]) -> list[str]:
    """The options that a user gave to set these decoding options. Checks request `logprobs` by themselves."""
    names = sorted({option_name(name) for name in decoding} - {"logprobs"})
    others = [name for name in names if name != "max_gen_toks"]
    limit = ["--max_tokens (max_gen_toks)"] if len(others) < len(names) else []
    return limit + ([f"--gen_kwargs {','.join(others)}"] if others else [])


def parse_limit(given: str | int | float | None) -> int | float | None:
    """A count (`100`) or a fraction of each task (`0.1`, `1.0`). None means all."""
    if given is None:
        return None
    limit: int | float = -1
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            limit = float(given) if "." in given or "e" in given.lower() else int(given)
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        limit = given
    if not limit > 0 or (isinstance(limit, float) and limit > 1):
        raise SpecError(f"--limit {str(given)[:60]}: give a count of at least 1, or a fraction above 0 and up to 1.0")
    return limit


def plan_tasks(model: MillModel, selection: Selection, settings: RenderSettings, choice: SampleChoice) -> list[TaskPlan]:
    """Check every task against the model, load its data and render its requests. All refusals happen here.

    With `sample_ids`, only these samples run; tasks that have none of them are left out.
    """
    choice = replace(choice, limit=parse_limit(choice.limit))
    if not selection.tasks:
        raise SpecError("no task is given: `mill ls tasks` lists them")
    for task in selection.tasks:
        hooks.check_attributes(task)
    refuse_unused(selection, settings)
    framed = settings.apply_chat_template
    chat = framed or model.use_chat_template
    settings = replace(settings, apply_chat_template=chat)
    if settings.fewshot_as_multiturn and not chat:
        raise SpecError("--fewshot_as_multiturn needs --apply_chat_template")
    refuse_unsafe_code(selection.tasks)
    served = [(task, _served(task, model, selection)) for task in selection.tasks]
    for _, task in served:
        _refuse_choice_options(task, settings)
    if chat and not has_chat_template(model):
        raise SpecError(f"{model.model_name} has no chat template: leave out --apply_chat_template and use_chat_template")
    for _, task in served:
        if task.multi_round and not has_chat_template(model):
            raise CannotServe(f"{task.name} is a dialog, and {model.model_name} has no chat template")
    data = [(requested.name, task, _load(task, settings)) for requested, task in served]
    chosen = _chosen(selection, data, choice, settings.seed or 0)
    plans = [_plan(name, task, samples, settings, choice, chosen[name]) for name, task, samples in data]
    if choice.sample_ids:
        plans = _with_samples(plans, choice.sample_ids)
    for plan in plans if framed else ():
        for state in plan.states:
            state.requests[:] = [_as_dialog(plan.task, request) for request in state.requests]
    for index, plan in enumerate(plans):
        first = plan.states[0].open_requests()[0]
        if first.tools and not model.capabilities.supports_tools:
            raise CannotServe(f"{plan.task.name} needs tools, which {model.model_name} ({type(model).__name__}) cannot call")
        needed = [name for name in ("reasoning_effort", "chat_template_kwargs") if getattr(settings, name)]
        if needed and isinstance(first.context, str):
            raise SpecError(f"--{needed[0]} needs --apply_chat_template: {plan.task.name} sends plain text")
        with_media = next((request for state in plan.states for request in state.open_requests() if request.media), first)
        checked = [first] if with_media is first else [first, with_media]
        lines = dict.fromkeys(line for request in checked for line in model.check(request) or ())
        plans[index] = replace(plan, task_warnings=[*plan.task_warnings, *lines])
    return plans


def refuse_early(selection: Selection, backend: str) -> None:
    """Refuse what a built-in backend can never serve, before its package is imported or its server reached."""
    info = backend_info(backend)
    if info is None or not info.kinds:  # only the opened model knows
        return
    everything = ModelCapabilities(modalities={"text", "image", "video", "audio"}, kinds=info.kinds)
    for task in selection.tasks:
        serve(task, everything, f"the backend {backend}", _alternatives(task, selection))


def refuse_unused(selection: Selection, settings: RenderSettings) -> None:
    """Refuse options that none of the tasks uses, or one of them cannot take, before the model is opened."""
    for task in selection.tasks if settings.choice_options else ():
        if not any(form.takes_choice_options for form in renderings(task)):
            _refuse_choice_options(task, settings)
    served = [rendering for task in selection.tasks for rendering in renderings(task)]
    if settings.max_rounds is not None and not any(task.multi_round for task in served):
        raise SpecError(f"--max_rounds has no effect: {_none_of(selection)} a dialog")
    if settings.max_tool_output is not None and not any(task.multi_round and task.executes_tools for task in served):
        raise SpecError(f"--max_tool_output has no effect: {_none_of(selection)} a dialog with tools")


def _none_of(selection: Selection) -> str:
    names = [task.name for task in selection.tasks]
    return f"{names[0]} is not" if len(names) == 1 else f"none of the {len(names)} tasks is"


def _as_dialog(task: Task, request: Request) -> Request:
    """A prompt that a task gives as plain text, without `RenderSettings.frame`, as a chat message. Documents stay as they
    are, and so do texts that a check prepared."""
    plain = isinstance(request.context, str) and request.kind in (GENERATE, LOGLIKELIHOOD)
    if not plain or task.own_prompts or isinstance(task, ForcedTask):
        return request
    return replace(request, context=(Message("user", request.text),))


def _served(task: Task, model: MillModel, selection: Selection) -> Task:
    details = filter(None, [*model.warnings(), model.no_logprobs])
    who = f"{model.model_name} ({': '.join(filter(None, [type(model).__name__, '; '.join(details)]))})"
    return serve(task, model.capabilities, who, _alternatives(task, selection))


def _alternatives(task: Task, selection: Selection) -> str:
    """The backends that serve a task, and its rendering for models without log-probabilities, which does not run by itself:
    its scores are not comparable."""
    backends = backends_serving(renderings(task))
    by_letter = letter_rendering(task, selection)
    return f"backends that do: {', '.join(backends) or 'none of the built-in ones'}" + (
        f"; {by_letter} needs no log-probabilities: the model generates the letter of a choice" if by_letter else ""
    )


def _refuse_choice_options(task: Task, settings: RenderSettings) -> None:
    given = settings.choice_options
    if given and not task.takes_choice_options:
        instead = f", but for {task.by_letter}" if task.by_letter else ""
        what = f"{given[0]} is for tasks where the model generates the letter of a choice"
        raise SpecError(f"{what}: not for {task.name}{instead}")


def _with_samples(plans: Sequence[TaskPlan], sample_ids: Collection[str]) -> list[TaskPlan]:
    """The plans that have one of the samples; an id that no task has is refused."""
    found = {str(state.sample.id) for plan in plans for state in plan.states}
    missing = [name for name in sample_ids if name not in found]
    if missing:
        names = ", ".join(plan.task.name for plan in plans[:5])
        raise SpecError(f"--sample_ids {missing[0][:80]}: no sample of {names} within the limit has this id")
    return [plan for plan in plans if plan.states]


def _load(task: Task, settings: RenderSettings) -> list[Sample]:
    hooks.call(task, "configure()", lambda: task.configure(settings))
    samples = hooks.read_samples(task)
    hooks.check_metrics(task)
    return samples


def _chosen(
    selection: Selection, data: Sequence[tuple[str, Task, Sequence[Sample]]], choice: SampleChoice, seed: int
) -> dict[str, dict[int, int]]:
    """The samples of each task that may run, by the name that the user gave: their indices in the data with their positions
    in the order in which they run."""
    if choice.sample is None:
        counts = {name: resolve_count(choice.limit, len(samples)) for name, _, samples in data}
        return {name: {index: index for index in range(count)} for name, count in counts.items()}
    chosen: dict[str, dict[int, int]] = {name: {} for name, _, _ in data}
    for group in groups_of(selection):
        members = {name: (task, samples) for name, task, samples in data if name in group.tasks}
        sizes = [len(samples) for _, samples in members.values()]
        count = resolve_count(choice.sample, sum(sizes))
        refuse_too_few(count, sizes, group.name, f"sample {choice.sample:g}")
        for position, (name, index) in enumerate(stratified_order(members, seed)[:count]):
            chosen[name][index] = position
    return chosen


def _plan(
    requested: str,
    task: Task,
    samples: Sequence[Sample],
    settings: RenderSettings,
    choice: SampleChoice,
    positions: Mapping[int, int],
) -> TaskPlan:
    chosen = [samples[index] for index in sorted(positions)]
    if choice.sample_ids:
        chosen = [sample for sample in chosen if str(sample.id) in choice.sample_ids]
    hooks.call(task, "prepare()", lambda: task.prepare(chosen, settings))
    states = [SampleState.of(task, sample, settings) for sample in chosen]
    for sample in chosen:
        hooks.check_sample(task, sample)
    data_hash = hooks.call(task, "a row of samples()", lambda: hash_docs([sample.doc for sample in samples]))
    sampled = choice.data(task, samples, settings.seed or 0)
    drawn: dict[str | int, int] = {}
    if choice.sample is not None:
        drawn = {samples[index].id: position for index, position in positions.items()}
    return TaskPlan(requested, task, states, len(samples), data_hash, hooks.read_warnings(task), sampled, drawn)
