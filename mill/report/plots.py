"""The plots of runs: scores by model, scores against tokens or dollars, and calibration, as SVG and PNG files drawn by
matplotlib. Equal data make equal files: no time is written, and ids are salted with a constant."""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.budget import Price, TokenUsage
from mill.api.errors import MissingPackage
from mill.metrics.aggregate import Calibration, calibration, choice_confidence
from mill.metrics.estimate import Estimate
from mill.report.collect import mean_of_tasks
from mill.report.tables import drawable, number
from mill.score.recorded_run import RecordedRun
from mill.store.sample_row import FAILED, PENDING, SampleRow
from mill.support.terminal import one_line

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
        for series, run in runs:
            one = run.estimate(name, metric)
            if one is not None and one.n:
                scores.append(PlottedScore(labels[run.path], one, series))
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
    for series, run in runs:
        estimate, usage = run.estimate(name, metric), usages[series]
        if estimate is not None and usage.counted and drawable(estimate.value):
            taken = usage.prompt + usage.output
            cost = taken if price is None else SAMPLES * price.cost(TokenUsage(usage.prompt, usage.output))
            scores.append(PlottedScore(labels[run.path], estimate, series, cost / usage.counted))
    axis = "tokens for a sample, prompt and output" if price is None else f"dollars for {SAMPLES:,} samples"
    return [CostPlot(name, metric, axis, scores)] if scores else []


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
    for (prompt, output), answer in run.gather(task, lambda row: (row.tokens(), choice_answer(row))):
        if prompt is not None or output is not None:
            usage.counted += 1
            usage.prompt += prompt or 0
            usage.output += output or 0
        if answer is not None:
            usage.answers.append(answer)
    return usage


def choice_answer(row: SampleRow) -> tuple[float, bool] | None:
    """Of multiple choice, the probability of the choice and whether it is right; None where one is not known."""
    if row.status in (FAILED, PENDING) or row.correct is None:
        return None
    confidence = choice_confidence(row.choice_logprobs or ())
    return None if confidence is None else (confidence, row.correct)


FORMS = ("svg", "png")
# Okabe and Ito's palette: its colours differ for every kind of colour vision. Its yellow is too light on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "os^DvPX<>"  # so many that no two of the first 63 runs have the same colour and shape
GREY = "#6b6f76"
LONGEST = 44  # characters of a name
PANELS_IN_LINE = 4
MOST_METRICS = 6
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e5e8",
    "grid.linewidth": 0.8,
    "savefig.facecolor": "white",
    "savefig.dpi": 150,
    "svg.hashsalt": "mill",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a model's name is no formula
}


@contextmanager
def plot_style() -> Iterator[Any]:
    """pyplot with mill's style alone: neither the user's file nor his display matter."""
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError:
        raise MissingPackage("mill plot", "matplotlib", "plot") from None
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that the font does not have
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        pyplot.switch_backend("agg")
        yield pyplot
        pyplot.close("all")


def check_installed() -> None:
    """Refuse before anything is read."""
    with plot_style():
        pass


def figure_bytes(fig: Any, forms: Sequence[str]) -> dict[str, bytes]:
    found = {}
    for form in forms:
        out = io.BytesIO()
        unstamped = {"Date": None, "Creator": "mill"} if form == "svg" else {"Software": None}
        fig.savefig(out, format=form, metadata=unstamped)
        found[form] = out.getvalue()
    return found


def _short_name(text: str, most: int = LONGEST) -> str:
    """Shortened before the middle: names of models differ at the end."""
    text, head = one_line(text), most // 3
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def _short_names(labels: Sequence[str], most: int = LONGEST) -> dict[str, str]:
    """Short names; equal ones of different labels are numbered."""
    found: dict[str, str] = {}
    counts: dict[str, int] = {}
    for label in dict.fromkeys(labels):
        name = _short_name(label, most)
        counts[name] = counts.get(name, 0) + 1
        found[label] = name if counts[name] == 1 else f"{name} #{counts[name]}"
    return found


def draw_scores(plots: Sequence[ScorePlot], forms: Sequence[str]) -> dict[str, bytes]:
    """A panel for each metric of one task, with a row for each run: a dot and its 95 % interval."""
    plots = plots[:MOST_METRICS]
    names = _short_names([score.label for plot in plots for score in plot.scores])
    labels = list(names)
    with plot_style() as pyplot:
        size = (3.2 + 2.6 * len(plots), 1.0 + 0.3 * len(labels))
        fig, axes = pyplot.subplots(1, len(plots), figsize=size, sharey=True, squeeze=False, layout="constrained")
        for axis, plot in zip(axes[0], plots, strict=True):
            for score in plot.scores:
                _draw_row(axis, score, labels.index(score.label))
            axis.set_title(_short_name(plot.metric))
            axis.set_xlabel("value and 95 % interval")
            axis.set_yticks(range(len(labels)), list(names.values()))
            axis.set_ylim(len(labels) - 0.5, -0.5)
            axis.tick_params(axis="y", length=0)
            axis.grid(visible=False, axis="y")
            if min((_bounds(score)[0] for score in plot.scores if drawable(score.estimate.value)), default=-1.0) >= 0:
                axis.set_xlim(left=max(axis.get_xlim()[0], -0.03 * axis.get_xlim()[1]))
            _plain_ticks(axis.xaxis)
        fig.suptitle(_short_name(plots[0].name, 80), fontsize=10, fontweight="bold")
        return figure_bytes(fig, forms)


