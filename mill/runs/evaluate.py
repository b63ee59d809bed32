"""A plan and the run that it opens: answer samples, record, score.

    plan = plan_run(...)                 # plan.py: everything is decided and refused there
    with plan.open() as run:             # lock, record, session: the only place that writes the manifest
        run.answer(plan.states)          # asks what is not recorded, records what comes
        outcome = run.finish()           # judge, score, write

`Plan.execute` is this. Several ranks execute one plan together: each opens it, and rank 0 holds the lock for all and scores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from mill.api.budget import BudgetLimits, Price, Prices
from mill.api.engine import Reuse, answered_by
from mill.api.errors import MillError, RunError
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.task import Benchmark, RenderSettings
from mill.execute.executor import Answers, Executor, LocalBackend
from mill.execute.meter import MODEL, Meter
from mill.execute.sample_state import SampleState, run_samples
from mill.execute.workers import make_backend
from mill.metrics.aggregate import RepeatMetric
from mill.models.spec.parse import Spec
from mill.plan.sampling import SampleChoice, SampleGroup
from mill.plan.task_plan import TaskPlan
from mill.runs import files
from mill.runs.adaptive import DecisionStages, PrecisionStages, Stages, answer_in_stages, make_orders
from mill.runs.ranks import LockStepExecutor, Ranks, RankShare, check_same_plan
from mill.score.judging import JudgeRunner, judge_failures
from mill.score.results import changed_data, stopped_text, write_results
from mill.score.run_scores import Outcome, RunScores
from mill.store.folder import MANIFEST, RunFolder
from mill.store.record import Record
from mill.store.samples import RunSample, prompt_requests, store_unnamed, write_samples
from mill.store.schema import Decision
from mill.store.session import BEAT_S, BUDGET_BEAT_S, SessionFile, known_engines
from mill.support.clocks import SCORING, WRITING, add_seconds, phase, take_seconds
from mill.support.processes import deferred_interrupt
from mill.support.terminal import warn

FINISHED = ("finished", "stopped")  # how a session ends that was not disturbed


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run is made of beside its model and tasks, as `mill eval` and `mill.evaluate` get it."""

    output_dir: Path
    settings: RenderSettings = field(default_factory=RenderSettings)
    samples: SampleChoice = field(default_factory=SampleChoice)
    fresh: bool = False
    batch_size: int | None = None
    wait: float = 0.0
    """How many seconds a server may take to come up."""
    exact: bool = False
    """For backends that take it: the others share no computation that would have to be switched off."""
    chat: bool | None = None
    """Whether to apply the chat template; None leaves it to the settings and the spec."""
    workers: int | None = None
    """Of a model with several addresses; None is one for each."""
    judge: Spec | None = None
    repeat_metrics: tuple[RepeatMetric, ...] | None = None
    limits: BudgetLimits = field(default_factory=BudgetLimits)
    price: Price | None = None
    judge_price: Price | None = None
    steered: bool = False
    """Whether the caller takes the samples, part after part."""
    reuse: Reuse = field(default_factory=Reuse)
    """Which recorded answers are not asked for again; the plan adds what answers now."""
    condition: str = ""
    """What is measured, such as the number of requests in flight. Runs under a condition have their own folder and share no
    responses with other runs."""


@dataclass(frozen=True)
class Plan:
    """A model and its tasks, ready to run: all checks of the input have passed, and nothing is set on it any more."""

    spec: Spec
    model: MillModel
    tasks: Sequence[TaskPlan]
    identity: Mapping[str, Any]
    folder: RunFolder
    record: Record
    config: RunConfig
    fresh: bool = False
    """Whether the run was started fresh, perhaps by an earlier command."""
    benchmarks: Sequence[Benchmark] = ()
    groups: Sequence[SampleGroup] = ()
    judging: JudgeRunner | None = None
    prices: Prices = field(default_factory=dict)
    seconds_before: Mapping[str, float] = field(default_factory=dict)
    """How long each phase of planning took."""

    @property
    def states(self) -> list[SampleState]:
        """Those of a random sample are in the order of the draw, so that a budget ends with a smaller random sample."""
        states = [(plan.positions.get(state.sample.id, 0), state) for plan in self.tasks for state in plan.states]
        return [state for _, state in sorted(states, key=itemgetter(0))]

    def stages(self) -> Stages | None:
        """What decides which samples are next, where they are taken part after part."""
        choice = self.config.samples
        if self.config.steered or not choice.staged:
            return None
        orders = make_orders(self.groups, self.tasks, self.config.settings.seed or 0, stratified=choice.decide is None)
        if choice.decide is not None:
            return DecisionStages(orders, choice.decide)
        assert choice.precision is not None
        return PrecisionStages(orders, choice.precision)

    def tasks_with(self, states: Sequence[SampleState]) -> list[TaskPlan]:
        """The tasks with these samples alone."""
        chosen = set(map(id, states))
        return [replace(plan, states=[state for state in plan.states if id(state) in chosen]) for plan in self.tasks]

    def execute(self, *, quiet: bool = False, keep_model: bool = False) -> Outcome:
        """Run the requests that have no response yet, then score. An interruption loses no response.

        `keep_model` leaves the model loaded for a run that follows.
        """
        with self.open(quiet=quiet, keep_model=keep_model) as run:
            run.answer_all()
            return run.finish()

    def execute_together(self, ranks: Ranks, *, quiet: bool = False) -> Outcome | None:
        """The same as one of several ranks, of which the first has the outcome."""
        with self.open(quiet=quiet, ranks=ranks) as run:
            run.answer_all()
            if ranks.first:
                return run.finish()
            run.leave()
            return None

    @contextmanager
    def open(
        self,
        *,
        quiet: bool = False,
        keep_model: bool = False,
        ranks: Ranks | None = None,
    ) -> Iterator[Run]:
        """The run, locked and ready for samples. Its session ends with `Run.finish`, or with an error."""
        run = Run(self, ranks, quiet=quiet)
        with contextlib.ExitStack() as lock, contextlib.ExitStack() as ending:
            if ranks is not None:
                ending.enter_context(ranks.joined())
                # Before the folder is made: a rank that planned later would take it for an earlier run's.
                check_same_plan(ranks, self.states)
            lock.enter_context(run.session)
            if run.first:
                run.write_plan([] if self.config.samples.staged else self.tasks)
            if run.share is not None:
                run.share.start(run.session)
            else:
                run.session.take_turn()
            lock.enter_context(run.executor.metered(run.meter, MODEL))
            ending.enter_context(run.until_answered(keep_model=keep_model))
            self.record.refresh()
            run.ending = ending
            yield run


