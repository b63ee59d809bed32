"""The plots of runs as SVG and PNG files, drawn by matplotlib. Equal data make equal files: no time is written, and ids are
salted with a constant."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mill.api.errors import MissingPackage
from mill.metrics.aggregate import Calibration
from mill.report.plot_data import CalibrationPlot, CostPlot, PlottedScore, ScorePlot
from mill.report.tables import drawable, number
from mill.support.terminal import one_line

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


def _name(text: str, most: int = LONGEST) -> str:
    """Shortened before the middle: names of models differ at the end."""
    text, head = one_line(text), most // 3
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def _names(labels: Sequence[str], most: int = LONGEST) -> dict[str, str]:
    """Short names; equal ones of different labels are numbered."""
    found: dict[str, str] = {}
    counts: dict[str, int] = {}
    for label in dict.fromkeys(labels):
        name = _name(label, most)
        counts[name] = counts.get(name, 0) + 1
        found[label] = name if counts[name] == 1 else f"{name} #{counts[name]}"
    return found


def draw_scores(plots: Sequence[ScorePlot], forms: Sequence[str]) -> dict[str, bytes]:
    """A panel for each metric of one task, with a row for each run: a dot and its 95 % interval."""
    plots = plots[:MOST_METRICS]
    names = _names([score.label for plot in plots for score in plot.scores])
    labels = list(names)
    with plot_style() as pyplot:
        size = (3.2 + 2.6 * len(plots), 1.0 + 0.3 * len(labels))
        fig, axes = pyplot.subplots(1, len(plots), figsize=size, sharey=True, squeeze=False, layout="constrained")
        for axis, plot in zip(axes[0], plots, strict=True):
            for score in plot.scores:
                _draw_row(axis, score, labels.index(score.label))
            axis.set_title(_name(plot.metric))
            axis.set_xlabel("value and 95 % interval")
            axis.set_yticks(range(len(labels)), list(names.values()))
            axis.set_ylim(len(labels) - 0.5, -0.5)
            axis.tick_params(axis="y", length=0)
            axis.grid(visible=False, axis="y")
            if min((_bounds(score)[0] for score in plot.scores if drawable(score.estimate.value)), default=-1.0) >= 0:
                axis.set_xlim(left=max(axis.get_xlim()[0], -0.03 * axis.get_xlim()[1]))
            _plain_ticks(axis.xaxis)
        fig.suptitle(_name(plots[0].name, 80), fontsize=10, fontweight="bold")
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
        axis.set_ylabel(f"{_name(plot.metric)}, 95 % interval")
        axis.set_title(_name(plot.name, 80), fontweight="bold", loc="left")
        _plain_ticks(axis.xaxis)
        _plain_ticks(axis.yaxis)
        # A label that starts with an underscore would be left out of a legend, so that the texts come afterwards.
        legend = axis.legend(
            points, list(map(str, range(len(points)))), loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False
        )
        names = _names([score.label for score in plot.scores])
        for text, score in zip(legend.get_texts(), plot.scores, strict=True):
            text.set_text(names[score.label])
        return figure_bytes(fig, forms)


def draw_calibration(plot: CalibrationPlot, forms: Sequence[str]) -> dict[str, bytes]:
    """For each run how often answers of a probability are right, and below it how many answers there are."""
    with plot_style() as pyplot:
        names = _names([run.label for run in plot.runs], 32)
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
        fig.suptitle(_name(plot.name, 80), fontsize=10, fontweight="bold")
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

    if axis.get_scale() == "log":
        first, last = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0,) if last > 100 * first else (1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    """Thousands as k, from 10,000 on."""
    return f"{value / 1000:,.10g}k" if abs(value) >= 10_000 else f"{value:,.10g}"
