"""From a spec and tasks to a run that is ready: model opened, tasks planned, folder found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mill.api.budget import BudgetLimits, Price
from mill.api.errors import RunError, SpecError
from mill.api.identity import identity_of
from mill.api.model import MillModel
from mill.api.storage import refuse_links
from mill.api.task import RenderSettings
from mill.api.timing import HASHING, LOADING, PLANNING, phase, take_seconds
from mill.api.validate import convert
from mill.api.warnings import warn
from mill.execute.budget import JUDGE, MODEL
from mill.execute.choose import LOCAL, ExecutorChoice, check_servers
from mill.models.prefix.paths import MIXED_ROWS
from mill.models.spec.open import open_model, resolve_spec, split_chat_template, takes_argument
from mill.models.spec.parse import Spec, addresses_of, at_address, parse_spec
from mill.runs import manifest
from mill.runs.decisions import DecisionStages
from mill.runs.evaluate import Run
from mill.runs.folder import MANIFEST, RESULTS, RunFolder, check_writable, newest_generation, run_folder
from mill.runs.judging import JudgeRunner, check_prompts, open_judge, refuse_without_judge
from mill.runs.plan import plan_tasks, refuse_early, refuse_unused
from mill.runs.record import Record
from mill.runs.sampling import SampleChoice, groups_of
from mill.runs.schema import BenchmarkResult, SessionEntry, StartedManifest, TaskEntry, TaskResult
from mill.runs.shared import read_entries
from mill.runs.stages import PrecisionStages, Stages, make_orders, refuse_metric
from mill.tasks.load import Selection


def prepare(
    spec: Spec | str,
    selection: Selection,
    settings: RenderSettings,
    *,
    output_dir: Path,
    limit: int | float | None = None,
    samples: SampleChoice | None = None,
    fresh: bool = False,
    batch_size: int | None = None,
    wait: float = 0.0,
    exact: bool = False,
    choice: ExecutorChoice | None = None,
    judge: Spec | None = None,
    chat: bool | None = None,
    starts: bool = False,
) -> Run:
    """Open the model, plan the tasks and find the run's folder. With `starts`, where the run starts as soon as it is
    planned, weights may begin to load.

    `samples` chooses those that run; `limit` is short for the first ones of each task.
    `chat` is what the user gave as --apply_chat_template; None leaves it to the settings and the spec. A server is checked
    first; `wait` is how many seconds it may take to come up. `exact` is passed to backends that take it: the others share no
    computation that would have to be switched off.
    """
    check_writable(output_dir)
    resolved = resolve_spec(parse_spec(spec) if isinstance(spec, str) else spec)
    refuse_early(selection, resolved.backend)
    refuse_unused(selection, settings)
    chat = True if settings.apply_chat_template else chat
    resolved, chat = split_chat_template(resolved, chat, _chat_option(chat))
    settings = replace(settings, apply_chat_template=bool(chat))
    if exact and takes_argument(resolved.backend, "exact"):
        resolved = Spec(resolved.backend, {**resolved.arguments, "exact": True})
    addresses = addresses_of(resolved)
    with phase(LOADING):  # some backends import their packages
        model = open_model(at_address(resolved, addresses[0]) if addresses else resolved, batch_size=batch_size)
    choice = choice or ExecutorChoice()
    model.start_hashing()
    model.ready(wait)
    check_servers(resolved, model, wait)
    judging = open_judge(judge, selection, output_dir, wait=wait) if judge is not None else None
    how: dict[str, Any] = {"limit": limit, "samples": samples, "fresh": fresh, "judging": judging}
    how["starts"] = starts and choice.executor == LOCAL
    run = plan_run(resolved, model, selection, settings, output_dir=output_dir, **how)
    run.choice = choice
    run.choice.check(resolved)
    return run


def set_budget(run: Run, limits: BudgetLimits, price: Price | None = None, judge_price: Price | None = None) -> None:
    """Give a run its budget. A limit in dollars is refused where a price is not known."""
    prices = {MODEL: price or run.model.price()}
    if run.judging is not None:
        prices[JUDGE] = judge_price or run.judging.model.price()
    run.limits, run.prices = limits, prices
    for account, known in prices.items() if limits.cost is not None else ():
        if known is None:
            name = run.model.model_name if account == MODEL or run.judging is None else run.judging.model.model_name
            option = "--price" if account == MODEL else "--judge_price"
            raise SpecError(
                f'--max_cost: the price of {name} is not known: give it with {option} "in=0.15,out=0.60" '
                "(dollars for a million tokens)"
            )


def _chat_option(chat: bool | None) -> str:
    return "--apply_chat_template" if chat else "apply_chat_template=false"


def plan_run(
    spec: Spec,
    model: MillModel,
    selection: Selection,
    settings: RenderSettings,
    *,
    output_dir: Path,
    limit: int | float | None = None,
    samples: SampleChoice | None = None,
    in_stages: bool = True,
    fresh: bool = False,
    condition: str = "",
    judging: JudgeRunner | None = None,
    starts: bool = False,
) -> Run:
    """A run of a model that is open already.

    A `condition` names what is measured, such as the number of requests in flight. Runs under a condition have their own
    folder and share no responses with other runs. Without `in_stages` the caller takes the samples of a run in parts.
    """
    if judging is None:
        refuse_without_judge(selection.tasks)
    chosen = samples or SampleChoice(limit=limit)
    with phase(PLANNING):
        plans = plan_tasks(model, selection, settings, chosen)
    if starts:
        model.start_loading([request for plan in plans for state in plan.states for request in state.requests])
    run = record_run(spec, model, settings, output_dir=output_dir, fresh=fresh, condition=condition, judging=judging)
    run.plans, run.benchmarks, run.groups = plans, selection.benchmarks, groups_of(selection)
    if chosen.staged and in_stages:
        run.stages = _stages(run, chosen)
        run.stages.take(run.stages.start())
    if judging is not None:
        check_prompts(plans)
    run.seconds_before = take_seconds()
    return run


def _stages(run: Run, samples: SampleChoice) -> Stages:
    """Refuses tasks that have no mean to decide about."""
    claim = samples.decide
    if claim is not None and not 0 <= claim.bound <= 1:
        raise SpecError(f"--decide {claim.text}: the metrics of tasks that can be decided are between 0 and 1")
    for benchmark in run.benchmarks if claim is not None else ():
        if not benchmark.weighted and any(group.name == benchmark.name for group in run.groups):
            equal = f"{benchmark.name} gives its tasks equal weights"
            raise SpecError(f"--decide: {equal}, and a claim is about the mean over samples: decide about one of its tasks")
    for plan in run.plans:
        refuse_metric(plan.task, claim.metric if claim is not None else None)
    orders = make_orders(run.groups, run.plans, run.settings.seed or 0, stratified=claim is None)
    if claim is not None:
        return DecisionStages(orders, claim)
    assert samples.precision is not None
    return PrecisionStages(orders, samples.precision)


def record_run(
    spec: Spec,
    model: MillModel,
    settings: RenderSettings,
    *,
    output_dir: Path,
    fresh: bool = False,
    condition: str = "",
    judging: JudgeRunner | None = None,
) -> Run:
    """A run without tasks, with the folder where its responses are recorded."""
    with phase(HASHING):
        identity = identity_of(model)
    shown = {**manifest.shown_settings(settings), **({"condition": condition} if condition else {})}
    shown |= {"judge": judging.label} if judging is not None else {}
    folder = newest_generation(run_folder(output_dir, model.model_name, identity, shown), fresh=fresh)
    before = {name: value for name, value in identity.items() if name != "shared_prefixes"}
    earlier = run_folder(output_dir, model.model_name, before, shown)
    if before != identity and (earlier.path / RESULTS).exists():
        warn(f"{earlier.path} is not reused: {MIXED_ROWS}")
    # A run that was started fresh stays so when it is resumed: it never reuses responses of other runs.
    fresh = fresh or _was_fresh(folder)
    other_runs = [] if fresh or condition else folder.other_runs
    record = Record(folder.path, other_runs, shareable=not condition, root=folder.root)
    run = Run(spec, model, [], (), settings, identity, folder, record, fresh, condition)
    if judging is not None:
        # A fresh run is judged afresh.
        run.judging = replace(judging, folder=folder.path / "judge", root=folder.root) if fresh else judging
    return run


def _was_fresh(folder: RunFolder) -> bool:
    """Whether the run was started fresh. Files that cannot be read are refused here, before anything is computed."""
    refuse_links(folder.path, folder.root)
    for file, section, kind in (
        (MANIFEST, "tasks", TaskEntry),
        (MANIFEST, "sessions", SessionEntry),
        (RESULTS, "tasks", TaskResult),
        (RESULTS, "benchmarks", BenchmarkResult),
    ):
        read_entries(folder, file, section, kind)
    return convert(folder.read(MANIFEST), StartedManifest, folder.path / MANIFEST, RunError).fresh
