"""An evaluation run as a section of the page: scores, charts, warnings, failures and samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mill.metrics.estimate import Estimate
from mill.report.html.charts import Point
from mill.report.html.plots import sequence_chart
from mill.report.html.run_plots import score_chart, score_point
from mill.report.html.samples import choice_table, filters
from mill.report.html.tag import Html, joined, tag
from mill.report.run_samples import shown_choices, shown_values
from mill.report.runs import RunSection
from mill.report.scores import COLUMNS, mean_of, score_table
from mill.runs.sample_row import SampleRow, flag_words
from mill.runs.schema import Decision

MAX_CHARTS = 6
TASK, CATEGORY, MEAN = range(3)  # colours


def run_body(run: RunSection, calibration: Sequence[Html] = (), drawn: Sequence[Decision] = ()) -> list[Html]:
    """What follows the heading of a run's section; `calibration` are charts beside those of the scores, `drawn` the
    decisions that another section has a chart of."""
    lines = run.warnings
    plots = [*_sequences(run, drawn), *_charts(run), *calibration]
    return [
        *([tag("p", run.unfinished, class_="verdict")] if run.unfinished else []),
        *([_scores(run)] if run.tasks else []),
        *([tag("ul", [tag("li", line) for line in lines], class_="warnings")] if lines else []),
        *([tag("p", "; ".join(run.computed_by), class_="sub")] if run.computed_by else []),
        *([tag("div", plots, class_="charts")] if plots else []),
        _samples(run),
    ]


def _scores(run: RunSection) -> Html:
    head = tag("tr", [tag("th", name) for name in COLUMNS])
    rows = [
        tag("tr", tag("th", row[0]), [tag("td", cell) for cell in row[1:]])
        for row in score_table(run.tasks, run.benchmarks, "–")
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="metrics scores"), class_="scroll")


def _sequences(run: RunSection, drawn: Sequence[Decision]) -> list[Html]:
    """A chart for each decision that has none yet."""
    return [chart for decision in run.decisions if decision not in drawn for chart in sequence_chart(decision)]


def _charts(run: RunSection) -> list[Html]:
    """A chart for each metric, with a dot for each task, category and benchmark."""
    rows: dict[str, list[tuple[str, Point, int]]] = {}

    def add(name: str, metrics: Mapping[str, Estimate], colour: int) -> None:
        for metric, estimate in metrics.items():
            if math.isfinite(estimate.value):
                rows.setdefault(metric, []).append((name, score_point(name, estimate), colour))

    for mean in run.benchmarks:
        add(f"{mean.benchmark} ({mean_of(mean)})", mean.metrics, MEAN)
    for task in run.tasks:
        add(task.task, task.metrics, TASK)
        for category, metrics in task.categories.items():
            add(f"- {category}", metrics, CATEGORY)
    return [score_chart(metric, found) for metric, found in list(rows.items())[:MAX_CHARTS]]


def _samples(run: RunSection) -> Html:
    shown = [(task, sample) for task, found in run.samples.items() for sample in found.shown]
    if not shown:
        return tag("p", "No samples were written.", class_="none")
    total = sum(found.total for found in run.samples.values())
    choices = {
        "task": list(run.samples),
        "category": sorted({sample.category for _, sample in shown if sample.category}),
        "kind": sorted({sample.status for _, sample in shown}),
    }
    more = [tag("p", f"{total - len(shown):,} more samples are in {run.path / 'samples'}.", class_="sub")]
    listed = tag("div", [_sample(task, sample) for task, sample in shown], class_="samples")
    return joined(
        tag("h3", "Samples, failed and wrong ones first"), filters(choices), listed, more if total > len(shown) else []
    )


def _sample(task: str, sample: SampleRow) -> Html:
    facts, choices = shown_values(sample), shown_choices(sample)
    facts += [f"the first of {len(sample.keys)} repeats"] if len(sample.keys) > 1 else []
    facts += map(flag_words, sample.flags)
    where = " · ".join(filter(None, (task, str(sample.id), sample.category)))
    summary = tag(
        "summary",
        tag("span", sample.status, class_=f"tag k-{sample.status}"),
        f" {where}",
        tag("span", " · ".join(facts), class_="facts"),
    )
    gold: list[Html] = [tag("p", "target: ", tag("code", sample.target), class_="gold")] if sample.target is not None else []
    return tag(
        "details",
        summary,
        tag("h5", "prompt"),
        tag("pre", sample.prompt, class_="prompt"),
        gold,
        tag("div", _side(sample), class_="sides"),
        [choice_table(["log-probability"], [(text, [score]) for text, score in choices])] if choices else [],
        tag("button", "Copy as issue", class_="copy", type="button"),
        class_="sample",
        data_task=task,
        data_category=sample.category or "",
        data_kind=sample.status,
    )


def _side(sample: SampleRow) -> list[Html]:
    head: list[str] = ["response"]
    if sample.extracted is not None:
        head += [" → ", tag("code", sample.extracted)]
    text = sample.response if sample.response is not None or not sample.choices else sample.extracted  # the choice
    body = tag("p", sample.error, class_="error") if sample.error is not None else tag("pre", text or "")
    sides = [tag("div", tag("h5", head), body, class_="side")]
    if sample.reasoning is not None:
        sides.insert(0, tag("div", tag("h5", "reasoning"), tag("pre", sample.reasoning), class_="side"))
    if sample.error is not None and sample.response:
        sides.append(tag("div", tag("h5", "response"), tag("pre", sample.response), class_="side"))
    return sides