def _draw_row(axis: Any, score: PlottedScore, row: int) -> None:
    one = score.estimate
    if not drawable(one.value):
        axis.text(0.02, row, number(one.value), va="center", color=GREY, transform=axis.get_yaxis_transform())
        return
    low, high = _bounds(score)
    axis.plot([low, high], [row, row], color=COLOURS[0], linewidth=1.6, alpha=0.6, solid_capstyle="butt")
    axis.plot([one.value], [row], marker="o", markersize=5.5, color=COLOURS[0], clip_on=False)


def _bounds(score: PlottedScore) -> tuple[float, float]:
    """The interval; a bound that is unknown or cannot be drawn is the value itself."""
    value = score.estimate.value
    low, high = (
        value if bound is None or not drawable(bound) else bound for bound in (score.estimate.low, score.estimate.high)
    )
    return low, high


def draw_costs(plot: CostPlot, forms: Sequence[str]) -> dict[str, bytes]:
    """A point for each run, whose colour and shape the legend beside the plot names."""
    with plot_style() as pyplot:
        height = max(3.2, 0.9 + 0.22 * len(plot.scores))
        fig, axis = pyplot.subplots(figsize=(7.6, height), layout="constrained")
        points = []
        for score in plot.scores:
            low, high = _bounds(score)
            colour, marker = COLOURS[score.series % len(COLOURS)], MARKERS[score.series % len(MARKERS)]
            hollow = {"marker": marker, "fillstyle": "none", "markersize": 7.5, "markeredgewidth": 1.6}  # shows those below
            axis.plot([score.x, score.x], [low, high], color=colour, linewidth=1.2, alpha=0.4)
            points += axis.plot([score.x], [score.estimate.value], color=colour, linestyle="", **hollow)
        if plot.log:
            axis.set_xscale("log")
        axis.margins(0.08)
        axis.set_xlim(*plot.span)
        axis.set_xlabel(plot.axis)
        axis.set_ylabel(f"{_short_name(plot.metric)}, 95 % interval")
        axis.set_title(_short_name(plot.name, 80), fontweight="bold", loc="left")
        _plain_ticks(axis.xaxis)
        _plain_ticks(axis.yaxis)
        # A label that starts with an underscore would be left out of a legend, so that the texts come afterwards.
        legend = axis.legend(
            points, list(map(str, range(len(points)))), loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False
        )
        names = _short_names([score.label for score in plot.scores])
        for text, score in zip(legend.get_texts(), plot.scores, strict=True):
            text.set_text(names[score.label])
        return figure_bytes(fig, forms)


def draw_calibration(plot: CalibrationPlot, forms: Sequence[str]) -> dict[str, bytes]:
    """For each run how often answers of a probability are right, and below it how many answers there are."""
    with plot_style() as pyplot:
        names = _short_names([run.label for run in plot.runs], 32)
        columns = min(PANELS_IN_LINE, len(plot.runs))
        lines = math.ceil(len(plot.runs) / columns)
        size = (0.6 + 2.7 * max(columns, 1.4), 0.6 + 3.5 * lines)
        shape: dict[str, Any] = {"sharex": True, "squeeze": False, "layout": "constrained"}
        fig, axes = pyplot.subplots(2 * lines, columns, figsize=size, height_ratios=[3, 1] * lines, **shape)
        for index in range(lines * columns):
            upper, lower = (axes[2 * (index // columns) + part][index % columns] for part in (0, 1))
            if index < len(plot.runs):
                _draw_reliability(upper, lower, names[plot.runs[index].label], plot.runs[index].found)
                upper.set_ylabel("share right" if index % columns == 0 else "")
                lower.set_ylabel("answers" if index % columns == 0 else "")
                lower.tick_params(labelbottom=True)
            else:
                upper.set_axis_off()
                lower.set_axis_off()
        fig.supxlabel("probability of the chosen answer", fontsize=9)
        fig.suptitle(_short_name(plot.name, 80), fontsize=10, fontweight="bold")
        return figure_bytes(fig, forms)


def _draw_reliability(upper: Any, lower: Any, label: str, found: Calibration) -> None:
    filled = [one for one in found.bins if one.n]
    upper.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    for one in filled:
        middle, width = (one.first + one.last) / 2, one.last - one.first
        upper.bar(middle, one.accuracy, width * 0.92, color=COLOURS[4], alpha=0.45)
        upper.plot([one.confidence] * 2, [one.low, one.high], color=COLOURS[0], linewidth=1.2, alpha=0.7)
        upper.plot([one.confidence], [one.accuracy], marker="o", markersize=4.5, color=COLOURS[0], clip_on=False)
        lower.bar(middle, one.n, width * 0.92, color=GREY)
    upper.set_title(f"{label}\nECE {found.ece:.3f}, n = {found.n:,}")
    upper.set_ylim(0, 1.02)
    lower.set_xlim(0, 1)
    for axis in (upper.yaxis, lower.xaxis, lower.yaxis):
        _plain_ticks(axis, most=4 if axis is lower.xaxis else 3 if axis is lower.yaxis else 5)


def _plain_ticks(axis: Any, most: int = 6) -> None:
    """Numbers as text: matplotlib's own are formulas on logarithmic axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    def tick(value: float) -> str:
        """Thousands as k, from 10,000 on."""
        return f"{value / 1000:,.10g}k" if abs(value) >= 10_000 else f"{value:,.10g}"

    if axis.get_scale() == "log":
        first, last = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0,) if last > 100 * first else (1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
