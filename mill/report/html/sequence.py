"""The plot of a sequential decision: the mean and its confidence sequence after each block, with the bound of the claim."""

from __future__ import annotations

import math

from mill.checks.glossary import format_value, title
from mill.report.html.charts import Axis, Point, Series, line_chart
from mill.report.html.tag import Html
from mill.runs.schema import Decision, Look


def sequence_chart(decision: Decision) -> list[Html]:
    """Nothing where no block was tested."""
    looks = [look for look in decision.looks if math.isfinite(float(look.value))]
    if not looks:
        return []
    name = decision.metric
    values = [decision.bound, *(float(end) for look in looks for end in (look.low, look.high))]
    x = Axis("samples", 0.0, float(max(look.n for look in looks)))
    margin = 0.05 * (max(values) - min(values)) or 0.05
    y = Axis(title(name), min(values) - margin, max(values) + margin)
    means = [Point(look.n, float(look.value), look.low, look.high, tooltip=_tooltip(name, look)) for look in looks]
    bound = [Point(x.first, decision.bound), Point(x.last, decision.bound)]
    series = [
        Series("mean so far, with its confidence sequence", means, 0, band=True),
        Series(f"bound of {decision.claim}", bound, 1, dashed=True),
    ]
    return [line_chart(f"{decision.claim}: {decision.outcome}", x, y, series)]


def _tooltip(name: str, look: Look) -> str:
    value, low, high = (format_value(name, float(end)) for end in (look.value, look.low, look.high))
    return f"after {look.n:,} samples: {value} ({low} to {high})"
