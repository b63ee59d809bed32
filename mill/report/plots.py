"""The pictures of `mill plot`, drawn by matplotlib: scores by model, scores against tokens or dollars, and calibration.

Equal data make equal files: no time is written, and ids are salted with a constant.
"""

from __future__ import annotations

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
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

FORMS = ("svg", "png", "pdf")
UNSTAMPED: Mapping[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "mill"},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None},
}
SAMPLES = 1_000  # dollars are for so many samples
LOG_RATIO = 20  # of the largest to the smallest cost, from which on an axis is logarithmic
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
    "savefig.facecolor": "white",
    "savefig.dpi": 150,
    "svg.hashsalt": "mill",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a model's name is no formula
}
Answers = list[tuple[float, bool]]
"""Of multiple choice: the probability of the choice, and whether it is right."""


@dataclass(frozen=True)
class PlottedRun:
    """A run in the pictures of one task. `series` is the number of the run, which has one colour in all pictures."""

    label: str
    series: int
    metrics: Mapping[str, Estimate]
    cost: float
    """Tokens of a sample, or dollars of a thousand samples; NaN where they are not counted."""
    calibration: Calibration | None


def plotted_runs(runs: Sequence[RecordedRun], task: str = "", price: Price | None = None) -> dict[str, list[PlottedRun]]:
    """By benchmark, and by task that is in none; with `task`, all whose name contains it."""

    @cache
    def read(series: int, name: str) -> tuple[list[tuple[int, int]], Answers]:
        """The prompt and output tokens of the samples that have them, and the answers, of one task."""
        rows = runs[series].gather(name, lambda row: (row.tokens(), choice_answer(row)))
        counted = [(tokens[0] or 0, tokens[1] or 0) for tokens, _ in rows if tokens != (None, None)]
        return counted, [answer for _, answer in rows if answer is not None]

    def plotted(name: str, series: int, run: RecordedRun, label: str) -> PlottedRun:
        result, parts = run.result(name), [read(series, member) for member in run.tasks_of(name)]
        assert result is not None
        tokens, answers = [pair for counted, _ in parts for pair in counted], [one for _, some in parts for one in some]
        prompt, output = (sum(side) for side in zip(*tokens, strict=True)) if tokens else (0, 0)
        total = prompt + output if price is None else SAMPLES * price.cost(TokenUsage(prompt, output))
        partial = f" (mean of {part})" if (part := mean_of_tasks(result)) else ""
        cost = total / len(tokens) if tokens else math.nan
        return PlottedRun(label + partial, series, result.metrics, cost, calibration(answers) if answers else None)

    found = {}
    for name in _names(runs, task):
        having = [(series, run) for series, run in enumerate(runs) if run.result(name) is not None]
        counts = Counter(run.label for _, run in having)
        labels = [run.label if counts[run.label] == 1 else f"{run.label}, {run.settings}" for _, run in having]
        found[name] = [plotted(name, *one, label) for one, label in zip(having, labels, strict=True)]
    return found


def _names(runs: Sequence[RecordedRun], task: str) -> list[str]:
    benchmarks = {name: mean.tasks for run in runs for name, mean in run.results.benchmarks.items()}
    inside = {member for name, members in benchmarks.items() for member in members if member != name}
    names = dict.fromkeys(name for run in runs for name in (*run.results.benchmarks, *run.results.tasks))
    return [name for name in names if (task in name if task else name in benchmarks or name not in inside)]


def choice_answer(row: SampleRow) -> tuple[float, bool] | None:
    """Of multiple choice, the probability of the choice and whether it is right; None where one is not known."""
    if row.status in (FAILED, PENDING) or row.correct is None:
        return None
    confidence = choice_confidence(row.choice_logprobs or ())
    return None if confidence is None else (confidence, row.correct)


