"""Which charts a check has, and what they are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mill.checks.glossary import title, written
from mill.checks.result import Check, Variant
from mill.report.html.charts import Axis, Point, Series, bar_chart, heat_map, line_chart
from mill.report.html.tag import Html

BINS = 24
LEAST_KL = 1e-7  # what is smaller is drawn there
MOST_CATEGORIES = 20
GIB = 2**30
LOAD = (
    ("Latency", ("latency_p50", "latency_p95", "latency_p99"), ", seconds"),
    ("First token", ("first_token_p50", "first_token_p95", "first_token_p99"), ", seconds"),
    ("Throughput", ("tokens_per_s",), ", tokens a second"),
    ("Consistency with the lowest level", ("match_rate",), ""),
    ("Failed requests", ("failure_rate",), ""),
)


def charts(check: Check) -> list[Html]:
    variants = check.variants
    if check.command == "stress":
        return _stress(variants)
    if check.command == "determinism":
        return [_shares(variants)]
    found = [*_curves(variants), *_kl_distribution(variants), *_agreement(variants)]
    return [*found, *_categories(variants, "flip_rate"), *_categories(variants, "match_rate"), *_heat(variants)]


def _point(variant: Variant, name: str, x: float) -> Point | None:
    estimate = variant.figures.get(name)
    if estimate is None or not math.isfinite(estimate.value):
        return None
    told = f"{variant.label}: {written(name, estimate.value)}"
    if estimate.low is not None and estimate.high is not None:
        told += f" ({written(name, estimate.low)} to {written(name, estimate.high)})"
    return Point(x, estimate.value, estimate.low, estimate.high, told)


def _curves(variants: Sequence[Variant]) -> list[Html]:
    """KL, flips and lost accuracy against the size of the weights, or from one variant to the next where it is unknown."""
    sized = len({variant.size for variant in variants}) > 1 and all(variant.size for variant in variants)
    ordered = sorted(variants, key=lambda variant: variant.size or 0) if sized else list(variants)
    places = [(variant.size or 0) / GIB if sized else float(place) for place, variant in enumerate(ordered)]
    found = []
    for name in ("kl_mean", "flip_rate", "acc_drop"):
        points = [point for place, one in zip(places, ordered, strict=True) if (point := _point(one, name, place))]
        if not points:
            continue
        x = Axis("weights, GiB", 0, places[-1] * 1.08)
        if not sized:
            x = Axis("", -0.5, len(ordered) - 0.5, names=[variant.label for variant in ordered])
        lowest = min(0.0, *(point.y if point.low is None else point.low for point in points))
        y = Axis("", lowest, max(point.top for point in points) * 1.1 or 0.01, percent=name != "kl_mean")
        found.append(line_chart(title(name) + (", nats" if name == "kl_mean" else ""), x, y, [Series("", points)]))
    return found


def _kl_distribution(variants: Sequence[Variant]) -> list[Html]:
    """How many places have which divergence, counted in powers of ten."""
    known = {variant.label: [max(float(value), LEAST_KL) for value in variant.series.get("kl", [])] for variant in variants}
    values = [value for of_one in known.values() for value in of_one]
    if not values:
        return []
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    width = (last - first) / BINS
    middles = [first + width * (place + 0.5) for place in range(BINS)]
    series = []
    for label, of_one in known.items():
        counts = [0] * BINS
        for value in of_one:
            counts[min(BINS - 1, int((math.log10(value) - first) / width))] += 1
        shares = [count / max(1, len(of_one)) for count in counts]
        told = [
            f"{label}: {100 * share:.1f} % of places near {10**at:.1e}" for share, at in zip(shares, middles, strict=True)
        ]
        series.append(
            Series(label, [Point(*of_bin[:2], told=of_bin[2]) for of_bin in zip(middles, shares, told, strict=True)])
        )
    highest = max(point.y for one in series for point in one.points)
    x, y = Axis("KL at one place, nats", first, last, log=True), Axis("", 0, highest * 1.1, percent=True)
    return [line_chart("Distribution of KL over places", x, y, series)]


def _agreement(variants: Sequence[Variant]) -> list[Html]:
    series = [
        Series(variant.label, [_place(variant.label, one) for one in variant.series["agreement_by_place"]])
        for variant in variants
        if variant.series.get("agreement_by_place")
    ]
    points = [point for one in series for point in one.points]
    if not points:
        return []
    y = Axis("", math.floor(min(0.9, *(point.y for point in points)) * 10) / 10, 1.0, percent=True)
    x = Axis("token", 1, max(point.x for point in points))
    return [line_chart("Same top token, by place in the answer", x, y, series)]


def _place(label: str, one: dict[str, Any]) -> Point:
    told = f"{label}: token {one['place'] + 1}, {100 * one['agreement']:.1f} % of {one['n']} texts"
    return Point(one["place"] + 1, one["agreement"], told=told)


def _categories(variants: Sequence[Variant], name: str) -> list[Html]:
    """A rate by category, with its interval."""
    known = [group for variant in variants for group in variant.groups if name in group]
    names = list(dict.fromkeys(group["category"] for group in known))[:MOST_CATEGORIES]
    if len(names) < 2:
        return []
    series = []
    for variant in variants:
        by_name = {group["category"]: group for group in variant.groups if name in group}
        series.append((variant.label, [_group_point(by_name.get(category), name) for category in names]))
    return [bar_chart(f"{title(name).capitalize()} by category", names, series)]


def _group_point(group: dict[str, Any] | None, name: str) -> Point | None:
    if group is None:
        return None
    value, low, high = (None if one is None else float(one) for one in group[name])
    return Point(0, value or 0.0, low, high, f"{written(name, value)} of {group['n']}")


def _heat(variants: Sequence[Variant]) -> list[Html]:
    """Every prompt of every variant by the severity of its change."""
    keys = list(dict.fromkeys((row["task"], row["id"]) for variant in variants for row in variant.rows))
    if not keys:
        return []
    columns = []
    for variant in variants:
        by_key = {(row["task"], row["id"]): row for row in variant.rows}
        columns.append((variant.label, [_cell(key[1], by_key.get(key)) for key in keys]))
    return [heat_map("Every prompt, by how much its answer changed", columns)]


def _cell(name: str, row: dict[str, Any] | None) -> tuple[str, str]:
    if row is None:
        return "s-none", f"{name}: not asked"
    return f"s-{row['severity']}", f"{name}: {row['severity']}, {100 * float(row['similarity']):.0f} % alike"


def _stress(variants: Sequence[Variant]) -> list[Html]:
    levels = [str(variant.counts["concurrency"]) for variant in variants]
    found = []
    for heading, names, unit in LOAD:
        series = []
        for name in names:
            points = [point for place, variant in enumerate(variants) if (point := _point(variant, name, place))]
            if points:
                series.append(Series(title(name), points))
        if series:
            highest = max(point.top for one in series for point in one.points)
            x = Axis("requests under way", -0.4, len(levels) - 0.6, names=levels)
            y = Axis("", 0, 1.0 if not unit else highest * 1.1, percent=not unit)
            found.append(line_chart(heading + unit, x, y, series))
    return found


def _shares(variants: Sequence[Variant]) -> Html:
    names = ("identical_rate", "most_common_share")
    rates = [(variant.label, [_point(variant, name, 0) for name in names]) for variant in variants]
    return bar_chart("Agreement over runs", [title(name) for name in names], rates)
