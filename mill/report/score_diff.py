"""The scores of two runs, or of two output folders, row by row: difference, interval and p-value, and a sentence about them
all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.checks.glossary import counted
from mill.checks.score_difference import PairedRuns, ScoreDifference, ValueCache
from mill.metrics.differences import direction
from mill.metrics.estimate import Estimate
from mill.metrics.paired import holm
from mill.report.tables import Listing, dash, number, shown_name
from mill.score.recorded_run import RecordedRun, read_runs
from mill.store.sample_row import FAILED, SampleRow
from mill.store.schema import TaskResult

MOST_SETTINGS = 8
_LONGEST_VALUE = 60


def run_warnings(first: RecordedRun, second: RecordedRun) -> list[str]:
    """Settings and versions that differ."""
    found = []
    for what in ("settings", "versions"):
        sides = [flat_settings(run.manifest.get(what)) for run in (first, second)]
        names = sorted(name for name in {*sides[0], *sides[1]} if sides[0].get(name) != sides[1].get(name))
        if names:
            shown = [
                f"{name} {sides[0].get(name, 'none')} and {sides[1].get(name, 'none')}" for name in names[:MOST_SETTINGS]
            ]
            more = f" and {len(names) - MOST_SETTINGS} more" if len(names) > MOST_SETTINGS else ""
            found.append(f"{what} differ: {', '.join(shown)}{more}")
    return found


def flat_settings(data: Any) -> dict[str, str]:
    """Each setting by itself, also nested ones; one that is not set is left out."""
    found: dict[str, str] = {}
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if isinstance(value, Mapping):
            found |= flat_settings(value)
        elif value is not None:
            found[str(name)] = str(value)[:_LONGEST_VALUE]
    return found


def task_warnings(pair: PairedRuns, name: str, *, known: bool) -> list[str]:
    """Of a task: version, shots, data and samples that differ. Those of a benchmark are those of its tasks. `known` is
    whether any difference is a number."""
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
    failed = [sum(row.status == FAILED for row in side) for side in zip(*matches.pairs, strict=True)]
    if any(failed):
        effect = "they count as wrong" if known else "nothing can be compared" if n in failed else "their values are unknown"
        found.append(f"{name}: {failed[0]} of {n} samples failed in A and {failed[1]} in B; {effect}")
    answered = [(a, b) for a, b in matches.pairs if FAILED not in (a.status, b.status)]
    shared = [{metric for row in side for metric in row.values} for side in zip(*matches.pairs, strict=True)]
    valueless = sum(_valued(first) & shared[1] != _valued(second) & shared[0] for first, second in answered)
    if valueless:
        found.append(f"{name}: {valueless} of {n} samples have a value in one run only, and are left out of the difference")
    prompts = sum(first.prompt != second.prompt for first, second in matches.pairs)
    return [*found, f"{name}: {prompts} of {n} prompts differ"] if prompts else found


def _valued(row: SampleRow) -> set[str]:
    return {metric for metric in row.values if row.number(metric) is not None}


NUMBERS = ("A", "B", "B - A", "95 % interval", "p", "p (Holm)", "pairs")
LEVEL = 0.05
BETTER, WORSE, DIFFERENT, SAME = "better", "worse", "different", ""
MOST_NAMED = 5
OVER_SHARED = "A and B are over the samples that both runs have; the scores of all samples are in the CSV and JSON."


@dataclass(frozen=True)
class DiffRow:
    """A score of both sides. `change` is empty where the difference is not significant, and `different` where it is not
    known which way is better."""

    run: str
    name: str
    metric: str
    n_shots: int | None
    a: Estimate
    b: Estimate
    found: ScoreDifference
    p_corrected: float
    paths: tuple[str, str]

    @property
    def shown(self) -> tuple[float, float]:
        """What is compared: the scores over pairs, else the recorded ones."""
        return self.found.values or (self.a.value, self.b.value)

    @property
    def over_shared(self) -> bool:
        """Whether the scores over pairs are not the recorded ones."""
        recorded = (self.a.value, self.b.value)
        return any(number(one) != number(other) for one, other in zip(self.shown, recorded, strict=True))

    @property
    def change(self) -> str:
        if not self.p_corrected < LEVEL:
            return SAME
        better = direction(self.metric) * self.found.difference.estimate.value
        return BETTER if better > 0 else WORSE if better < 0 else DIFFERENT


@dataclass
class ScoreDiff:
    """All rows, what only one side has, and warnings about what differs beside the scores."""

    rows: list[DiffRow] = field(default_factory=list)
    only: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    warnings: list[str] = field(default_factory=list)
    names: tuple[str, str] = ("A", "B")


def diff_scores(first: Path, second: Path) -> ScoreDiff:
    """The scores of two folders, each a run or an output folder. A run of one side belongs to the run of the other with the
    same model and settings; with the same settings, where both sides have one model; to the only one, where both have one.
    """
    if first.resolve() == second.resolve():
        raise RunError(f"{first} and {second} are one folder: give two")
    sides = [[run for run in read_runs(path) if run.results.tasks] for path in (first, second)]
    for path, runs in zip((first, second), sides, strict=True):
        if not runs:
            raise RunError(f"{path} has no run with scores; `mill ls runs` lists runs")
    pairs, alone = _pair_runs(sides[0], sides[1])
    if not pairs:
        shown = [", ".join(f"{run.label} ({run.settings})" for run in side[:3]) for side in sides]
        raise RunError(
            f"no run of {first} belongs to one of {second}: they have {shown[0]} and {shown[1]}; give two run folders"
        )
    found, cache, several = ScoreDiff(), ValueCache(), len(pairs) > 1
    for a, b in pairs:
        label = a.label if a.label == b.label else f"{a.label} / {b.label}"
        _add(found, a, b, cache, f"{label} ({a.settings})" if several else "")
    for side, runs in zip(found.only, alone, strict=True):
        side += [f"{run.label} ({run.settings}): {', '.join(run.results.tasks)}" for run in runs]
    if not found.rows:
        tasks = [", ".join({name: None for run in side for name in run.results.tasks}) or "none" for side in sides]
        raise RunError(f"the two have no score in common: {first} has {tasks[0]}, {second} has {tasks[1]}")
    corrected = holm([row.found.difference.p for row in found.rows])
    found.rows = [replace(row, p_corrected=p) for row, p in zip(found.rows, corrected, strict=True)]
    found.names = (str(first), str(second)) if several else (_described(pairs[0][0]), _described(pairs[0][1]))
    return found


def _described(run: RecordedRun) -> str:
    return f"{shown_name(run.label)} ({run.settings}), {run.path}"


def _pair_runs(
    first: Sequence[RecordedRun], second: Sequence[RecordedRun]
) -> tuple[list[tuple[RecordedRun, RecordedRun]], tuple[list[RecordedRun], list[RecordedRun]]]:
    if len(first) == len(second) == 1:
        return [(first[0], second[0])], ([], [])
    one_model = all(len({run.path.parent for run in side}) == 1 for side in (first, second))

    def key(run: RecordedRun) -> tuple[str, str]:
        return ("" if one_model else run.label, run.settings)

    others = {key(run): run for run in second}
    pairs = [(run, others[key(run)]) for run in first if key(run) in others]
    taken = {str(run.path) for pair in pairs for run in pair}
    left = [[run for run in side if str(run.path) not in taken] for side in (first, second)]
    return pairs, (left[0], left[1])


def _add(found: ScoreDiff, first: RecordedRun, second: RecordedRun, cache: ValueCache, run: str) -> None:
    """The rows of two runs, with warnings."""
    pair = PairedRuns(first, second, cache)
    prefix = f"{run}: " if run else ""
    found.warnings += [f"{prefix}{line}" for line in run_warnings(first, second)]
    differences: dict[str, list[float]] = {}
    for name, metric in _names(first):
        a, b = first.estimate(name, metric), second.estimate(name, metric)
        if a is None or b is None:
            found.only[0].append(f"{prefix}{name} {metric}")
            continue
        difference = pair.difference(name, metric)
        assert difference is not None
        task, paths = first.results.tasks.get(name), (str(first.path), str(second.path))
        row = DiffRow(run, name, metric, task.n_shots if task else None, a, b, difference, math.nan, paths)
        differences.setdefault(name, []).append(difference.difference.estimate.value)
        found.rows.append(row)
    for name, values in differences.items():
        known = any(not math.isnan(value) for value in values)
        found.warnings += [f"{prefix}{line}" for line in task_warnings(pair, name, known=known)]
    missing = [(name, metric) for name, metric in _names(second) if first.estimate(name, metric) is None]
    found.only[1].extend(f"{prefix}{name} {metric}" for name, metric in missing)


def _names(run: RecordedRun) -> Iterator[tuple[str, str]]:
    for name, task in run.results.tasks.items():
        yield from ((name, metric) for metric in task.metrics)
    for name, mean in run.results.benchmarks.items():
        if name not in run.results.tasks:
            yield from ((name, metric) for metric in mean.metrics)


def sentence(found: ScoreDiff) -> str:
    """What changed from A to B, in plain words."""
    n = len(found.rows)
    parts = []
    for change, words in (
        (WORSE, "significantly worse on"),
        (BETTER, "significantly better on"),
        (DIFFERENT, "different on"),
    ):
        names = [f"{shown_name(row.name)} {shown_name(row.metric)}" for row in found.rows if row.change == change]
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            parts.append(f"{words} {len(names)} ({', '.join(names[:MOST_NAMED])}{more})")
    same = sum(row.change == SAME for row in found.rows)
    if not parts:
        least = min(row.found.pairs or min(row.a.n, row.b.n) for row in found.rows)
        return (
            f"No difference between A and B is significant on {counted(n, 'score')} (at 5 %, corrected by Holm's method); "
            f"with {counted(least, 'sample')} and more, small ones could go unseen."
        )
    rest = f"; no significant difference on {same}" if same else ""
    return f"Of {counted(n, 'score')}, B is {', '.join(parts)}{rest} (at 5 %, corrected by Holm's method)."


def diff_listing(found: ScoreDiff) -> Listing:
    data = [_data(row) for row in found.rows]
    several = any(row.run for row in found.rows)
    shots = len({row.n_shots for row in found.rows}) > 1
    shown = [*(["run"] if several else []), "task", *(["n_shots"] if shots else []), "metric", *NUMBERS, "change"]
    cells = [_cells(row, several=several, shots=shots) for row in found.rows]
    only = [
        f"Only in {side}: {', '.join(map(shown_name, names[:20]))}{', ...' if len(names) > 20 else ''}."
        for side, names in zip("AB", found.only, strict=True)
        if names
    ]
    notes = [f"{side}: {name}" for side, name in zip("AB", found.names, strict=True)]
    if any(row.over_shared for row in found.rows):
        notes.append(OVER_SHARED)
    bold = {(number_of_row, shown.index("B - A")) for number_of_row, row in enumerate(found.rows) if row.change}
    return Listing(
        data,
        list(data[0]),
        shown,
        cells,
        numbers=("n_shots", *NUMBERS),
        group=("run",) if several else (),
        bold=bold,
        notes=[*notes, *only, sentence(found)],
    )


def _data(row: DiffRow) -> Mapping[str, Any]:
    """The columns of CSV, JSON and Parquet."""
    one, paired = row.found.difference.estimate, row.found.values or (None, None)
    return {
        "run": row.run,
        "task": row.name,
        "metric": row.metric,
        "n_shots": row.n_shots,
        "value_a": row.a.value,
        "value_b": row.b.value,
        "difference": one.value,
        "low": one.low,
        "high": one.high,
        "p": row.found.difference.p,
        "p_corrected": row.p_corrected,
        "change": row.change,
        "pairs": row.found.pairs,
        "paired_a": paired[0],
        "paired_b": paired[1],
        "n_a": row.a.n,
        "n_b": row.b.n,
        "run_a": row.paths[0],
        "run_b": row.paths[1],
    }


def _cells(row: DiffRow, *, several: bool, shots: bool) -> list[str]:
    one = row.found.difference.estimate
    signed = f"+{number(one.value)}" if one.value > 0 else number(one.value)
    interval = "-" if one.low is None else f"{number(one.low, 3)}{' to ' if one.low < 0 else dash()}{number(one.high, 3)}"
    names = [*([row.run] if several else []), row.name]
    names += [*(["" if row.n_shots is None else str(row.n_shots)] if shots else []), row.metric]
    tested = [_p(row.found.difference.p), _p(row.p_corrected)]
    pairs = str(row.found.pairs) if row.found.pairs else "unpaired"
    return [*map(shown_name, names), *map(number, row.shown), signed, interval, *tested, pairs, row.change]


def _p(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
