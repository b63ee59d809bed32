"""From a spec and tasks to a plan: model opened, tasks planned, folder found. Whatever can be refused is refused here."""

from __future__ import annotations

from dataclasses import replace

from mill.api.budget import Prices
from mill.api.engine import INSTANCE, SAME
from mill.api.errors import SpecError
from mill.api.identity import identity_of
from mill.api.model import MillModel, Priced
from mill.execute.meter import JUDGE, MODEL
from mill.execute.workers import check_servers, check_workers
from mill.models.prefix.paths import MIXED_ROWS
from mill.models.spec.open import open_model, resolve_spec, split_chat_template, takes_argument
from mill.models.spec.parse import Spec, addresses_of, at_address, parse_spec
from mill.plan.sampling import groups_of
from mill.plan.task_plan import plan_tasks, refuse_early, refuse_unused
from mill.runs import files
from mill.runs.adaptive import refuse_metric, with_positions
from mill.runs.evaluate import Plan, RunConfig
from mill.score.judging import JudgeRunner, check_prompts, open_judge, refuse_without_judge
from mill.store.folder import MANIFEST, RESULTS, RunFolder, check_writable, newest_generation, run_folder
from mill.store.record import Record
from mill.store.schema import BenchmarkResult, SessionEntry, TaskEntry, TaskResult
from mill.store.session import read_entries
from mill.support.clocks import HASHING, LOADING, PLANNING, phase, take_seconds
from mill.support.files import refuse_links
from mill.support.terminal import warn
from mill.tasks.load import Selection


def plan(spec: Spec | str, selection: Selection, options: RunConfig, *, starts: bool = False) -> Plan:
    """Open the model and plan its run. With `starts`, where the run starts as soon as it is planned, weights may begin to
    load."""
    resolved, model, chat = open_for_run(spec, selection, options)
    settings = replace(options.settings, apply_chat_template=bool(chat))
    return plan_run(resolved, model, selection, replace(options, settings=settings), starts=starts)


def open_for_run(
    spec: Spec | str, selection: Selection, options: RunConfig, chat_option: str = ""
) -> tuple[Spec, MillModel, bool | None]:
    """The spec without the chat template, the model, and whether the template applies. Weights are not loaded; a server is
    checked. `chat_option` is how the user gave the template."""
    check_writable(options.output_dir)
    resolved = resolve_spec(parse_spec(spec) if isinstance(spec, str) else spec)
    refuse_early(selection, resolved.backend)
    refuse_unused(selection, options.settings)
    chat = True if options.settings.apply_chat_template else options.chat
    default = "--apply_chat_template" if chat else "apply_chat_template=false"
    resolved, chat = split_chat_template(resolved, chat, chat_option or default)
    if options.exact and takes_argument(resolved.backend, "exact"):
        resolved = Spec(resolved.backend, {**resolved.arguments, "exact": True})
    addresses = addresses_of(resolved)
    with phase(LOADING):  # some backends import their packages
        model = open_model(at_address(resolved, addresses[0]) if addresses else resolved, batch_size=options.batch_size)
    model.ready(options.wait)
    check_servers(resolved, model, options.wait)
    check_workers(options.workers, resolved)
    return resolved, model, chat


def plan_run(spec: Spec, model: MillModel, selection: Selection, options: RunConfig, *, starts: bool = False) -> Plan:
    """A run of a model that is open already."""
    settings = options.settings
    judging = None
    if options.judge is not None:
        judging = open_judge(options.judge, selection, options.output_dir, wait=options.wait)
    else:
        refuse_without_judge(selection.tasks)
    with phase(PLANNING):
        tasks = plan_tasks(model, selection, settings, options.samples)
    if starts and model.startup is not None:
        model.startup.expect([request for plan in tasks for state in plan.states for request in state.requests])
    recorded = plan_record(spec, model, options, judging)
    planned = replace(
        recorded,
        tasks=tasks,
        benchmarks=selection.benchmarks,
        groups=groups_of(selection),
        prices=_prices(model, recorded.judging, options),
    )
    if options.samples.staged and not options.steered:
        _refuse_undecidable(planned)
    if (stages := planned.stages()) is not None:
        planned = replace(planned, tasks=with_positions(tasks, stages.orders))
    if judging is not None:
        check_prompts(tasks)
    return replace(planned, seconds_before=take_seconds())


def _prices(model: MillModel, judging: JudgeRunner | None, options: RunConfig) -> Prices:
    """What tokens cost. A limit in dollars is refused where a price is not known."""
    models = {MODEL: (model, options.price, "--price")}
    if judging is not None:
        models[JUDGE] = (judging.model, options.judge_price, "--judge_price")
    own = {account: one.price() if isinstance(one, Priced) else None for account, (one, _, _) in models.items()}
    prices = {account: price or own[account] for account, (_, price, _) in models.items()}
    for account, (one, _, option) in models.items() if options.limits.cost is not None else ():
        if prices[account] is None:
            raise SpecError(
                f'--max_cost: the price of {one.model_name} is not known: give it with {option} "in=0.15,out=0.60" '
                "(dollars for a million tokens)"
            )
    return prices


def _refuse_undecidable(plan: Plan) -> None:
    """Refuse tasks that have no mean to decide about."""
    claim = plan.config.samples.decide
    if claim is not None and not 0 <= claim.bound <= 1:
        raise SpecError(f"--decide {claim.text}: the metrics of tasks that can be decided are between 0 and 1")
    for benchmark in plan.benchmarks if claim is not None else ():
        if not benchmark.weighted and any(group.name == benchmark.name for group in plan.groups):
            equal = f"{benchmark.name} gives its tasks equal weights"
            raise SpecError(f"--decide: {equal}, and a claim is about the mean over samples: decide about one of its tasks")
    for one in plan.tasks:
        refuse_metric(one.task, claim.metric if claim is not None else None)


def plan_record(spec: Spec, model: MillModel, options: RunConfig, judging: JudgeRunner | None = None) -> Plan:
    """A plan without tasks, with the folder where responses are recorded."""
    with phase(HASHING):
        identity = identity_of(model)
    settings, condition = options.settings, options.condition
    shown = {**files.shown_settings(settings), **({"condition": condition} if condition else {})}
    shown |= {"judge": judging.label} if judging is not None else {}
    folder = newest_generation(run_folder(options.output_dir, model.model_name, identity, shown), fresh=options.fresh)
    before = {name: value for name, value in identity.items() if name != "shared_prefixes"}
    earlier = run_folder(options.output_dir, model.model_name, before, shown)
    if before != identity and (earlier.path / RESULTS).exists():
        warn(f"{earlier.path} is not reused: {MIXED_ROWS}")
    # A run that was started fresh stays so when it is resumed: it never reuses responses of other runs.
    fresh = options.fresh or _was_fresh(folder)
    other_runs = [] if fresh or condition else folder.other_runs
    reuse = replace(options.reuse, now=frozenset(model.engines))
    if reuse.rule == INSTANCE and not model.is_server:  # its process ends with the command
        reuse = replace(reuse, rule=SAME)
    if reuse.rule == INSTANCE:  # a copy of another run's answer would look as if it were given now
        other_runs = []
    record = Record(folder.path, other_runs, shareable=not condition, root=folder.root, reuse=reuse)
    if judging is not None and fresh:  # a fresh run is judged afresh
        judging = replace(judging, folder=folder.path / "judge", root=folder.root)
    return Plan(spec, model, (), identity, folder, record, options, fresh, judging=judging)


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
    return bool(folder.read(MANIFEST).get("fresh"))
