"""From responses to results: samples scored, in this process or in several; the metrics of tasks and benchmarks; the outcome
of a run."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mill.api.consent import Consent, consenting, current_consent
from mill.api.engine import Answered
from mill.api.registry import imported_files
from mill.api.task import RenderSettings, Task, Value
from mill.execute.executor import Tally
from mill.execute.sample_state import SampleState
from mill.metrics.aggregate import BEST, MAJ, PASS, RepeatMetric, default_metrics, value_of
from mill.metrics.estimate import Estimate
from mill.plan.sampling import SampleGroup, is_random
from mill.plan.task_plan import TaskPlan
from mill.score.judging import judgement_warnings
from mill.score.results import mixed_engines, stopped_by_test, stopped_text, summarize, summarize_benchmarks, with_sequence
from mill.store.folder import RunFolder
from mill.store.samples import RunSample, from_state, score_sample
from mill.store.schema import BenchmarkResult, Decision, Results, SampledData, TaskResult
from mill.store.session import known_engines
from mill.support.terminal import warn
from mill.tasks import hooks
from mill.tasks.load import Documents, added_folders, load_builtin, load_files, recorded_task, split_name
from mill.tasks.suite import ANSWERED

if TYPE_CHECKING:
    from mill.runs.evaluate import Plan

PATIENCE_S = 20.0  # of scoring that is left before processes are worth their start
_TRIED = 8
_CHUNK = 8


def score_samples(
    task: Task,
    records: Sequence[RunSample],
    settings: RenderSettings,
    repeat_metrics: Sequence[RepeatMetric] | None = None,
) -> list[RunSample]:
    """Every sample of a task with its values, in order, and with these metrics over its repeats; `settings` are those of the
    run."""
    return with_repeat_metrics(task, _score_all(task, records, settings), repeat_metrics)


def _score_all(task: Task, records: Sequence[RunSample], settings: RenderSettings) -> list[RunSample]:
    answered = [(record.sample, repeat) for record in records if record.unanswered is None for repeat in record.responses]
    hooks.attempt(lambda: task.prepare_scoring(answered))  # a failure is that of a sample, whose score() meets it again
    started = time.monotonic()
    scored = [score_sample(task, record) for record in records[:_TRIED]]
    rest = records[_TRIED:]
    expected = (time.monotonic() - started) / _TRIED * len(rest)
    if expected > PATIENCE_S and split_name(task.name) is not None and (os.cpu_count() or 1) > 1:
        return scored + _in_processes(task, rest, settings)
    return scored + [score_sample(task, record) for record in rest]


def _in_processes(task: Task, records: Sequence[RunSample], settings: RenderSettings) -> list[RunSample]:
    """Where processes cannot be used the samples are scored here."""
    documents = [record.sample.doc for record in records]
    paths = (*imported_files(), *added_folders())
    given = (task.name, documents, settings, paths, current_consent())
    try:
        # A new interpreter: a copy of this one would share the model's threads and accelerators.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=_start, initargs=given) as pool:
            return list(pool.map(_score, records, chunksize=_CHUNK))
    except (BrokenProcessPool, OSError, TypeError, AttributeError) as error:  # such as values that cannot be pickled
        warn(f"{task.name} is scored in one process: {type(error).__name__}")
        return [score_sample(task, record) for record in records]


_scoring: tuple[Task, Consent] | None = None  # of a scoring process


def _start(name: str, documents: Documents, settings: RenderSettings, paths: tuple[str, ...], consent: Consent) -> None:
    global _scoring
    load_builtin()
    load_files(paths)
    _scoring = recorded_task(name, {name: documents}, settings), consent


def _score(record: RunSample) -> RunSample:
    assert _scoring is not None, "_start runs before the first sample"
    task, consent = _scoring
    with consenting(consent):
        return score_sample(task, record)


MEAN, SHARE = "mean", "share"  # registered metrics; the interval of a share stays between 0 and 1


def with_repeat_metrics(task: Task, scored: Sequence[RunSample], wanted: Sequence[RepeatMetric] | None) -> list[RunSample]:
    """The same samples with the values of these metrics; None means the default ones.

    They are of the task's means, not of those of its judge. pass@k is only of metrics whose values are all 0 or 1, maj@k of
    tasks that extract an answer, best@k of judged ones.
    """
    repeats = max((len(one.responses) for one in scored), default=1)
    if wanted is None:
        wanted = default_metrics(repeats)
    judged = set(task.judge.metrics) if task.judge is not None else set()
    means = [name for name in _numeric(scored) if name not in judged and name not in task.diagnostics]
    binary = {name for name in means if all(value in (0.0, 1.0) for one in scored for value in one.values.get(name, ()))}
    if not wanted or not means:
        return list(scored)
    extracting = any(answer is not None for one in scored for answer in one.extracted_repeats)
    return [
        _with_values(one, means, binary, judged, wanted, votes=extracting or task.extracts(one.sample)) for one in scored
    ]


def _numeric(scored: Sequence[RunSample]) -> list[str]:
    """Metrics that every sample with a score has as numbers, and that are means of them."""
    good = [one for one in scored if one.error is None]
    names = dict.fromkeys(name for one in good for name in one.values)
    return [name for name in names if all(_is_mean_of_numbers(one, name) for one in good)]


def _is_mean_of_numbers(one: RunSample, name: str) -> bool:
    values = one.values.get(name, [])
    return bool(values) and one.aggregations.get(name, MEAN) == MEAN and {*map(type, values)} <= {int, float, bool}


def _with_values(
    one: RunSample,
    means: Sequence[str],
    binary: set[str],
    judged: set[str],
    wanted: Sequence[RepeatMetric],
    *,
    votes: bool,
) -> RunSample:
    """`votes` is whether the task extracts answers: a question with none that can be read is wrong, not left out."""
    if one.error is not None:
        return one
    rating = next((one.values[name] for name in one.values if name in judged), [])
    ratings = [value if isinstance(value, (int, float)) else None for value in rating]
    found: dict[str, list[Value]] = {}
    aggregations: dict[str, str] = {}
    for metric in wanted:
        for name in means:
            if (metric.kind in (PASS, MAJ) and name not in binary) or (metric.kind == BEST and not ratings):
                continue
            values = [float(value) for value in one.values[name] if isinstance(value, (int, float))]
            answers = one.extracted_repeats if metric.kind == MAJ and votes else ()
            value = value_of(metric, values, answers=answers, ratings=ratings, seed=f"{metric}/{one.sample.id}")
            if value is not None:
                found[metric.name(name)] = [value]
                aggregations[metric.name(name)] = SHARE if name in binary else MEAN
    return one.updated(values={**one.values, **found}, aggregations={**one.aggregations, **aggregations})


@dataclass(frozen=True)
class RunScores:
    """How the samples of a run are scored and summed up. `stopped` names the budget at which the run stopped."""

    plan: Plan
    tasks: Sequence[TaskPlan]
    """With the samples that are scored."""
    decisions: Sequence[Decision] = ()
    stopped: str = ""

    @property
    def staged(self) -> bool:
        """Whether the run takes its samples part after part, so that it is not known how many it needs."""
        return self.plan.config.samples.staged and not self.plan.config.steered

    def scored(self, task: Task, records: Sequence[RunSample]) -> list[RunSample]:
        return score_samples(task, records, self.plan.config.settings, self.plan.config.repeat_metrics)

    def score_states(self, states: Sequence[SampleState]) -> list[RunSample]:
        """These samples, scored, in their order."""
        scored: dict[tuple[str, str], RunSample] = {}
        for task in {state.task.name: state.task for state in states}.values():
            records = [from_state(state) for state in states if state.task is task]
            scored |= {(task.name, one.sample.id): one for one in self.scored(task, records)}
        return [scored[state.task.name, state.sample.id] for state in states]

    def results(self, scored: Mapping[str, list[RunSample]]) -> tuple[dict[str, TaskResult], list[BenchmarkResult]]:
        drawn = {name for group in self.plan.groups if self._is_prefix(group, scored) for name in group.tasks}
        results = {
            plan.requested: self._summarize(plan, scored[plan.task.name], random=plan.requested in drawn)
            for plan in self.tasks
        }
        for name, result in results.items():
            result.metrics = with_sequence(name, result, self.decisions, stopped=stopped_by_test(result))
        return results, summarize_benchmarks(results, self.plan.benchmarks, self.decisions)

    def estimates(self) -> dict[str, Mapping[str, Estimate]]:
        results, means = self.results({plan.task.name: self.score_states(plan.states) for plan in self.tasks})
        found: dict[str, TaskResult | BenchmarkResult] = {**results, **{mean.benchmark: mean for mean in means}}
        return {name: one.metrics for name, one in found.items()}

    def _is_prefix(self, group: SampleGroup, scored: Mapping[str, Sequence[RunSample]]) -> bool:
        """Whether the samples that ran before a budget ended are the first ones of the random order: what is left out of the
        middle, as when several processes stopped, does not make a random sample."""
        done, left = -1, math.inf
        for plan in self.tasks:
            for one in scored[plan.task.name] if plan.requested in group.tasks else ():
                position = plan.positions.get(one.sample.id, 0)
                if one.pending:
                    left = min(left, position)
                else:
                    done = max(done, position)
        return done < left

    def _summarize(self, plan: TaskPlan, scored: list[RunSample], *, random: bool) -> TaskResult:
        how: dict[str, Any] = {"n_shots": plan.n_shots, "total": plan.total, "data_hash": plan.data_hash}
        how["sampled"] = _chosen(plan, scored, random=random)
        result = summarize(plan.task, scored, **how, partial=bool(self.stopped), judged=self.plan.judging is not None)
        ran = replace(plan, sampled=result.sampled)
        result.warnings = ran.warnings(result.n) + self._judge_warnings(plan.task, scored)
        result.warnings += mixed_engines(scored, known_engines(self.plan.folder))
        if result.pending and result.n and result.sampled is None:
            result.warnings.append("the samples that ran are neither the first rows nor a random sample")
        if result.pending or result.not_judged:
            result.warnings.append(f"the run {stopped_text(self.stopped, [result], staged=self.staged)}")
        return result

    def _judge_warnings(self, task: Task, scored: Sequence[RunSample]) -> list[str]:
        if task.judge is None:
            return []
        if self.plan.judging is None:
            if task.judge.optional and any(name != ANSWERED for name in task.metrics):
                return []
            return ["no judge grades the answers, so metrics of a judge are missing: --judge MODEL names one"]
        return [f"judged by {self.plan.judging.model.model_name}", *judgement_warnings(scored)]


def _chosen(plan: TaskPlan, scored: Sequence[RunSample], *, random: bool) -> SampledData | None:
    """Which samples of a task ran. `random` is whether they are a start of the random order. None where all did, and where
    a budget ended with gaps, so that they are neither a random sample nor the first rows."""
    if plan.sampled is not None and plan.sampled.method != "first":
        return plan.sampled if random or not is_random(plan.sampled) else None
    pending = [one.pending for one in scored]
    return SampledData("first") if pending == sorted(pending) else None


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
    scored: dict[str, list[RunSample]] = field(default_factory=dict, repr=False)
    """The samples of each task, by the task's name."""
    judge_failures: int = 0
    """Requests to the judge that failed, and judgements that could not be read."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tasks that could not be scored again, with the reason."""
    stopped: str = ""
    """At which budget the run stopped, and how many samples are done; empty where it came to its end."""
    answered: Answered = field(default_factory=Answered)
    reused: str = ""
    """How old recorded answers are that were not asked for again, and what gave them; empty where there are none."""
    spent: str = ""
    """What the whole run has spent, where it has a budget."""
    decisions: Sequence[Decision] = ()
    """About claims, of this command."""
    precision: dict[str, str] = field(default_factory=dict)
    """How precise each task or benchmark is, and with how many samples, where a precision was given."""

    @property
    def results(self) -> Results:
        tasks, benchmarks = ({one.task: one for one in self.tasks}, {one.benchmark: one for one in self.benchmarks})
        return Results(tasks, benchmarks, {one.name: one for one in self.decisions})

    @property
    def errors(self) -> int:
        return sum(task.errors for task in self.tasks)

    @property
    def without_score(self) -> list[str]:
        """Tasks of which samples ran, and none has a value of any metric."""
        return [task.task for task in self.tasks if task.n and not any(estimate.n for estimate in task.metrics.values())]

    @property
    def complete(self) -> bool:
        """Whether every task has a score, no sample failed or was left, and no judgement is missing."""
        return not (self.stopped or self.errors or self.judge_failures or self.without_score or self.left_out)
