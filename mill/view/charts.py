"""The charts of the pages as data: static/charts.js draws them. A chart is a dictionary of `kind` and `title`; points and
axes are those of this file, as dictionaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mill.checks.glossary import format_value, title
from mill.checks.kinds import Chart, kind_of
from mill.checks.pairing import EMPTY
from mill.checks.result import Check, Variant
from mill.metrics.aggregate import Calibration
from mill.metrics.differences import FAILED
from mill.metrics.divergence import TIERS
from mill.report.checks import group_name
from mill.report.tables import drawable
from mill.store.schema import Decision

Plot = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A point with the interval `low` to `high` of y, a tooltip, and a name drawn beside it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    tooltip: str = ""
    name: str = ""

    @property
    def bottom(self) -> float:
        return self.y if self.low is None else self.low

    @property
    def top(self) -> float:
        return self.y if self.high is None else self.high


@dataclass(frozen=True)
class Series:
    """A line of points; `colour` is a number, so that a variant has the same colour in all charts."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    band: bool = False
    """Whether the intervals are an area around the line, not a bar at each point."""
    dashed: bool = False
    """A line without dots."""


@dataclass(frozen=True)
class Axis:
    """From `first` to `last`. With `log` values are powers of ten; `names` label the integers from 0."""

    label: str
    first: float
    last: float
    names: Sequence[str] = ()
    log: bool = False
    percent: bool = False


def line_chart(heading: str, x: Axis, y: Axis, series: Sequence[Series]) -> Plot:
    return {"kind": "line", "title": heading, "x": asdict(x), "y": asdict(y), "series": [asdict(line) for line in series]}


def calibration_chart(found: Calibration) -> Plot:
    """How often answers of a probability are right, with the count of each bin."""
    bins = []
    for one in [one for one in found.bins if one.n]:
        right = f"{100 * one.accuracy:.0f} % right ({100 * one.low:.0f} to {100 * one.high:.0f} %)"
        tooltip = f"{one.first:.2f} to {one.last:.2f}: {one.n} answers, {right}, mean probability {one.confidence:.3f}"
        point = Point(one.confidence, one.accuracy, one.low, one.high, tooltip)
        bins.append({"first": one.first, "last": one.last, "n": one.n, "point": asdict(point)})
    return {"kind": "reliability", "title": f"ECE {found.ece:.3f}, n = {found.n:,}", "bins": bins}


def sequence_chart(decision: Decision) -> list[Plot]:
    """Nothing where no block was tested."""
    looks = [look for look in decision.looks if math.isfinite(float(look.value))]
    if not looks:
        return []
    name = decision.metric
    values = [decision.bound, *(float(end) for look in looks for end in (look.low, look.high))]
    x = Axis("samples", 0.0, float(max(look.n for look in looks)))
    margin = 0.05 * (max(values) - min(values)) or 0.05
    y = Axis(title(name), min(values) - margin, max(values) + margin)
    means = []
    for look in looks:
        value, low, high = (format_value(name, float(end)) for end in (look.value, look.low, look.high))
        tooltip = f"after {look.n:,} samples: {value} ({low} to {high})"
        means.append(Point(look.n, float(look.value), *_bounds(look.low, look.high), tooltip=tooltip))
    bound = [Point(x.first, decision.bound), Point(x.last, decision.bound)]
    series = [
        Series("mean so far, with its confidence sequence", means, 0, band=True),
        Series(f"bound of {decision.claim}", bound, 1, dashed=True),
    ]
    return [line_chart(f"{decision.claim}: {decision.outcome}", x, y, series)]


BINS = 24
MIN_KL = 1e-7  # smaller values are drawn here
POSITIONS_PER_DOT = 4
MIN_TEXTS = 5  # for the agreement at a position
MAX_CATEGORIES = 40
MIB, GIB = 2**20, 2**30
LEAST_POWER = -300.0  # of ten: where an interval reaches down to 0
LOG_RATIO = 20  # from this ratio of values on, the axis is logarithmic


def charts(check: Check) -> list[Plot]:
    """The course of each decision, then those that this kind of check has."""
    decided = [chart for one in check.variants if one.decision is not None for chart in sequence_chart(one.decision)]
    return decided + [plot for chart in kind_of(check.command).charts for plot in _DRAW[chart.draw](chart, check.variants)]


