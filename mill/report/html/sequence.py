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

    def line(label: str, read: str, colour: int) -> Series:
        return Series(
            label, [Point(look.n, float(getattr(look, read)), tooltip=_tooltip(name, look)) for look in looks], colour
        )

    bound = [Point(x.first, decision.bound), Point(x.last, decision.bound, tooltip=decision.claim)]
    series = [line("mean so far", "value", 0), line("lower end", "low", 1), line("upper end", "high", 2)]
    return [line_chart(f"{decision.claim}: {decision.outcome}", x, y, [*series, Series("bound", bound, 3)])]


def _tooltip(name: str, look: Look) -> str:
    value, low, high = (format_value(name, float(end)) for end in (look.value, look.low, look.high))
    return f"after {look.n:,} samples: {value} ({low} to {high})"
