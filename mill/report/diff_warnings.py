"""What differs between two runs beside their scores: settings, versions, data, shots, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mill.checks.score_difference import PairedRuns
from mill.runs.recorded_run import RecordedRun
from mill.runs.sample_row import SampleRow
from mill.runs.schema import TaskResult

MOST_NAMED = 8
_LONGEST = 60


def run_warnings(first: RecordedRun, second: RecordedRun) -> list[str]:
    """Settings and versions that differ."""
    found = []
    for what in ("settings", "versions"):
        sides = [_flat(run.manifest.get(what)) for run in (first, second)]
        names = sorted(name for name in {*sides[0], *sides[1]} if sides[0].get(name) != sides[1].get(name))
        if names:
            shown = [f"{name} {sides[0].get(name, 'none')} and {sides[1].get(name, 'none')}" for name in names[:MOST_NAMED]]
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            found.append(f"{what} differ: {', '.join(shown)}{more}")
    return found


def _flat(data: Any) -> dict[str, str]:
    """Each setting by itself, also nested ones; one that is not set is left out."""
    found: dict[str, str] = {}
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if isinstance(value, Mapping):
            found |= _flat(value)
        elif value is not None:
            found[str(name)] = str(value)[:_LONGEST]
    return found


def task_warnings(pair: PairedRuns, name: str) -> list[str]:
    """Of a task: version, shots, data and samples that differ. Those of a benchmark are those of its tasks."""
    a, b = pair.first.result(name), pair.second.result(name)
    if not isinstance(a, TaskResult) or not isinstance(b, TaskResult):
        tasks = [set(run.tasks_of(name)) for run in (pair.first, pair.second)]
        return [] if tasks[0] == tasks[1] else [f"{name}: the mean is over different tasks"]
    found = []
    if a.version != b.version:
        found.append(f"{name}: versions {a.version} and {b.version} of the task")
    if a.n_shots != b.n_shots:
        found.append(f"{name}: {a.n_shots} and {b.n_shots} shots")
    if a.data_hash != b.data_hash:
        found.append(f"{name}: the data differ")
    matches = pair.matches(name)
    n = len(matches.pairs)
    if not n:
        return [*found, f"{name}: no samples in common, so the scores are compared as independent estimates"]
    if matches.unpaired:
        found.append(
            f"{name}: {n} samples are in both runs, {matches.unpaired} in one only; the difference is over those in both"
        )
    valueless = sum(_valued(first) != _valued(second) for first, second in matches.pairs)
    if valueless:
        found.append(f"{name}: {valueless} of {n} samples have a value in one run only, and are left out of the difference")
    prompts = sum(first.prompt != second.prompt for first, second in matches.pairs)
    return [*found, f"{name}: {prompts} of {n} prompts differ"] if prompts else found


def _valued(row: SampleRow) -> set[str]:
    return {metric for metric in row.values if row.number(metric) is not None}
