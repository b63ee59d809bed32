"""What the plots of runs show: scores by model, scores against tokens or dollars, and calibration. `plot_files` draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mill.api.budget import Price, TokenUsage
from mill.metrics.aggregate import Calibration, calibration, choice_confidence
from mill.metrics.estimate import Estimate
from mill.report.partial import mean_of_tasks
from mill.report.tables import drawable
from mill.score.recorded_run import RecordedRun
from mill.store.sample_row import FAILED, PENDING, SampleRow

SAMPLES = 1_000  # dollars are for so many samples
LOG_RATIO = 20  # of the largest to the smallest cost, from which on an axis is logarithmic


@dataclass(frozen=True)
class PlottedScore:
    """A score of a run. `series` is the number of the run, which has one colour in all plots; `x` is what it took."""

    label: str
    estimate: Estimate
    series: int
    x: float = math.nan


@dataclass(frozen=True)
class ScorePlot:
    """The scores of one task or benchmark by one metric."""

    name: str
    metric: str
    scores: Sequence[PlottedScore]


@dataclass(frozen=True)
class CostPlot:
    """Scores against tokens for a sample, or against dollars for a thousand samples."""

    name: str
    metric: str
    axis: str
    scores: Sequence[PlottedScore]

    @property
    def log(self) -> bool:
        """Whether the axis is logarithmic."""
        xs = [score.x for score in self.scores]
        return min(xs) > 0 and max(xs) > LOG_RATIO * min(xs)

    @property
    def span(self) -> tuple[float, float]:
        """The ends of the axis: with room on both sides, and wide enough that small differences look small."""
        xs = [math.log10(score.x) if self.log else score.x for score in self.scores]
        middle, half = (min(xs) + max(xs)) / 2, max((max(xs) - min(xs)) / 2, 0.0 if self.log else 0.1 * max(xs))
        first, last = middle - 1.15 * half, middle + 1.15 * half or 1.0
        return (10**first, 10**last) if self.log else (first, last)


@dataclass(frozen=True)
class PlottedCalibration:
    """The calibration of one run; `series` as in `PlottedScore`."""

    label: str
    found: Calibration
    series: int


@dataclass(frozen=True)
class CalibrationPlot:
    """The calibration of each run in a task or benchmark of multiple choice."""

    name: str
    runs: Sequence[PlottedCalibration]


@dataclass
class PlotData:
    scores: list[ScorePlot] = field(default_factory=list)
    costs: list[CostPlot] = field(default_factory=list)
    calibrations: list[CalibrationPlot] = field(default_factory=list)


@dataclass
class _Usage:
    """What the samples of a run took and how sure its choices were."""

    counted: int = 0
    """Samples with a number of tokens."""
    prompt: int = 0
    output: int = 0
    answers: list[tuple[float, bool]] = field(default_factory=list)

    def add(self, other: _Usage) -> None:
        self.counted += other.counted
        self.prompt += other.prompt
        self.output += other.output
        self.answers += other.answers


def plot_data(runs: Sequence[RecordedRun], task: str = "", price: Price | None = None) -> PlotData:
    """The plots of benchmarks and of tasks that are in none; with `task`, of all whose name contains it."""
    data = PlotData()
    usages: dict[tuple[Path, str], _Usage] = {}
    for name in _names(runs, task):
        with_scores = [(number, run) for number, run in enumerate(runs) if run.result(name) is not None]
        labels = _with_partial(name, run_labels([run for _, run in with_scores]), with_scores)
        data.scores += _score_plots(name, with_scores, labels)
        read = {number: _usage(run, name, usages) for number, run in with_scores}
        data.costs += _cost_plots(name, with_scores, labels, read, price)
        panels = [
            PlottedCalibration(labels[run.path], calibration(read[number].answers), number)
            for number, run in with_scores
            if read[number].answers
        ]
        data.calibrations += [CalibrationPlot(name, panels)] if panels else []
    return data


def run_labels(runs: Sequence[RecordedRun]) -> dict[Path, str]:
    """The model's name, with its settings where several runs have it."""
    counts = Counter(run.label for run in runs)
    return {run.path: run.label if counts[run.label] == 1 else f"{run.label}, {run.settings}" for run in runs}


