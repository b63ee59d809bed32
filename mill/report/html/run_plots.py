"""The plots of runs in a report: the data are those of `mill plot`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mill.metrics.calibration import CalibrationBin
from mill.metrics.estimate import Estimate
from mill.report.html.charts import Axis, Point, dot_chart, reliability_chart, scatter_chart
from mill.report.html.tag import Html, tag
from mill.report.plot_data import CostPlot, PlotData, PlottedCalibration, PlottedScore, plot_data
from mill.report.runs import RunSection
from mill.report.tables import drawable, number
from mill.runs.folder import RunFolder
from mill.runs.recorded_run import RecordedRun, with_arguments

MAX_DOTS, MAX_PLOTS = 40, 24


def section_plots(runs: Sequence[RunSection]) -> PlotData:
    """The number of a series is that of its section."""
    return plot_data(with_arguments([RecordedRun(RunFolder(run.path), run.manifest, run.results) for run in runs]))


def shared_plots(data: PlotData) -> list[Html]:
    """Scores by model and by what they took, of tasks that several runs have."""
    scores = [
        score_chart(f"{plot.name}: {plot.metric}", [_row(score) for score in plot.scores if _drawable(score)])
        for plot in data.scores
        if sum(map(_drawable, plot.scores)) > 1
    ]
    costs = [_cost_chart(plot) for plot in data.costs if len(plot.scores) > 1]
    return [tag("div", charts[:MAX_PLOTS], class_="charts") for charts in (scores, costs) if charts]


def calibration_plots(data: PlotData, series: int) -> list[Html]:
    """Those of one run."""
    found = [(plot.name, run) for plot in data.calibrations for run in plot.runs if run.series == series]
    return [_calibration_chart(name, run) for name, run in found[:MAX_PLOTS]]


def _drawable(score: PlottedScore) -> bool:
    return drawable(score.estimate.value)


def _row(score: PlottedScore) -> tuple[str, Point, int]:
    return score.label, score_point(score.label, score.estimate), score.series


def score_point(name: str, estimate: Estimate, x: float = 0.0) -> Point:
    """A value with its interval, where that can be drawn."""
    low, high = (bound if bound is not None and drawable(bound) else None for bound in (estimate.low, estimate.high))
    tooltip = f"{name}: {number(estimate.value)}"
    if low is not None and high is not None:
        tooltip += f" ({number(low)} to {number(high)})"
    return Point(x, estimate.value, low, high, tooltip, name)


def score_chart(title: str, rows: Sequence[tuple[str, Point, int]]) -> Html:
    """Rows of dots; the axis is that of shares where all of them are between 0 and 1."""
    shown = rows[:MAX_DOTS]
    lowest, highest = min(0.0, *(point.bottom for _, point, _ in shown)), max(point.top for _, point, _ in shown)
    last = 1.0 if lowest >= 0.0 and highest <= 1.0 else highest + 0.05 * (highest - lowest)
    more = f" (the first {MAX_DOTS} of {len(rows)})" if len(rows) > MAX_DOTS else ""
    return dot_chart(f"{title}{more}", Axis("", lowest, last), shown)


def _cost_chart(plot: CostPlot) -> Html:
    first, last = (math.log10(end) if plot.log else end for end in plot.span)
    points = []
    for score in plot.scores:
        point = score_point(score.label, score.estimate, math.log10(score.x) if plot.log else score.x)
        named = f"{point.tooltip}, {number(score.x, 1)} {plot.axis}"
        points.append((Point(point.x, point.y, point.low, point.high, named, point.name), score.series))
    x = Axis(plot.axis, first, last, log=plot.log)
    low, high = min(point.bottom for point, _ in points), max(point.top for point, _ in points)
    y = Axis("", min(low, high) - 0.02 * (high - low), high + 0.25 * (high - low) or 1.0)
    return scatter_chart(f"{plot.name}: {plot.metric} against {plot.axis.split(',')[0]}", x, y, points)


def _calibration_chart(name: str, run: PlottedCalibration) -> Html:
    found = run.found
    bins = [(one.first, one.last, _bin_point(one), one.n) for one in found.bins if one.n]
    title = f"Calibration of {name}: ECE {found.ece:.3f}, n = {found.n:,}"
    return reliability_chart(title, "probability of the chosen answer", bins)


def _bin_point(one: CalibrationBin) -> Point:
    right = f"{100 * one.accuracy:.0f} % right ({100 * one.low:.0f} to {100 * one.high:.0f} %)"
    tooltip = f"{one.first:.2f} to {one.last:.2f}: {one.n} answers, {right}, mean probability {one.confidence:.3f}"
    return Point(one.confidence, one.accuracy, one.low, one.high, tooltip)
