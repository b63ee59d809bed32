"""One run, planned already (prepare.py): execute, record, score. `mill eval` does this once for each model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from mill.api.budget import BudgetLimits, Prices
from mill.api.errors import MillError, RunError
from mill.api.interrupts import deferred_interrupt
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.task import Benchmark, RenderSettings
from mill.api.timing import SCORING, WRITING, add_seconds, phase, take_seconds
from mill.api.warnings import warn
from mill.execute.account import Account
from mill.execute.backend import LocalBackend
from mill.execute.budget import MODEL, RunBudget
from mill.execute.choose import ExecutorChoice, make_backend
from mill.execute.executor import Executor
from mill.execute.lockstep import LockStepExecutor
from mill.execute.ranks import Ranks
from mill.execute.sample_state import SampleState, run_samples
from mill.metrics.repeats import RepeatMetric
from mill.models.spec.parse import Spec
from mill.runs import manifest
from mill.runs.advisory_lock import advisory_lock
from mill.runs.benchmark_means import summarize_benchmarks
from mill.runs.folder import MANIFEST, RunFolder
from mill.runs.judging import (
    JudgeRunner,
    judge_failures,
)
from mill.runs.ledger import LedgerFile
from mill.runs.media_files import store_unnamed
from mill.runs.multi_rank import RankShare, check_same_plan
from mill.runs.outcome import Outcome
from mill.runs.plan import TaskPlan
from mill.runs.planned_samples import PlannedSamples
from mill.runs.record import Record
from mill.runs.rendered_prompts import RenderedPrompts
from mill.runs.results import changed_data, stopped_text, write_results
from mill.runs.run_scores import RunScores
from mill.runs.samples import SampleRecord, ScoredSample, from_state, prompt_requests, write_samples
from mill.runs.sampling import SampleGroup
from mill.runs.schema import BenchmarkResult, TaskResult
from mill.runs.scored_from import ScoreInputs
from mill.runs.stages import Stages
from mill.sandbox import sandbox_label

FINISHED = ("finished", "stopped")  # how a session ends that was not disturbed


@dataclass
class OpenRun:
    """A run in its session: answers samples, then scores all of them."""

    run: Run
    executor: Executor
    session: manifest.Session
    ending: contextlib.ExitStack
    quiet: bool
    answered: list[SampleState] = field(default_factory=list)

    def answer(self, states: Sequence[SampleState]) -> None:
        superseded = self.executor.superseded
        run_samples(self.executor, states)
        if self.executor.superseded != superseded and self.answered:
            for state in self.answered:
                state.reset()
            run_samples(self.executor, self.answered)
        self.answered += states

    def finish(self) -> Outcome:
        self.run._prompts.finish(self.run.states)
        self.ending.close()
        return self.run._score(self.executor, self.session, quiet=self.quiet)

    def scored_before(self) -> Outcome | None:
        """The outcome with the scores that the folder has, where nothing changed that they were computed from."""
        run, tally = self.run, self.executor.tally
        results = None if run.limits or run.judging else run._score_inputs.unchanged()
        if results is None:
            return None
        keys = [clone.key for state in run.states for request in state.requests for clone in request.clones()]
        tally.requested, tally.known = len(keys), len(set(keys))
        self.ending.close()
        with phase(WRITING):
            write_results(run.folder, results, run.benchmarks)  # which someone may have edited or removed
        return run._outcome(self.executor, self.session, results, summarize_benchmarks(results, run.benchmarks))


@dataclass
class Run:
    """A model and its tasks, planned and ready to run: all checks of the input have passed."""

    spec: Spec
    model: MillModel
    plans: list[TaskPlan]
    benchmarks: Sequence[Benchmark]
    settings: RenderSettings
    identity: Mapping[str, Any]
    folder: RunFolder
    record: Record
    fresh: bool
    condition: str = ""
    choice: ExecutorChoice = field(default_factory=ExecutorChoice)
    judging: JudgeRunner | None = None
    repeat_metrics: Sequence[RepeatMetric] | None = None
    """Over the repeats of a sample; None for the default ones."""
    limits: BudgetLimits = field(default_factory=BudgetLimits)
    """The budget of the run, over all processes that ever work on it."""
    prices: Prices = field(default_factory=dict)
    stages: Stages | None = None
    """Where the samples are taken one part after another."""
    groups: Sequence[SampleGroup] = ()
    seconds_before: dict[str, float] = field(default_factory=dict)
    """How long each phase before the first request took."""
    _budget: RunBudget | None = field(default=None, repr=False)
    on_start: Callable[[Executor], None] | None = None
    """Called once, when the manifest is written and before the first request."""
    _planned: PlannedSamples | None = field(default=None, repr=False)
    _prompts: RenderedPrompts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._prompts = RenderedPrompts(self.model)

    def execute(self, *, quiet: bool = False, keep_model: bool = False, samples_needed: bool = True) -> Outcome:
        """Run the requests that have no response yet, then score. An interruption loses no response.

        `keep_model` leaves the model loaded for a run that follows. Without `samples_needed` the outcome may lack the scored
        samples, where the files of an earlier command have the same ones.
        """
        with self.opened(quiet=quiet, keep_model=keep_model) as opened:
            if not samples_needed and (outcome := opened.scored_before()) is not None:
                return outcome
            opened.answer(self.states)
            while self.stages is not None and (block := self.stages.take(self._following())):
                opened.answer(block)
            return opened.finish()

    @contextmanager
    def opened(self, *, quiet: bool = False, keep_model: bool = False) -> Iterator[OpenRun]:
        """The run, locked and ready for samples. Its session ends with `OpenRun.finish`, or with an error."""
        executor = Executor(make_backend(self.choice, self.spec, self.model), self.record, quiet=quiet)
        self._planned = self._write_plan()
        if self.model.loads_in_thread and self._planned.fixed:
            executor.on_first_response = self._start_beside  # until then the interpreter has enough to do
        else:
            self._planned.write()
        self._report_start(executor)
        with self._lock(), self._spending(executor), contextlib.ExitStack() as ending:
            session = ending.enter_context(self._session(executor, keep_model=keep_model))
            self.record.refresh()
            yield OpenRun(self, executor, session, ending, quiet)

    def answer(self, requests: Sequence[Request]) -> None:
        """Answer requests that belong to no task, and record the responses. The model stays loaded."""
        executor = Executor(make_backend(self.choice, self.spec, self.model), self.record)
        self._write_plan().write()
        with self._lock(), self._session(executor, keep_model=True):
            self.record.refresh()
            executor.run(requests)

    def execute_together(self, ranks: Ranks, *, quiet: bool = False) -> Outcome | None:
        """The same as one of several ranks; only rank 0, which holds the lock for all, scores and has an outcome."""
        executor = self._rank_executor(ranks, quiet=quiet or not ranks.first)
        with contextlib.ExitStack() as lock:
            with ranks.joined():
                # Before the folder is made: a rank that planned later would take it for an earlier run's.
                check_same_plan(ranks, self.states)
                if ranks.first:
                    self._write_plan().write()
                    self._report_start(executor)
                ledger = lock.enter_context(self._spending(executor, ranks.size))
                with self._session(executor, written=ranks.first) as session:
                    if ranks.first:
                        lock.enter_context(self._lock())
                    share = RankShare(ranks, executor, self.record, ledger)
                    share.run(self.states)
                    while self.stages is not None and (block := self._next_block(ranks, self.stages)):
                        share.run(block)
                    share.end()
                    if ranks.first:
                        self._prompts.finish(self.states)
            return self._score(executor, session, quiet=quiet) if ranks.first else None

    def _report_start(self, executor: Executor) -> None:
        if self.on_start is not None:
            self.on_start(executor)

    def _following(self) -> list[int]:
        """How many samples of each group are next; none at the end of a budget."""
        assert self.stages is not None
        if self._stopped:
            return [0 for _ in self.stages.orders]
        scores = self.scores
        return self.stages.following(scores.score_states, scores.estimates)

    @property
    def scores(self) -> RunScores:
        """How the samples are scored, with what is known by now."""
        return RunScores(
            self.plans,
            self.benchmarks,
            self.settings,
            self.repeat_metrics,
            self.judging,
            self.groups,
            self.stages,
            self._stopped,
        )

    def _next_block(self, ranks: Ranks, stages: Stages) -> list[SampleState]:
        """Rank 0 has the responses and decides; all ranks know the order."""
        return stages.take(ranks.exchange(self._following() if ranks.first else None)[0])

    def _start_beside(self) -> None:
        """In threads, while the model computes: what samples have before they have responses."""
        assert self._planned is not None
        self._planned.start_writing()
        self._prompts.start(self.states)

    @property
    def states(self) -> list[SampleState]:
        """Those of a random sample are in the order of the draw, so that a budget ends with a smaller random sample."""
        states = [(plan.positions.get(state.sample.id, 0), state) for plan in self.plans for state in plan.states]
        return [state for _, state in sorted(states, key=itemgetter(0))]

    def _lock(self) -> AbstractContextManager[None]:
        return advisory_lock(self.folder, [plan.task.name for plan in self.plans])

    def _rank_executor(self, ranks: Ranks, *, quiet: bool) -> Executor:
        if not self.model.lock_step:
            return Executor(LocalBackend(self.model), self.record, quiet=quiet)
        padding = {state.first_request.kind: state.first_request.clones()[0] for state in self.states}
        return LockStepExecutor(self.model, self.record, ranks, padding, quiet=quiet)

    @contextmanager
    def _spending(self, executor: Executor, processes: int = 1) -> Iterator[LedgerFile]:
        """While the model and the judge spend from the run's budget."""
        ledger = LedgerFile(self.folder)
        self._budget = RunBudget(ledger, self.limits, self.prices, processes=processes)
        executor.spend_from(Account(self._budget, MODEL, self.model.count_tokens))
        try:
            yield ledger
        finally:
            executor.backend.set_gate(None)
            ledger.close()

    @contextmanager
    def _session(self, executor: Executor, *, keep_model: bool = False, written: bool = True) -> Iterator[manifest.Session]:
        """The time in which this process works on the run; however it ends, the manifest gets an entry of it."""
        name = executor.account.budget.name if executor.account is not None else ""
        session, ended = manifest.Session(name), "failed"
        try:
            yield session
            ended = "stopped" if executor.stopped else "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            raise
        finally:
            with deferred_interrupt(repeat=ended in FINISHED):
                self._end_session(executor, session, ended, keep_model=keep_model, written=written)

    def _end_session(
        self, executor: Executor, session: manifest.Session, ended: str, *, keep_model: bool, written: bool
    ) -> None:
        backend = executor.backend
        try:
            self.record.close()
        finally:
            if not keep_model or ended not in FINISHED:
                backend.close()
        if not written:
            if ended in FINISHED:
                self.record.refuse_removed()
            return
        # On a full disk this fails too, and then the first failure is the one to report.
        with contextlib.suppress(RunError) if ended == "failed" else contextlib.nullcontext():
            self._refuse_removed()
            if self._planned is not None:
                self._planned.finish()
            session.write(
                self.folder,
                tally=executor.tally,
                ended=ended,
                warnings=backend.warnings(),
                paths=backend.execution_paths(),
                device=backend.compute_device(),
                timing=None if ended in FINISHED else self._timing(),
            )

    def _timing(self) -> dict[str, float]:
        return add_seconds(self.seconds_before, take_seconds())

    def _refuse_removed(self) -> None:
        """A folder that was removed during the run is not made again: it would look like a run without responses."""
        self.record.refuse_removed()
        if not (self.folder.path / MANIFEST).exists():
            raise RunError(f"{self.folder.path} was removed or moved during the run: run the same command again")

    def _score(self, executor: Executor, session: manifest.Session, *, quiet: bool) -> Outcome:
        if any(plan.pool for plan in self.plans):
            self._write_plan().write()  # with the samples of all parts
        sent = self._prompts.of
        records = {plan.task.name: [from_state(state, sent(state)) for state in plan.states] for plan in self.plans}
        breakdown = self._judge(records, quiet=quiet)
        with phase(SCORING):
            scores = self.scores
            scored = {plan.task.name: scores.scored(plan.task, records[plan.task.name]) for plan in self.plans}
            results, means = scores.results(scored)
        with phase(WRITING):
            written = write_results(self.folder, results, self.benchmarks)
            self.folder.unmark_superseded(written)
            for name in written:
                write_samples(self.folder, self.model.model_name, name, scored[name])
            store_unnamed(self.folder, (one for state in self.states for one in prompt_requests(state)[-1].media))
            if not (self.limits or self.judging):
                self._score_inputs.write({one.task: one for one in results.values() if one.task in written})
        return self._outcome(executor, session, results, means, scored, breakdown)

    def _outcome(
        self,
        executor: Executor,
        session: manifest.Session,
        results: Mapping[str, TaskResult],
        means: list[BenchmarkResult],
        scored: dict[str, list[ScoredSample]] | None = None,
        breakdown: Sequence[str] = (),
    ) -> Outcome:
        """The end of a session; `breakdown` are warnings of a judge that broke down."""
        scored = scored or {}
        with phase(WRITING):
            self._refuse_removed()
            session.write_timing(self.folder, self._timing())
        return Outcome(
            self.model.model_name,
            self.folder,
            list(results.values()),
            means,
            executor.tally,
            session.seconds,
            [*executor.backend.warnings(), *breakdown],
            scored,
            judge_failures=len(breakdown) + sum(map(judge_failures, scored.values())),
            stopped=stopped_text(self._stopped, list(results.values()), staged=self.stages is not None),
            spent=self._budget.spent_text() if self._budget is not None else "",
            precision=self.stages.reached() if self.stages is not None else {},
        )

    @property
    def _stopped(self) -> str:
        return self._budget.stopped if self._budget is not None else ""

    def _judge(self, records: Mapping[str, list[SampleRecord]], *, quiet: bool) -> list[str]:
        """Have the responses judged. A judge that breaks down is reported; the scores that need no judge stay."""
        if self.judging is None:
            return []
        try:
            judged = [(plan.task, records[plan.task.name]) for plan in self.plans if plan.task.judge]
            self.judging.judge(judged, quiet=quiet, budget=self._budget)
        except MillError as error:
            warn(warning := f"the judge broke down: {error}")
            return [warning]
        return []

    @property
    def _score_inputs(self) -> ScoreInputs:
        return ScoreInputs(self.folder, self.record, self.plans, self.settings, self.repeat_metrics)

    def _write_plan(self) -> PlannedSamples:
        """Write the manifest; the result writes the samples."""
        if not self.condition:  # the texts that a check scores are other ones each time
            for warning in changed_data(self.folder, {plan.task.name: plan.data_hash for plan in self.plans}):
                warn(warning)
        covered = manifest.update_manifest(
            self.folder,
            spec=self.spec,
            model_name=self.model.model_name,
            identity=self.identity,
            settings=self.settings,
            plans=self.plans,
            fresh=self.fresh,
            condition=self.condition,
            judge=self.judging.label if self.judging is not None else "",
            sandbox=sandbox_label([plan.task for plan in self.plans]),
        )
        missing = [plan for plan in self.plans if plan.task.name not in covered]
        return PlannedSamples(self.folder, self.model.model_name, missing)
