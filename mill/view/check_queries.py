"""Saved checks as the pages show them: metrics, rules, charts, and one metric over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mill.api.errors import MillError, UnknownName
from mill.checks.gate import judge, parse_rules
from mill.checks.glossary import GROUPS, METRICS, format_value, title
from mill.checks.kinds import explain
from mill.checks.result import Check, read_check
from mill.metrics.estimate import Estimate
from mill.report.html.charts import Axis, Point, Series, line_chart
from mill.report.html.plots import charts
from mill.support.files import encode_float
from mill.view.index import ResultsIndex
from mill.view.run_info import file_signature


@lru_cache(maxsize=64)
def _read(file: Path, signature: Any) -> Check:
    return read_check(file)


def find_check(index: ResultsIndex, uid: str) -> Check:
    file = index.checks.get(uid)
    if file is None:
        raise UnknownName("check", uid[:60], index.checks, hint="it may have been removed or moved")
    return _read(file, file_signature(file))


def list_checks(index: ResultsIndex) -> list[dict[str, Any]]:
    """All checks, newest first; one that cannot be read has the reason."""
    found = []
    for uid, file in index.checks.items():
        entry: dict[str, Any] = {"uid": uid, "name": file.parent.name}
        try:
            check = find_check(index, uid)
        except MillError as error:
            found.append({**entry, "error": str(error), "created": ""})
            continue
        found.append(
            {
                **entry,
                "command": check.command,
                "tasks": check.tasks,
                "created": check.created,
                "baseline": check.baseline,
                "variants": [{"label": variant.label, "verdict": variant.verdict} for variant in check.variants],
            }
        )
    return sorted(found, key=lambda entry: str(entry["created"]), reverse=True)


def show_check(index: ResultsIndex, uid: str, fail_on: str = "", require: str = "") -> dict[str, Any]:
    check = find_check(index, uid)
    rules = parse_rules(fail_on or None, require or None)
    outcomes = [
        {"rule": one.rule.text, "option": one.rule.option}
        | {"variant": one.variant, "status": one.status, "reason": one.reason}
        for one in judge(check, rules)
    ]
    known = [name for name in METRICS if any(name in variant.metrics for variant in check.variants)]
    groups = [(group, [name for name in names if name in known]) for group, names in GROUPS.items()]
    return {
        "uid": uid,
        "command": check.command,
        "tasks": check.tasks,
        "created": check.created,
        "baseline": check.baseline,
        "baseline_run": uid_of_run(index, check.baseline_run),
        "settings": check.settings,
        "warnings": check.warnings,
        "metrics": [
            {"name": name, "title": title(name), "about": METRICS[name].about, "group": group}
            for group, names in groups
            for name in names
        ],
        "variants": [
            {
                "label": variant.label,
                "verdict": variant.verdict,
                "sentences": explain(check, variant),
                "run": uid_of_run(index, variant.run),
                "warnings": variant.warnings,
                "metrics": {name: _estimate(name, one) for name, one in variant.metrics.items()},
                "p_values": {name: encode_float(value) for name, value in variant.p_values.items()},
            }
            for variant in check.variants
        ],
        "outcomes": outcomes,
        "charts": [str(chart) for chart in charts(check)],
    }


def _estimate(name: str, estimate: Estimate) -> dict[str, Any]:
    bounds = [estimate.low, estimate.high]
    interval = "" if None in bounds else f"{format_value(name, bounds[0])} to {format_value(name, bounds[1])}"
    return {"text": format_value(name, estimate.value), "interval": interval, "n": estimate.n}


def uid_of_run(index: ResultsIndex, path: str) -> str:
    """A check names the folders of its runs as they were when it was made: they are found by their last two names."""
    if not path:
        return ""
    wanted = Path(path).parts[-2:]
    found = [run for run in index.runs.values() if run.path.parts[-2:] == wanted]
    return found[0].uid if len(found) == 1 else next((run.uid for run in found if str(run.path) == path), "")


def metric_over_time(index: ResultsIndex, metric: str, checks: Collection[str]) -> dict[str, Any]:
    """One metric of those of these checks that measured it, oldest first: a series for each command, task and label."""
    series: dict[str, list[dict[str, Any]]] = {}
    for entry in reversed(list_checks(index)):
        if "error" in entry or entry["uid"] not in checks:
            continue
        check = find_check(index, entry["uid"])
        for variant in check.variants:
            if metric in variant.metrics:
                name = f"{check.command} {', '.join(check.tasks)}: {variant.label}"
                point = {"created": check.created, "uid": entry["uid"], **_plain(metric, variant.metrics[metric])}
                series.setdefault(name, []).append(point)
    known = sorted({name for entry in checks for name in _measured(index, entry)})
    return {"metric": metric, "known": known, "series": series, "chart": _trend(metric, series)}


def _measured(index: ResultsIndex, uid: str) -> set[str]:
    try:
        return {name for variant in find_check(index, uid).variants for name in variant.metrics}
    except MillError:
        return set()


def _plain(name: str, estimate: Estimate) -> dict[str, Any]:
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    encoded = {key: None if value is None else encode_float(value) for key, value in numbers.items()}
    return {**encoded, "text": format_value(name, estimate.value)}


def _trend(metric: str, series: dict[str, list[dict[str, Any]]]) -> str:
    """A line for each series over the times at which checks were made."""
    times = sorted({point["created"] for points in series.values() for point in points})
    drawn = [
        Series(name, [_point(name, point, times.index(point["created"])) for point in points if _is_finite(point)], number)
        for number, (name, points) in enumerate(series.items())
    ]
    values = [bound for line in drawn for point in line.points for bound in (point.bottom, point.top)]
    if not values:
        return ""
    low, high = min(0.0, *values), max(values) * 1.1 or 1.0
    x = Axis("when the check was made", -0.4, len(times) - 0.6, names=[_day(time) for time in times])
    return str(line_chart(title(metric), x, Axis("", low, high), drawn))


def _is_finite(point: Mapping[str, Any]) -> bool:
    return isinstance(point["value"], float)  # NaN and infinity are texts


def _point(name: str, point: Mapping[str, Any], x: int) -> Point:
    low, high = (bound if isinstance(bound, float) else None for bound in (point["low"], point["high"]))
    return Point(x, point["value"], low, high, f"{name}, {point['created']}: {point['text']}")


def _day(created: str) -> str:
    return created[5:16].replace("T", " ")