def _bounds(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """Those that can be drawn."""
    return low if low is not None and drawable(low) else None, high if high is not None and drawable(high) else None


def _point(variant: Variant, name: str, x: float) -> Point | None:
    estimate = variant.metrics.get(name)
    if estimate is None or not drawable(estimate.value):
        return None
    low, high = _bounds(estimate.low, estimate.high)
    tooltip = f"{variant.label}: {format_value(name, estimate.value)}"
    if low is not None and high is not None:
        tooltip += f" ({format_value(name, low)} to {format_value(name, high)})"
    return Point(x, estimate.value, low, high, tooltip, variant.label)


def _curves(chart: Chart, variants: Sequence[Variant]) -> list[Plot]:
    """KL, flips and lost accuracy by the size of the weights; as rows of dots where sizes are not known."""
    if len(variants) < 2:
        return []
    names = [name for name in chart.metrics if any(_point(variant, name, 0) for variant in variants)]
    sized = len({variant.size for variant in variants}) > 1 and all(variant.size for variant in variants)
    return [_by_size(name, variants) if sized else _dots(name, variants) for name in names]


def _by_size(name: str, variants: Sequence[Variant]) -> Plot:
    most = max(variant.size or 0 for variant in variants)
    unit, divisor = ("GiB", GIB) if most >= GIB else ("MiB", MIB)
    ordered = sorted(variants, key=lambda variant: variant.size or 0)
    points = [point for variant in ordered if (point := _point(variant, name, (variant.size or 0) / divisor))]
    first, last = points[0].x, points[-1].x
    x = Axis(f"weights, {unit}", first - 0.12 * (last - first), last + 0.12 * (last - first))
    points, y = _on_axis(name, points)
    return line_chart(_headed(name), x, y, [Series("", points)])


def _on_axis(name: str, points: Sequence[Point]) -> tuple[list[Point], Axis]:
    """An axis with 0 and room above the highest point; logarithmic for KL of very different sizes."""
    values = [point.y for point in points]
    if name == "kl_mean" and min(values) > 0 and max(values) > LOG_RATIO * min(values):
        points = [replace(point, y=_log10(point.y), low=_log10(point.low), high=_log10(point.high)) for point in points]
        first = math.floor(min(max(point.bottom, point.y - 1) for point in points))  # an interval may reach down to 0
        return points, Axis("", first, math.ceil(max(point.top for point in points) + 0.2), log=True)
    lowest, highest = min(0.0, *(point.bottom for point in points)), max(0.0, *(point.top for point in points))
    return list(points), Axis("", lowest, highest * 1.1 or 0.01, percent=name != "kl_mean")


def _log10(bound: float | None) -> Any:
    return None if bound is None else math.log10(bound) if bound > 0 else LEAST_POWER


def _dots(name: str, variants: Sequence[Variant]) -> Plot:
    known = {index: point for index, variant in enumerate(variants) if (point := _point(variant, name, 0))}
    points, axis = list(known.values()), Axis("", 0, 1, percent=True)
    if name in ("kl_mean", "flip_rate", "acc_drop"):
        points, axis = _on_axis(name, points)
    drawn = [[variants[index].label, asdict(point), index] for index, point in zip(known, points, strict=True)]
    return {"kind": "dots", "title": _headed(name), "x": asdict(axis), "rows": drawn}


def _headed(name: str) -> str:
    heading = title(name)
    return f"{heading[0].upper()}{heading[1:]}" + (", nats" if name == "kl_mean" else "")


def _kl_distribution(chart: Chart, variants: Sequence[Variant]) -> list[Plot]:
    """A histogram of KL over positions, with a logarithmic axis."""
    known = {
        index: [max(float(value), MIN_KL) for value in variant.series["kl"]]
        for index, variant in enumerate(variants)
        if variant.series.get("kl")
    }
    values = [value for of_variant in known.values() for value in of_variant]
    if not values:
        return []
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    width = (last - first) / BINS
    middles = [first + width * (index + 0.5) for index in range(BINS)]
    series = []
    for index, of_variant in known.items():
        counts = [0] * BINS
        for value in of_variant:
            counts[min(BINS - 1, int((math.log10(value) - first) / width))] += 1
        label = variants[index].label
        points = []
        for at, count in zip(middles, counts, strict=True):
            share = count / len(of_variant)
            points.append(Point(at, share, tooltip=f"{label}: {100 * share:.1f} % of positions near {10**at:.1e}"))
        series.append(Series(label, points, index))
    highest = max(point.y for line in series for point in line.points)
    below = f", {MIN_KL:.0e} and less at the left" if min(values) <= MIN_KL else ""
    x = Axis(f"KL at one position, nats{below}", first, last, log=True)
    return [line_chart("Distribution of KL over positions", x, Axis("", 0, highest * 1.1, percent=True), series)]


def _agreement(chart: Chart, variants: Sequence[Variant]) -> list[Plot]:
    """By position in the answer, a few positions per dot, as far as enough texts reach."""
    series = []
    for number, variant in enumerate(variants):
        positions = [entry for entry in variant.series.get("agreement_by_position", []) if entry["n"] >= MIN_TEXTS]
        groups = [positions[start : start + POSITIONS_PER_DOT] for start in range(0, len(positions), POSITIONS_PER_DOT)]
        if groups:
            points = []
            for group in groups:
                n, first, last = sum(entry["n"] for entry in group), group[0]["position"], group[-1]["position"]
                share = sum(entry["agreement"] * entry["n"] for entry in group) / n
                tooltip = f"{variant.label}: tokens {first} to {last}, {100 * share:.1f} % of {n} positions"
                points.append(Point((first + last) / 2, share, tooltip=tooltip))
            series.append(Series(variant.label, points, number))
    points = [point for line in series for point in line.points]
    if not points:
        return []
    y = Axis("", math.floor(min(0.9, *(point.y for point in points)) * 10) / 10, 1.0, percent=True)
    x = Axis("token", 1, max(point.x for point in points))
    return [line_chart("Same top token, by position in the answer", x, y, series)]


def _categories(chart: Chart, variants: Sequence[Variant]) -> list[Plot]:
    """A rate for each category and variant, the worst categories first."""
    (name,) = chart.metrics
    tasks = {group["task"] for variant in variants for group in variant.groups}
    known: dict[str, list[Point | None]] = {}
    for index, variant in enumerate(variants):
        for group in variant.groups:
            if name in group:
                category = group_name(group) if len(tasks) > 1 else group["category"]
                value, low, high = (None if bound is None else float(bound) for bound in group[name][:3])
                n = group[name][3] if len(group[name]) > 3 else group["n"]
                tooltip = f"{format_value(name, value)} of {n}, {format_value(name, low)} to {format_value(name, high)}"
                point = Point(0, math.nan if value is None else value, low, high, tooltip)
                known.setdefault(category, [None] * len(variants))[index] = point
    if len(known) < 2:
        return []
    good = 1.0 if name == "match_rate" else 0.0

    def mean_distance(points: Sequence[Point | None]) -> float:
        distances = [abs(point.y - good) for point in points if point and math.isfinite(point.y)]
        return sum(distances) / len(distances) if distances else 0.0

    rows = sorted(known.items(), key=lambda row: -mean_distance(row[1]))
    heading = f"{_headed(name)} by category"
    if len(rows) > MAX_CATEGORIES:
        heading += f" (the worst {MAX_CATEGORIES} of {len(rows)})"
    cells = [[label, [asdict(point) if point else None for point in points]] for label, points in rows[:MAX_CATEGORIES]]
    labels = [variant.label for variant in variants]
    return [{"kind": "matrix", "title": heading, "columns": labels, "rows": cells, "good": good}]


def _heat(chart: Chart, variants: Sequence[Variant]) -> list[Plot]:
    """Every prompt of every variant by the severity of its change."""
    keys = list(dict.fromkeys((row["task"], row["id"]) for variant in variants for row in variant.rows))
    if not keys:
        return []
    rows = []
    for variant in variants:
        by_key = {(row["task"], row["id"]): row for row in variant.rows}
        rows.append((variant.label, [_cell(key[1], by_key.get(key)) for key in keys]))
    kinds = [*(tier for tier, _ in TIERS), EMPTY, FAILED]
    return [{"kind": "heat", "title": "Every prompt, by how much its answer changed", "rows": rows, "kinds": kinds}]


def _cell(name: str, row: dict[str, Any] | None) -> tuple[str, str]:
    if row is None:
        return "none", f"{name}: no answer"
    if row.get("choices"):
        return row["severity"], f"{name}: {'another choice' if row['flipped'] else 'the same choice'}"
    return row["severity"], f"{name}: {row['severity']}, {100 * float(row['similarity']):.0f} % similar"


def _levels(chart: Chart, variants: Sequence[Variant]) -> list[Plot]:
    """A line for each metric over the requests in flight."""
    levels = [str(variant.counts["concurrency"]) for variant in variants]
    series = []
    for number, name in enumerate(chart.metrics):
        points = [point for index, variant in enumerate(variants) if (point := _point(variant, name, index))]
        if points:
            series.append(Series(title(name), [replace(point, name="") for point in points], number))
    if not series:
        return []
    highest = max(point.top for line in series for point in line.points)
    x = Axis("requests in flight", -0.4, len(levels) - 0.6, names=levels)
    last = 1.0 if chart.metrics == ("match_rate",) else highest * 1.1 if chart.unit else max(0.05, highest * 1.2)
    return [line_chart(chart.heading + chart.unit, x, Axis("", 0, last, percent=not chart.unit), series)]


_DRAW: Mapping[str, Callable[[Chart, Sequence[Variant]], list[Plot]]] = {
    "curves": _curves,
    "kl_distribution": _kl_distribution,
    "agreement": _agreement,
    "categories": _categories,
    "heat": _heat,
    "levels": _levels,
    "dots": lambda chart, variants: [_dots(name, variants) for name in chart.metrics],
}
