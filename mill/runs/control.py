"""`--reuse`: another model's scores of all samples make the estimate over some of them more precise (control variate)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mill.api.errors import RunError, SpecError
from mill.api.warnings import warn
from mill.metrics.finite_population import Stratum, stratified_difference, stratified_mean
from mill.runs.folder import MANIFEST, RunFolder
from mill.runs.plan import TaskPlan
from mill.runs.sampled_estimates import ControlValues, limits_of, strata_of
from mill.runs.samples import ScoredSample, read_rows
from mill.runs.sampling import SampleGroup, is_random
from mill.runs.schema import Control, TaskEntry, TaskResult
from mill.runs.shared import read_entries

LARGEST = 1e100  # a value of a sample that is larger, or NaN, is none


@dataclass(frozen=True)
class ControlRun:
    """The scores of another model: task -> sample -> metric -> value. A sample that failed has none, which counts as 0: any
    fixed number may stand for it, since the control is known on all samples."""

    model: str
    scores: Mapping[str, Mapping[str, Mapping[str, float]]]
    categories: Mapping[str, Mapping[str, str]]
    """Task -> sample -> its category."""
    data_hashes: Mapping[str, str]

    def refuse_unusable(self, plans: Sequence[TaskPlan]) -> None:
        """Before anything is computed: the other run must have all samples of the same data."""
        for plan in plans:
            name = plan.task.name
            if name not in self.scores:
                raise SpecError(f"--reuse: the run of {self.model} has no samples of {name}; it must have all of them")
            if self.data_hashes.get(name) not in ("", plan.data_hash):
                raise SpecError(f"--reuse: the run of {self.model} has other data of {name}")
            if len(self.scores[name]) < plan.total:
                known = len(self.scores[name])
                raise SpecError(f"--reuse: the run of {self.model} has {known} of {plan.total} samples of {name}, not all")
            if missing := sum(not values for values in self.scores[name].values()):
                of = f"{missing} of {plan.total} samples of {name}"
                warn(f"--reuse: the run of {self.model} has no score of {of}, which count as 0: the gain is smaller")

    def values(self, plan: TaskPlan, metric: str) -> ControlValues:
        scores = self.scores[plan.task.name]
        return ControlValues({name: one.get(metric, 0.0) for name, one in scores.items()}, self.categories[plan.task.name])


def recorded_control(folder: RunFolder) -> ControlRun:
    """The scores of a recorded run."""
    model = str(folder.manifest()["model"]["name"])
    entries = read_entries(folder, MANIFEST, "tasks", TaskEntry)
    scores: dict[str, dict[str, dict[str, float]]] = {name: {} for name in entries}
    categories: dict[str, dict[str, str]] = {name: {} for name in entries}
    for name in entries:
        for _, row in read_rows(folder.samples_file(name)):
            scores[name][str(row["id"])] = _numbers(row.get("values", {}))
            categories[name][str(row["id"])] = str(row.get("category") or "")
    return ControlRun(model, scores, categories, {name: entry.data_hash for name, entry in entries.items()})


def executed_control(model: str, scored: Mapping[str, Sequence[ScoredSample]], plans: Sequence[TaskPlan]) -> ControlRun:
    """The scores of a run that this command made."""
    scores = {task: {str(one.record.sample.id): _numbers(one.values) for one in some} for task, some in scored.items()}
    categories = {task: {str(one.record.sample.id): one.category for one in some} for task, some in scored.items()}
    return ControlRun(model, scores, categories, {plan.task.name: plan.data_hash for plan in plans})


def _numbers(values: Mapping[str, Sequence[object]]) -> dict[str, float]:
    """The mean over the repeats of each metric that has numbers."""
    found = {}
    for metric, repeats in values.items():
        numbers = [float(value) for value in repeats if isinstance(value, (int, float)) and abs(value) <= LARGEST]
        if numbers and len(numbers) == len(repeats):
            found[metric] = math.fsum(numbers) / len(numbers)
    return found


def add_controls(
    control: ControlRun,
    groups: Sequence[SampleGroup],
    plans: Sequence[TaskPlan],
    scored: Mapping[str, Sequence[ScoredSample]],
    results: Mapping[str, TaskResult],
) -> None:
    """Put the estimates with the control into the results of tasks whose random samples ran; all tasks of a group share one
    coefficient."""
    by_name = {plan.requested: plan for plan in plans}
    for group in groups:
        members = [by_name[name] for name in group.tasks if name in by_name]
        sampled = [plan for plan in members if _is_sampled(results[plan.requested])]
        names = dict.fromkeys(name for plan in sampled for name in results[plan.requested].metrics)
        for metric in names:
            _add(control, metric, group, sampled, scored, results)


def _is_sampled(result: TaskResult) -> bool:
    return result.sampled is not None and is_random(result.sampled)


def _add(
    control: ControlRun,
    metric: str,
    group: SampleGroup,
    plans: Sequence[TaskPlan],
    scored: Mapping[str, Sequence[ScoredSample]],
    results: Mapping[str, TaskResult],
) -> None:
    strata = {
        plan.requested: _strata(control, metric, plan, scored[plan.task.name], results[plan.requested]) for plan in plans
    }
    known = {name: one for name, one in strata.items() if one}
    if not known:
        return
    together = [stratum for some in known.values() for stratum in some]
    whole, slope = stratified_difference(together, limits=limits_of(plans[0].task, metric, together))
    for plan in plans:
        if plan.requested not in known:
            continue
        some, result = known[plan.requested], results[plan.requested]
        estimate, _ = stratified_difference(some, slope=slope, limits=limits_of(plan.task, metric, some))
        if result.control is None:
            result.control = Control(control.model, {}, {}, of=group.name)
        result.control.metrics[metric], result.control.slopes[metric] = estimate, slope
        if len(known) == len(group.tasks):
            result.control.whole[metric] = whole


def _strata(
    control: ControlRun, metric: str, plan: TaskPlan, scored: Sequence[ScoredSample], result: TaskResult
) -> list[Stratum] | None:
    """None where the metric is no mean of numbers: it has no control."""
    sampled = result.sampled
    assert sampled is not None
    failed = sum(one.error is not None for one in scored)
    if failed:  # the other model's mean is over all samples, and would have to be over those that can be answered
        warn(f"--reuse: {failed} samples of {plan.task.name} failed, so the scores of {control.model} are not used for it")
        return None
    sizes = sampled.strata if len(sampled.strata) > 1 and sampled.method == "random" else {}
    try:
        strata = strata_of(metric, scored, plan.total, sizes, control.values(plan, metric))
    except KeyError as missing:
        what = f"no sample or category {missing} of {plan.task.name}"
        raise RunError(f"--reuse: the run of {control.model} has {what}: it has other data") from None
    if not strata or not math.isclose(stratified_mean(strata).value, result.metrics[metric].value, rel_tol=1e-9):
        return None
    return strata