class Run:
    """An open plan: answers samples, then scores all of them."""

    ending: contextlib.ExitStack

    def __init__(self, plan: Plan, ranks: Ranks | None = None, *, quiet: bool = False) -> None:
        self.plan, self.ranks = plan, ranks
        self.first = ranks is None or ranks.first
        self.quiet = quiet or not self.first
        self.executor = self._make_executor()
        self.share = RankShare(ranks, self.executor, plan.record) if ranks is not None else None
        self.session = self._make_session()
        self.meter = Meter(plan.config.limits, plan.prices, self.session, processes=ranks.size if ranks is not None else 1)
        self.answered: list[SampleState] = []
        self._ahead = files.SamplesAhead(plan.folder, plan.model)
        self._entry: dict[str, Any] = {}
        self.decisions: list[Decision] = []
        self.precision: dict[str, str] = {}
        """How precise the scores are, by task or benchmark, where that was the goal."""

    def _make_session(self) -> SessionFile:
        tasks = [one.task.name for one in self.plan.tasks] if self.first else []  # rank 0 waits for all
        beat_s = BUDGET_BEAT_S if self.plan.config.limits else BEAT_S
        elsewhere = self.share.sessions if self.share is not None else None
        return SessionFile(self.plan.folder, tasks, beat_s=beat_s, elsewhere=elsewhere)

    def _make_executor(self) -> Executor:
        plan = self.plan
        if self.ranks is None:
            backend = make_backend(plan.config.workers, plan.spec, plan.model)
            return Executor(backend, plan.record, quiet=self.quiet, on_first_response=self._start_ahead)
        if not plan.model.lock_step:
            return Executor(LocalBackend(plan.model), plan.record, quiet=self.quiet)
        padding = {state.first_request.kind: state.first_request.clones()[0] for state in plan.states}
        return LockStepExecutor(plan.model, plan.record, self.ranks, padding, quiet=self.quiet)

    @property
    def tasks(self) -> Sequence[TaskPlan]:
        """The tasks with the samples that are part of the run: all, or those that were taken so far."""
        return self.plan.tasks_with(self.answered) if self.plan.config.samples.staged else self.plan.tasks

    def ask(self, requests: Sequence[Request]) -> Answers:
        """Answer requests that belong to no task."""
        return self.executor.run(requests)

    def answer(self, states: Sequence[SampleState]) -> None:
        """Ask what is not recorded, until every dialog is over. Where the answers to earlier samples were superseded, those
        are asked again."""
        superseded = self.executor.superseded
        self.answered += states
        if self.first and self.plan.config.samples.staged:
            self.write_plan(self.tasks)
        self._answer(states)
        if any(self.exchange(self.executor.superseded != superseded)):
            for state in self.answered:
                state.reset()
            self._answer(self.answered)

    def _answer(self, states: Sequence[SampleState]) -> None:
        if self.share is not None:
            self.share.answer(states)
        else:
            run_samples(self.executor, states)

    def exchange(self, value: Any) -> list[Any]:
        """The value of every rank."""
        return self.ranks.exchange(value) if self.ranks is not None else [value]

    def answer_all(self) -> None:
        """Answer the samples of the plan, part after part where one decides about the next."""
        stages = self.plan.stages()
        if stages is None:
            self.answer(self.plan.states)
        else:
            answer_in_stages(self, stages)

    @property
    def scores(self) -> RunScores:
        """How the samples are scored, with what is known by now."""
        return RunScores(self.plan, self.tasks, self.decisions, self.meter.stopped)

    def leave(self) -> None:
        """End the session."""
        if self.share is not None:
            self.share.end(self.session)
        if self.first:
            self._ahead.finish_prompts(self.answered)
        self.ending.close()

    def write_plan(self, tasks: Sequence[TaskPlan]) -> None:
        """Write the manifest, and the samples of tasks that no earlier session has written: before they are answered, or
        beside that."""
        plan = self.plan
        if not plan.config.condition:  # the texts that a check scores are other ones each time
            for warning in changed_data(plan.folder, {one.task.name: one.data_hash for one in tasks}):
                warn(warning)
        covered = files.update_manifest(self.session, plan, tasks)
        if not plan.config.samples.staged:  # else more samples come with every part, and the files at the end
            self._ahead.unwritten = [one for one in tasks if one.task.name not in covered]
        startup = plan.model.startup
        if self.ranks is not None or startup is None or not startup.loading or not self._ahead.fixed:
            self._ahead.write()  # else at the first response: until then the interpreter has enough to do

    def _start_ahead(self) -> None:
        if self._ahead.unwritten:
            self._ahead.start(self.answered)

    @contextmanager
    def until_answered(self, *, keep_model: bool) -> Iterator[None]:
        """The time in which the model answers; however it ends, the manifest gets an entry of the session."""
        ended = "failed"
        try:
            yield
            ended = "stopped" if self.executor.stopped else "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            raise
        finally:
            with deferred_interrupt(repeat=ended in FINISHED):
                self._end_session(ended, keep_model=keep_model)

    def _end_session(self, ended: str, *, keep_model: bool) -> None:
        backend, record = self.executor.backend, self.plan.record
        try:
            record.close()
        finally:
            if not keep_model or ended not in FINISHED:
                backend.close()
        if not self.first:
            if ended in FINISHED:
                record.refuse_removed()
            return
        # On a full disk this fails too, and then the first failure is the one to report.
        with contextlib.suppress(RunError) if ended == "failed" else contextlib.nullcontext():
            self._refuse_removed()
            if self.plan.config.samples.staged and ended not in FINISHED:
                self._ahead.unwritten = self.tasks
            self._ahead.finish_files()
            self._entry = files.write_session(
                self.session,
                tally=self.executor.tally,
                ended=ended,
                warnings=backend.warnings(),
                paths=backend.execution_paths(),
                engines=backend.engines(),
                device=backend.compute_device(),
                timing=None if ended in FINISHED else self._timing(),
            )

    def _timing(self) -> dict[str, float]:
        return add_seconds(dict(self.plan.seconds_before), take_seconds())

    def _refuse_removed(self) -> None:
        """A folder that was removed during the run is not made again: it would look like a run without responses."""
        self.plan.record.refuse_removed()
        path = self.plan.folder.path
        if not (path / MANIFEST).exists():
            raise RunError(f"{path} was removed or moved during the run: run the same command again")

    def finish(self) -> Outcome:
        """End the session, then judge, score and write the results."""
        self.leave()
        plan, tasks = self.plan, self.tasks
        records = {one.task.name: list(map(self._ahead.answered, one.states)) for one in tasks}
        breakdown = self._judge(records)
        with phase(SCORING):
            scores = self.scores
            scored = {one.task.name: scores.scored(one.task, records[one.task.name]) for one in tasks}
            results, means = scores.results(scored)
        with phase(WRITING):
            written = write_results(self.session, results, plan.benchmarks, self.decisions)
            plan.folder.unmark_superseded(written)
            for name in written:
                write_samples(plan.folder, plan.model.model_name, name, scored[name])
            store_unnamed(plan.folder, (one for state in self.answered for one in prompt_requests(state)[-1].media))
            self._refuse_removed()
            files.write_timing(self.session, self._entry, self._timing())
        engines = known_engines(plan.folder)
        return Outcome(
            plan.model.model_name,
            plan.folder,
            list(results.values()),
            means,
            self.executor.tally,
            self.session.state.seconds,
            [*self.executor.backend.warnings(), *breakdown],
            scored,
            judge_failures=len(breakdown) + sum(map(judge_failures, scored.values())),
            stopped=stopped_text(self.meter.stopped, list(results.values()), staged=scores.staged),
            spent=self.meter.spent_text(),
            precision=self.precision,
            decisions=self.decisions,
            answered=answered_by(engines, [*plan.record.reused, *((name, "") for name in self.executor.backend.engines())]),
            reused=str(answered_by(engines, [*plan.record.reused])),
        )

    def _judge(self, records: Mapping[str, list[RunSample]]) -> list[str]:
        """Have the responses judged; the warnings of a judge that breaks down, whose other scores stay."""
        plan = self.plan
        if plan.judging is None:
            return []
        try:
            judged = [(one.task, records[one.task.name]) for one in self.tasks if one.task.judge]
            plan.judging.judge(judged, quiet=self.quiet, meter=self.meter)
        except MillError as error:
            warn(warning := f"the judge broke down: {error}")
            return [warning]
        return []
