"""The samples that changed, the worst first, with filters above them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mill.checks.result import Check, Variant
from mill.report.html.tag import Html, joined, tag

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


MAX_ROWS = 200  # samples shown of each variant
_ORDER = ("failed", "severe", "moderate", "minor", "empty", "identical")
Row = dict[str, Any]


def sample_list(check: Check) -> Html:
    """Changed samples, sorted by severity; identical ones are only counted in the table."""
    changed = [(variant, sorted(filter(_changed, variant.rows), key=_badness)) for variant in check.variants]
    shown = [(variant, row) for variant, rows in changed for row in rows[:MAX_ROWS]]
    shown.sort(key=lambda pair: _badness(pair[1]))
    if not shown:
        return tag("p", "No sample changed.", class_="none")
    choices = {
        "variant": [variant.label for variant in check.variants],
        "category": sorted({str(row["category"]) for _, row in shown}),
        "kind": sorted({_kind(row) for _, row in shown}),
    }
    left_out = sum(len(rows) - len(rows[:MAX_ROWS]) for _, rows in changed)
    more = [tag("p", f"{left_out} more changed samples are in check.json.", class_="sub")] if left_out else []
    samples = tag("div", [_sample(check, variant, row) for variant, row in shown], class_="samples")
    return joined(tag("h3", "What changed"), filters(choices), samples, more)


def filters(choices: Mapping[str, Sequence[str]]) -> Html:
    """A form that shows the samples with one of the values of each name, and those that contain a text."""
    return tag(
        "form",
        [_options(name, values) for name, values in choices.items() if values],
        tag("label", "search ", tag("input", name="search", type="search", placeholder="prompt or answer")),
        tag("output", class_="count"),
        class_="filters",
    )


def _options(name: str, values: Sequence[str]) -> Html:
    options = [tag("option", "all", value=""), *(tag("option", value, value=value) for value in values)]
    return tag("label", f"{name} ", tag("select", options, name=name))


def _changed(row: Row) -> bool:
    if "distinct" in row:
        return bool(row["distinct"] > 1 or row["failed"])
    return row["severity"] != "identical" or bool(row["flipped"])


def _badness(row: Row) -> tuple[int, int, float]:
    """Sort key: regressions and failures, then flips, then by severity and similarity."""
    if "distinct" in row:
        return 0, 0, float(row["share"])
    lost = row["right"][0] is True and not row["right"][1]
    first = 0 if lost or row["severity"] == "failed" else 1 if row["flipped"] else 2
    return first, _ORDER.index(row["severity"]), float(row["similarity"])


def _kind(row: Row) -> str:
    """What changed, as a value of the filter."""
    if "distinct" in row:
        return "failed" if row["failed"] else "unstable"
    if row["severity"] == "failed":
        return "failed"
    if None not in row["right"] and row["right"][0] != row["right"][1]:
        return "regression" if row["right"][0] else "improvement"
    return "flip" if row["flipped"] else str(row["severity"])


def _sample(check: Check, variant: Variant, row: Row) -> Html:
    kind, texts = _kind(row), [*row["texts"], ""][:2]
    names = ["most common", "next"] if "distinct" in row else [check.baseline, variant.label]
    sides = (0, 1) if row.get("distinct") != 1 else (0,)  # every run failed with the same error
    gold = [tag("p", "gold: ", tag("code", _plain(row["gold"])), class_="gold")] if row.get("gold") is not None else []
    where = f" {row['task']} · {row['id']} · {variant.label}"
    summary = tag(
        "summary", tag("span", kind, class_=f"tag k-{kind}"), where, tag("span", " · ".join(_facts(row)), class_="facts")
    )
    return tag(
        "details",
        summary,
        tag("h5", "prompt"),
        tag("pre", row["prompt"], class_="prompt"),
        gold,
        tag("div", [_side(row, side, names[side], texts[side]) for side in sides], class_="sides"),
        [choice_table(names, _choices_of(row))] if row.get("choices") else [],
        tag("button", "Copy as issue", class_="copy", type="button"),
        class_="sample",
        data_variant=variant.label,
        data_category=str(row["category"]),
        data_kind=kind,
    )


def _side(row: Row, side: int, name: str, text: str) -> Html:
    error = (row.get("errors") or (None, None))[side]
    extracted = (row.get("extracted") or (None, None))[side]
    right = (row.get("right") or (None, None))[side]
    head = [name]
    if extracted is not None:
        head += [" → ", tag("code", _plain(extracted))]
    if right is not None:
        head += [" ", tag("span", "right" if right else "wrong", class_="right" if right else "wrong")]
    body = tag("p", str(error), class_="error") if error else tag("pre", _marked(text, row.get("divergence"), side))
    return tag("div", tag("h5", head), body, class_="side")


def _marked(text: str, divergence: Row | None, side: int) -> Html:
    """The text with the shared prefix faint and the first token, else word, that differs marked."""
    if not divergence:
        return joined(text)
    start = min(int(divergence["char"]), len(text))
    token = ((divergence.get("tokens") or (None, None))[side] or {}).get("text", "")
    begin = text.rfind(token, 0, start + len(token)) if token else -1
    if begin < 0 or begin + len(token) <= start:
        begin, token = start, (re.match(r"\s*\S*", text[start:]) or [""])[0]
    end = begin + len(token)
    return joined(tag("span", text[:begin], class_="same"), tag("mark", text[begin:end]), text[end:])


def _facts(row: Row) -> list[str]:
    facts = []
    if "distinct" in row:
        same = row["distinct"] == 1
        facts.append("every run failed" if same else f"{row['distinct']} answers, the first {row['times'][0]} times")
    elif row.get("choices"):
        facts.append(f"the baseline preferred its choice by {_choice_margin(row):.3f} nats")
    elif row["severity"] != "failed":
        facts.append(f"{100 * float(row['similarity']):.0f} % similar")
    divergence = row.get("divergence") or {}
    if divergence.get("token") is not None:
        facts.append(f"diverges at token {divergence['token']}")
    if divergence.get("margin") is not None:
        facts.append(f"margin {float(divergence['margin']):.3f} nats")
    if row.get("kl"):
        facts.append(f"KL up to {float(row['kl']['max']):.3g}")
    return facts


def _choices_of(row: Row) -> list[Choice]:
    return [(choice["text"], [float(value) for value in choice["logprobs"]]) for choice in row["choices"]]


def _choice_margin(row: Row) -> float:
    """The largest log-probability of the baseline minus the next."""
    first = sorted((float(choice["logprobs"][0]) for choice in row["choices"]), reverse=True)[:2]
    return first[0] - first[1] if len(first) == 2 and first[0] != first[1] else 0.0


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
