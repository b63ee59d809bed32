"""The choices of a question with their log-probabilities, as a table with a bar for each side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mill.report.html.tag import Html, tag

Choice = tuple[str, Sequence[float | None]]  # its text, and its log-probability on each side


def choice_table(sides: Sequence[str], choices: Sequence[Choice]) -> Html:
    """A bar is the probability of a choice among all of them; the choice with the largest one is marked."""
    columns = [_shares([scores[side] for _, scores in choices]) for side in range(len(sides))]
    head = tag("tr", tag("th", "choice"), [tag("th", name) for name in sides])
    rows = [
        tag(
            "tr",
            tag("th", text),
            [_cell(scores[side], columns[side][index], columns[side]) for side in range(len(sides))],
        )
        for index, (text, scores) in enumerate(choices)
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="choices"), class_="scroll")


def _cell(score: float | None, share: float, shares: Sequence[float]) -> Html:
    bar = tag("i", class_="bar", style=f"width:{100 * share:.1f}%")
    text = "-" if score is None or math.isnan(score) else f"{score:.3f}"
    best = share > 0 and share == max(shares)
    return tag("td", tag("span", text), bar, class_="best" if best else None, title=f"{100 * share:.1f} % of these choices")


def _shares(scores: Sequence[float | None]) -> list[float]:
    known = [-math.inf if score is None or math.isnan(score) else score for score in scores]
    most = max(known, default=-math.inf)
    if not math.isfinite(most):
        return [0.0] * len(known)
    weights = [math.exp(score - most) for score in known]
    return [weight / math.fsum(weights) for weight in weights]
