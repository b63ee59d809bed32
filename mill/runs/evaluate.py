"""One run from model to scores: plan, record, execute, score. `mill eval` is this, once for each model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.model import MillModel
from mill.api.task import Benchmark, RenderSettings
from mill.execute.engine import HereEngine
from mill.execute.executor import Executor, Tally
from mill.execute.jobs import run_jobs
from mill.models.open import open_model, resolve_spec, takes_argument
from mill.models.spec import Spec, parse_spec
from mill.runs import manifest
from mill.runs.folder import MANIFEST, RunFolder, check_writable, newest_generation, run_folder
from mill.runs.plan import TaskPlan, plan_tasks, refuse_early
from mill.runs.record import Record
from mill.runs.results import BenchmarkResult, TaskResult, summarize, summarize_benchmarks, write_results
from mill.runs.samples import ScoredSample, from_job, score_sample, write_samples
from mill.runs.turns import taking_turns
from mill.tasks.load import Selection


@dataclass
class Outcome:
    """What a run gave. `tasks` and `benchmarks` hold what was asked for, not all that the folder has."""

    model: str
    folder: RunFolder
    tasks: list[TaskResult]
    benchmarks: list[BenchmarkResult]
    tally: Tally
    seconds: float
    remarks: list[str] = field(default_factory=list)
    scored: dict[str, list[ScoredSample]] = field(default_factory=dict, repr=False)
    """The samples of each task, by the task's name."""

    @property
    def errors(self) -> int:
        return sum(task.errors for task in self.tasks)


@dataclass
class Run:
    """A model and its tasks, planned and ready to go: everything that can be refused has been."""

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

    def execute(self, *, quiet: bool = False, keep_model: bool = False) -> Outcome:
        """Answer what is not answered yet, then score. An interruption loses nothing that was answered.

        `keep_model` leaves the model loaded for a run that follows.
        """
        started, executor = time.time(), Executor(HereEngine(self.model), self.record, quiet=quiet)
        self._write_plan()
        ended = "failed"
        try:
            with taking_turns(self.folder, [plan.task.name for plan in self.plans]) as waited:
                if waited:
                    self.record.refresh()
                run_jobs(executor, [job for plan in self.plans for job in plan.jobs])
            ended = "finished"
        except KeyboardInterrupt:
            ended = "interrupted"
            raise
        finally:
            self.record.close()
            if not keep_model or ended != "finished":
                self.model.clean()
            manifest.add_session(
                self.folder, started=started, tally=executor.tally, ended=ended, remarks=self.model.remarks()
            )
        scored = {plan.task.name: [score_sample(plan.task, from_job(job)) for job in plan.jobs] for plan in self.plans}
        results = {plan.asked: self._summarize(plan, scored[plan.task.name]) for plan in self.plans}
        means = summarize_benchmarks(results, self.benchmarks)
        written = write_results(self.folder, list(results.values()), means)
        for name in written:
            write_samples(self.folder.samples_file(name), name, scored[name])
        seconds = time.time() - started
        return Outcome(
            self.model.model_name,
            self.folder,
            list(results.values()),
            means,
            executor.tally,
            seconds,
            self.model.remarks(),
            scored,
        )

    def _write_plan(self) -> None:
        covered = manifest.update_manifest(
            self.folder,
            spec=self.spec,
            model_name=self.model.model_name,
            identity=self.identity,
            settings=self.settings,
            plans=self.plans,
            fresh=self.fresh,
            condition=self.condition,
        )
        for plan in self.plans:
            if plan.task.name not in covered:
                unanswered = (ScoredSample(from_job(job), {}, "not answered") for job in plan.jobs)
                write_samples(self.folder.samples_file(plan.task.name), plan.task.name, unanswered)

    def _summarize(self, plan: TaskPlan, scored: list[ScoredSample]) -> TaskResult:
        result = summarize(plan.task, scored, n_shots=plan.n_shots, total=plan.total, data_hash=plan.data_hash)
        result.notes = plan.notes()
        return result


def prepare(
    spec: Spec | str,
    selection: Selection,
    settings: RenderSettings,
    *,
    output_dir: Path,
    limit: int | float | None = None,
    fresh: bool = False,
    batch_size: int | None = None,
    wait: float = 0.0,
    exact: bool = False,
) -> Run:
    """Open the model, plan the tasks and find the run's folder. No weights load here.

    A model behind a server is looked at first; `wait` is how many seconds it may take to come up. `exact` is given to
    backends that know it: the others share nothing that would have to be turned off.
    """
    check_writable(output_dir)
    resolved = resolve_spec(parse_spec(spec) if isinstance(spec, str) else spec)
    refuse_early(selection, resolved.backend)
    if exact and takes_argument(resolved.backend, "exact"):
        resolved = Spec(resolved.backend, {**resolved.arguments, "exact": True})
    model = open_model(resolved, batch_size=batch_size)
    model.ready(wait)
    return plan_run(resolved, model, selection, settings, output_dir=output_dir, limit=limit, fresh=fresh)


def plan_run(
    spec: Spec,
    model: MillModel,
    selection: Selection,
    settings: RenderSettings,
    *,
    output_dir: Path,
    limit: int | float | None = None,
    fresh: bool = False,
    condition: str = "",
) -> Run:
    """A run of a model that is open already.

    A `condition` names what is tried, such as how many requests are under way at once: runs under one have a folder of
    their own and neither take answers from others nor lend them any.
    """
    plans = plan_tasks(model, selection, settings, limit)
    identity = model.identity()
    shown = {**manifest.shown_settings(settings), **({"condition": condition} if condition else {})}
    folder = newest_generation(run_folder(output_dir, model.model_name, identity, shown), fresh=fresh)
    # A run that was started fresh stays so when it is resumed: it never takes answers from its siblings.
    fresh = fresh or bool(folder.read(MANIFEST).get("fresh"))
    record = Record(folder.path, [] if fresh or condition else folder.siblings, lends=not condition)
    return Run(spec, model, plans, selection.benchmarks, settings, identity, folder, record, fresh, condition)
