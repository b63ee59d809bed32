"""One run, planned already (prepare.py): execute, record, score. `mill eval` does this once for each model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from mill.api.budget import BudgetLimits, Prices
from mill.api.errors import MillError, RunError
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.task import Benchmark, RenderSettings, Task
from mill.api.warnings import warn
from mill.execute.account import Account
from mill.execute.backend import LocalBackend
from mill.execute.budget import MODEL, RunBudget
from mill.execute.choose import ExecutorChoice, make_backend
from mill.execute.executor import Executor, Tally
from mill.execute.lockstep import LockStepExecutor
from mill.execute.ranks import Ranks
from mill.execute.sample_state import SampleState, run_samples
from mill.metrics.repeats import RepeatMetric
from mill.models.spec.parse import Spec
from mill.runs import manifest
from mill.runs.advisory_lock import advisory_lock
from mill.runs.folder import MANIFEST, RunFolder
from mill.runs.judging import (
    JudgeRunner,
    judge_failures,
    judgement_warnings,
)
from mill.runs.ledger import LedgerFile
from mill.runs.media_files import store_unnamed
from mill.runs.multi_rank import check_same_plan, run_share
from mill.runs.plan import TaskPlan
from mill.runs.record import Record
from mill.runs.results import changed_data, stopped_text, summarize, summarize_benchmarks, write_results
from mill.runs.samples import SampleRecord, ScoredSample, from_state, prompt_requests, score_sample, write_samples
from mill.runs.schema import BenchmarkResult, TaskResult
from mill.runs.scoring import score_samples
from mill.sandbox import sandbox_label
from mill.tasks.suite import ANSWERED

FINISHED = ("finished", "stopped")  # how a session ends that was not disturbed


@dataclass
class Outcome:
    """The results of a run. `tasks` and `benchmarks` are those of this command, not all that the folder has."""

    model: str
    folder: RunFolder
    tasks: list[TaskResult]
    benchmarks: list[BenchmarkResult]
    tally: Tally
    seconds: float
    warnings: list[str] = field(default_factory=list)
    scored: dict[str, list[ScoredSample]] = field(default_factory=dict, repr=False)
    """The samples of each task, by the task's name."""
    judge_failures: int = 0
    """Requests to the judge that failed, and judgements that could not be read."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tasks that could not be scored again, with the reason."""
    stopped: str = ""
    """At which budget the run stopped, and how many samples are done; empty where it came to its end."""
    spent: str = ""
    """What the whole run has spent, where it has a budget."""

    @property
    def errors(self) -> int:
        return sum(task.errors for task in self.tasks)

    @property
    def without_score(self) -> list[str]:
        """Tasks of which no sample has a value of any metric."""
        return [task.task for task in self.tasks if not any(estimate.n for estimate in task.metrics.values())]

    @property
    def complete(self) -> bool:
        """Whether every task has a score, no sample failed or was left, and no judgement is missing."""
        return not (self.stopped or self.errors or self.judge_failures or self.without_score or self.left_out)


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
    _budget: RunBudget | None = field(default=None, repr=False)
    _prompts: dict[tuple[str, str], list[str]] = field(default_factory=dict, repr=False)
    """Task and sample -> its prompts as the model got them."""

    def execute(self, *, quiet: bool = False, keep_model: bool = False) -> Outcome:
        """Run the requests that have no response yet, then score. An interruption loses no response.

        `keep_model` leaves the model loaded for a run that follows.
        """
        executor = Executor(make_backend(self.choice, self.spec, self.model), self.record, quiet=quiet)
        self._write_plan()
        with self._lock(), self._spending(executor):
            with self._session(executor, keep_model=keep_model) as session:
                self.record.refresh()
                run_samples(executor, self.states)
                self._render_prompts()
            return self._score(executor, session, quiet=quiet)

    def answer(self, requests: Sequence[Request]) -> None:
        """Answer requests that belong to no task, and record the responses. The model stays loaded."""
        executor = Executor(make_backend(self.choice, self.spec, self.model), self.record)
        self._write_plan()
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
                    self._write_plan()
                ledger = lock.enter_context(self._spending(executor, ranks.size))
                with self._session(executor, written=ranks.first) as session:
                    if ranks.first:
                        lock.enter_context(self._lock())
                    run_share(ranks, executor, self.record, self.states, ledger)
                    if ranks.first:
                        self._render_prompts()
            return self._score(executor, session, quiet=quiet) if ranks.first else None

    def _render_prompts(self) -> None:
        """Once, after the last request and before the model is closed: some backends keep their tokenizer no longer."""
        for state in self.states:
            with contextlib.suppress(Exception):  # the samples then show the prompt as it was before the template
                prompts = [self.model.rendered_prompt(request) for request in prompt_requests(state)]
                self._prompts[state.task.name, state.sample.id] = prompts

    def _sent(self, state: SampleState) -> list[str]:
        return self._prompts.get((state.task.name, state.sample.id), [])

    @property
    def states(self) -> list[SampleState]:
        return [state for plan in self.plans for state in plan.states]

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
            try:
                self.record.close()
            finally:
                if not keep_model or ended not in FINISHED:
                    executor.backend.close()
            if written:
                # On a full disk this fails too, and then the first failure is the one to report.
                with contextlib.suppress(RunError) if ended == "failed" else contextlib.nullcontext():
                    self._refuse_removed()
                    backend = executor.backend
                    session.write(
                        self.folder,
                        tally=executor.tally,
                        ended=ended,
                        warnings=backend.warnings(),
                        paths=backend.execution_paths(),
                    )
            elif ended in FINISHED:
                self.record.refuse_removed()

    def _refuse_removed(self) -> None:
        """A folder that was removed during the run is not made again: it would look like a run without responses."""
        self.record.refuse_removed()
        if not (self.folder.path / MANIFEST).exists():
            raise RunError(f"{self.folder.path} was removed or moved during the run: run the same command again")

    def _score(self, executor: Executor, session: manifest.Session, *, quiet: bool) -> Outcome:
        records = {plan.task.name: [from_state(state, self._sent(state)) for state in plan.states] for plan in self.plans}
        breakdown = self._judge(records, quiet=quiet)
        scored = {plan.task.name: self._scored(plan.task, records[plan.task.name]) for plan in self.plans}
        results = {plan.requested: self._summarize(plan, scored[plan.task.name]) for plan in self.plans}
        means = summarize_benchmarks(results, self.benchmarks)
        for name in write_results(self.folder, results, self.benchmarks):
            write_samples(self.folder, self.model.model_name, name, scored[name])
        store_unnamed(self.folder, (one for state in self.states for one in prompt_requests(state)[-1].media))
        self._refuse_removed()
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
            stopped=stopped_text(self._stopped, list(results.values())),
            spent=self._budget.spent_text() if self._budget is not None else "",
        )

    @property
    def _stopped(self) -> str:
        return self._budget.stopped if self._budget is not None else ""

    def _scored(self, task: Task, records: Sequence[SampleRecord]) -> list[ScoredSample]:
        return score_samples(task, records, self.settings, self.repeat_metrics)

    def _judge(self, records: Mapping[str, list[SampleRecord]], *, quiet: bool) -> list[str]:
        """Have the responses judged. A judge that breaks down is reported; scores that need no judge are kept."""
        if self.judging is None:
            return []
        try:
            judged = [(plan.task, records[plan.task.name]) for plan in self.plans if plan.task.judge]
            self.judging.judge(judged, quiet=quiet, budget=self._budget)
        except MillError as error:
            warn(warning := f"the judge broke down: {error}")
            return [warning]
        return []

    def _write_plan(self) -> None:
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
        for plan in self.plans:
            if plan.task.name not in covered:
                unanswered = (score_sample(plan.task, from_state(state)) for state in plan.states)
                write_samples(self.folder, self.model.model_name, plan.task.name, unanswered)

    def _summarize(self, plan: TaskPlan, scored: list[ScoredSample]) -> TaskResult:
        how: dict[str, Any] = {"n_shots": plan.n_shots, "total": plan.total, "data_hash": plan.data_hash}
        result = summarize(plan.task, scored, **how, partial=bool(self._stopped), judged=self.judging is not None)
        result.warnings = plan.warnings() + self._judge_warnings(plan.task, scored)
        if result.pending or result.not_judged:
            result.warnings.append(f"the run {stopped_text(self._stopped, [result])}")
        return result

    def _judge_warnings(self, task: Task, scored: Sequence[ScoredSample]) -> list[str]:
        if task.judge is None:
            return []
        if self.judging is None:
            if task.judge.optional and any(name != ANSWERED for name in task.metrics):
                return []
            return ["no judge grades the answers, so metrics of a judge are missing: --judge MODEL names one"]
        return [f"judged by {self.judging.model.model_name}", *judgement_warnings(scored)]