def draw(name: str, runs: Sequence[PlottedRun], forms: Sequence[str], *, dollars: bool) -> dict[str, dict[str, bytes]]:
    """The pictures of a task by kind, each in all forms; none of what the runs do not have."""
    found = {}
    with plot_style() as pyplot:
        costs = draw_costs(pyplot, runs, dollars=dollars)
        figures = {"scores": draw_scores(pyplot, runs), "cost": costs, "calibration": draw_calibration(pyplot, runs)}
        for kind, figure in figures.items():
            if figure is not None:
                figure.suptitle(_short_name(name, 80), fontsize=10, fontweight="bold")
                found[kind] = figure_bytes(figure, forms)
    return found


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


def figure_bytes(figure: Any, forms: Sequence[str]) -> dict[str, bytes]:
    found = {}
    for form in forms:
        out = io.BytesIO()
        figure.savefig(out, format=form, metadata=UNSTAMPED[form])
        found[form] = out.getvalue()
    return found


def _short_name(text: str, most: int = LONGEST) -> str:
    """Shortened before the middle: names of models differ at the end."""
    text, head = one_line(text), most // 3
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def _short_names(runs: Sequence[PlottedRun], most: int = LONGEST) -> list[str]:
    """Short names; equal ones of different labels are numbered."""
    names = [_short_name(run.label, most) for run in runs]
    before = [names[:index].count(name) for index, name in enumerate(names)]
    return [f"{name} #{count + 1}" if count else name for name, count in zip(names, before, strict=True)]