def _with_partial(name: str, labels: Mapping[Path, str], runs: Sequence[tuple[int, RecordedRun]]) -> dict[Path, str]:
    """The labels, with a note where a benchmark's mean lacks tasks."""
    found = {}
    for _, run in runs:
        result = run.result(name)
        of = mean_of_tasks(result) if result is not None else ""
        found[run.path] = f"{labels[run.path]} (mean of {of})" if of else labels[run.path]
    return found


def _names(runs: Sequence[RecordedRun], task: str) -> list[str]:
    benchmarks = {name: mean.tasks for run in runs for name, mean in run.results.benchmarks.items()}
    inside = {member for name, members in benchmarks.items() for member in members if member != name}
    tasks = {name for run in runs for name in run.results.tasks}
    names = dict.fromkeys(name for run in runs for name in (*run.results.benchmarks, *run.results.tasks))
    if task:
        return [name for name in names if task in name]
    return [name for name in names if name in benchmarks or (name in tasks and name not in inside)]


def _metrics(name: str, runs: Sequence[tuple[int, RecordedRun]]) -> list[str]:
    found = (run.result(name) for _, run in runs)
    return list(dict.fromkeys(metric for result in found if result is not None for metric in result.metrics))


def _score_plots(name: str, runs: Sequence[tuple[int, RecordedRun]], labels: Mapping[Path, str]) -> list[ScorePlot]:
    plots = []
    for metric in _metrics(name, runs):
        scores = []
        for number, run in runs:
            one = run.estimate(name, metric)
            if one is not None and one.n:
                scores.append(PlottedScore(labels[run.path], one, number))
        plots += [ScorePlot(name, metric, scores)] if scores else []
    return plots


def _cost_plots(
    name: str,
    runs: Sequence[tuple[int, RecordedRun]],
    labels: Mapping[Path, str],
    usages: Mapping[int, _Usage],
    price: Price | None,
) -> list[CostPlot]:
    """By the first metric, for the runs whose tokens are recorded."""
    metric = next(iter(_metrics(name, runs)), "")
    scores = []
    for number, run in runs:
        estimate, usage = run.estimate(name, metric), usages[number]
        if estimate is not None and usage.counted and drawable(estimate.value):
            scores.append(PlottedScore(labels[run.path], estimate, number, _cost(usage, price)))
    axis = "tokens for a sample, prompt and output" if price is None else f"dollars for {SAMPLES:,} samples"
    return [CostPlot(name, metric, axis, scores)] if scores else []


def _cost(usage: _Usage, price: Price | None) -> float:
    if price is None:
        return (usage.prompt + usage.output) / usage.counted
    return SAMPLES * price.cost(TokenUsage(usage.prompt, usage.output)) / usage.counted


def _usage(run: RecordedRun, name: str, known: dict[tuple[Path, str], _Usage]) -> _Usage:
    """Of a task, or of all tasks of a benchmark together; each file is read once."""
    total = _Usage()
    for task in run.tasks_of(name):
        if (run.path, task) not in known:
            known[run.path, task] = _read(run, task)
        total.add(known[run.path, task])
    return total


def _read(run: RecordedRun, task: str) -> _Usage:
    usage = _Usage()
    for (prompt, output), answer in run.gather(task, _taken):
        if prompt is not None or output is not None:
            usage.counted += 1
            usage.prompt += prompt or 0
            usage.output += output or 0
        if answer is not None:
            usage.answers.append(answer)
    return usage


def _taken(row: SampleRow) -> tuple[tuple[int | None, int | None], tuple[float, bool] | None]:
    """The tokens of a sample, and `choice_answer`."""
    return row.tokens(), choice_answer(row)


def choice_answer(row: SampleRow) -> tuple[float, bool] | None:
    """Of multiple choice, the probability of the choice and whether it is right; None where one is not known."""
    if row.status in (FAILED, PENDING) or row.correct is None:
        return None
    confidence = choice_confidence(row.choice_logprobs or ())
    return None if confidence is None else (confidence, row.correct)