def draw_scores(pyplot: Any, runs: Sequence[PlottedRun]) -> Any:
    """A panel for each metric, with a row for each run: a dot and its 95 % interval."""
    metrics = list(dict.fromkeys(metric for run in runs for metric, found in run.metrics.items() if found.n))[:MOST_METRICS]
    if not metrics:
        return None
    size = (3.2 + 2.6 * len(metrics), 1.0 + 0.3 * len(runs))
    figure, axes = pyplot.subplots(1, len(metrics), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, metric in zip(axes[0], metrics, strict=True):
        lowest = 0.0
        for row, run in enumerate(runs):
            estimate = run.metrics.get(metric)
            if estimate is None or not estimate.n:
                continue
            if not drawable(estimate.value):
                place: dict[str, Any] = {"va": "center", "color": GREY, "transform": axis.get_yaxis_transform()}
                axis.text(0.02, row, number(estimate.value), **place)
                continue
            low, high = _bounds(estimate)
            lowest = min(lowest, low)
            axis.plot([low, high], [row, row], color=COLOURS[0], linewidth=1.6, alpha=0.6, solid_capstyle="butt")
            axis.plot([estimate.value], [row], marker="o", markersize=5.5, color=COLOURS[0], clip_on=False)
        axis.set_title(_short_name(metric))
        axis.set_xlabel("value and 95 % interval")
        axis.set_yticks(range(len(runs)), _short_names(runs))
        axis.set_ylim(len(runs) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        if lowest >= 0:
            axis.set_xlim(left=max(axis.get_xlim()[0], -0.03 * axis.get_xlim()[1]))
        _plain_ticks(axis.xaxis)
    return figure


def _bounds(estimate: Estimate) -> tuple[float, float]:
    """The interval; a bound that is unknown or cannot be drawn is the value itself."""
    low, high = (estimate.value if end is None or not drawable(end) else end for end in (estimate.low, estimate.high))
    return low, high


def draw_costs(pyplot: Any, runs: Sequence[PlottedRun], *, dollars: bool) -> Any:
    """A point for each run by the first metric; the legend beside the plot names its colour and shape."""
    metric = next((metric for run in runs for metric in run.metrics), "")
    names, metrics = _short_names(runs), [run.metrics.get(metric) for run in runs]
    known = [
        (run, name, found)
        for run, name, found in zip(runs, names, metrics, strict=True)
        if found is not None and drawable(found.value) and not math.isnan(run.cost)
    ]
    if not known:
        return None
    figure, axis = pyplot.subplots(figsize=(7.6, max(3.2, 0.9 + 0.22 * len(known))), layout="constrained")
    points = []
    for run, _, estimate in known:
        colour, marker = COLOURS[run.series % len(COLOURS)], MARKERS[run.series % len(MARKERS)]
        hollow = {"marker": marker, "fillstyle": "none", "markersize": 7.5, "markeredgewidth": 1.6}  # shows those below
        axis.plot([run.cost, run.cost], _bounds(estimate), color=colour, linewidth=1.2, alpha=0.4)
        points += axis.plot([run.cost], [estimate.value], color=colour, linestyle="", **hollow)
    costs = [run.cost for run, _, _ in known]
    if min(costs) > 0 and max(costs) > LOG_RATIO * min(costs):
        axis.set_xscale("log")
    elif max(costs) - min(costs) < 0.2 * max(costs):  # small differences look small
        axis.set_xlim(min(costs) - 0.1 * max(costs), max(costs) + 0.1 * max(costs))
    axis.margins(0.08)
    axis.set_xlabel(f"dollars for {SAMPLES:,} samples" if dollars else "tokens for a sample, prompt and output")
    axis.set_ylabel(f"{_short_name(metric)}, 95 % interval")
    _plain_ticks(axis.xaxis)
    _plain_ticks(axis.yaxis)
    # A label that starts with an underscore would be left out of a legend, so the texts come afterwards.
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
    legend = axis.legend(points, list(map(str, range(len(points)))), **place)
    for text, (_, name, _) in zip(legend.get_texts(), known, strict=True):
        text.set_text(name)
    return figure


def draw_calibration(pyplot: Any, runs: Sequence[PlottedRun]) -> Any:
    """For each run how often answers of a probability are right, and below it how many answers there are."""
    known = [(name, run.calibration) for name, run in zip(_short_names(runs, 32), runs, strict=True) if run.calibration]
    if not known:
        return None
    columns = min(PANELS_IN_LINE, len(known))
    lines = math.ceil(len(known) / columns)
    size, heights = (0.6 + 2.7 * max(columns, 1.4), 0.6 + 3.5 * lines), [3, 1] * lines
    shape: dict[str, Any] = {"figsize": size, "height_ratios": heights, "sharex": True, "layout": "constrained"}
    figure, axes = pyplot.subplots(2 * lines, columns, squeeze=False, **shape)
    for index in range(lines * columns):
        upper, lower = (axes[2 * (index // columns) + part][index % columns] for part in (0, 1))
        if index < len(known):
            _draw_reliability(upper, lower, *known[index])
            upper.set_ylabel("share right" if index % columns == 0 else "")
            lower.set_ylabel("answers" if index % columns == 0 else "")
        else:
            upper.set_axis_off()
            lower.set_axis_off()
    figure.supxlabel("probability of the chosen answer", fontsize=9)
    return figure


def _draw_reliability(upper: Any, lower: Any, label: str, found: Calibration) -> None:
    upper.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    for filled in (one for one in found.bins if one.n):
        middle, width = (filled.first + filled.last) / 2, filled.last - filled.first
        upper.bar(middle, filled.accuracy, width * 0.92, color=COLOURS[4], alpha=0.45)
        upper.plot([filled.confidence] * 2, [filled.low, filled.high], color=COLOURS[0], linewidth=1.2, alpha=0.7)
        upper.plot([filled.confidence], [filled.accuracy], marker="o", markersize=4.5, color=COLOURS[0], clip_on=False)
        lower.bar(middle, filled.n, width * 0.92, color=GREY)
    upper.set_title(f"{label}\nECE {found.ece:.3f}, n = {found.n:,}")
    upper.set_ylim(0, 1.02)
    lower.set_xlim(0, 1)
    lower.tick_params(labelbottom=True)
    for axis, most in ((upper.yaxis, 5), (lower.xaxis, 4), (lower.yaxis, 3)):
        _plain_ticks(axis, most)


def _plain_ticks(axis: Any, most: int = 6) -> None:
    """Numbers as text, thousands as k from 10,000 on: matplotlib's own are formulas on logarithmic axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    def tick(value: float, _: Any) -> str:
        return f"{value / 1000:,.10g}k" if abs(value) >= 10_000 else f"{value:,.10g}"

    if axis.get_scale() == "log":
        first, last = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0,) if last > 100 * first else (1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(tick))
