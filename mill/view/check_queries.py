"""Saved checks as the pages show them: metrics, rules, charts, the samples that changed, and one metric over time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mill.api.errors import MillError, UnknownName
from mill.checks.gate import Rule, judge
from mill.checks.glossary import format_value, title
from mill.checks.result import Check, Variant, read_check
from mill.report.checks import details, metric_groups
from mill.report.sections import check_about, listed
from mill.support.files import encode_float, json_text
from mill.view.charts import Axis, Plot, Point, Series, charts, line_chart
from mill.view.index import ResultsIndex
from mill.view.run_info import file_signature

MOST_CHANGES = 200  # samples shown of each variant
_NOT_LISTED = ("decide",)  # commands whose checks have no samples
_SEVERITIES = ("failed", "severe", "moderate", "minor", "empty", "identical")
Row = dict[str, Any]


@lru_cache(maxsize=64)
def _read(file: Path, signature: Any) -> Check:
    return read_check(file)


def find_check(index: ResultsIndex, uid: str) -> Check:
    file = index.checks.get(uid)
    if file is None:
        raise UnknownName("check", uid[:60], index.checks, hint="it may have been removed or moved")
    return _read(file, file_signature(file))


def readable_checks(index: ResultsIndex) -> Iterator[tuple[str, Check]]:
    """All but those that cannot be read."""
    for uid in index.checks:
        try:
            yield uid, find_check(index, uid)
        except MillError:
            continue


def list_checks(index: ResultsIndex) -> list[dict[str, Any]]:
    """All checks, newest first; one that cannot be read has the reason."""
    found = []
    for uid, file in index.checks.items():
        try:
            found.append(check_entry(uid, find_check(index, uid)))
        except MillError as error:
            found.append({"uid": uid, "name": file.parent.name, "error": str(error), "created": ""})
    return sorted(found, key=lambda entry: str(entry["created"]), reverse=True)


def check_entry(uid: str, check: Check) -> dict[str, Any]:
    """A check in the list of checks."""
    variants = [{"label": variant.label, "verdict": variant.verdict} for variant in check.variants]
    about = {name: getattr(check, name) for name in ("command", "tasks", "created", "baseline")}
    return {"uid": uid, **about, "variants": variants}


def show_check(
    uid: str,
    check: Check,
    *,
    file: Path | None = None,
    rules: Sequence[Rule] = (),
    run_of: Callable[[str], str] = lambda path: "",
) -> dict[str, Any]:
    """All of a check. `run_of` gives the name in URLs of a run that the check was made with."""
    outcomes = [
        {"rule": one.rule.text, "option": one.rule.option}
        | {"variant": one.variant, "status": one.status, "reason": one.reason}
        for one in judge(check, rules)
    ]
    about, settings, entry = check_about(check, file), listed(check.settings), check_entry(uid, check)
    runs = [{"run": run_of(variant.run), "details": details(variant)} for variant in check.variants]
    return {
        **entry,
        "against": check.against,
        "baseline_run": run_of(check.baseline_run),
        "about": [*about, *([("settings of the check", [("", settings)])] if settings else [])],
        "warnings": check.warnings,
        "groups": [{"name": group, "rows": [vars(row) for row in rows]} for group, rows in metric_groups(check.variants)],
        "variants": [{**shown, **more} for shown, more in zip(entry["variants"], runs, strict=True)],
        "outcomes": outcomes,
        "charts": charts(check),
        "changes": changes(check),
    }


def run_finder(index: ResultsIndex) -> Callable[[str], str]:
    """A check names the folders of its runs as they were when it was made: they are found by their last two names."""

    def run_of(path: str) -> str:
        matches = [run for run in index.runs.values() if run.path.parts[-2:] == Path(path).parts[-2:]]
        return matches[0].uid if len(matches) == 1 else next((run.uid for run in matches if str(run.path) == path), "")

    return run_of


# --- The samples that changed


def changes(check: Check) -> dict[str, Any]:
    """Changed samples, the worst first; identical ones are only counted in the table."""
    changed = [(variant, sorted(filter(_is_changed, variant.rows), key=_badness)) for variant in check.variants]
    shown = [(variant, row) for variant, rows in changed for row in rows[:MOST_CHANGES]]
    shown.sort(key=lambda pair: _badness(pair[1]))
    return {
        "listed": check.command not in _NOT_LISTED,
        "rows": [_change(check, variant, row) for variant, row in shown],
        "left_out": sum(max(0, len(rows) - MOST_CHANGES) for _, rows in changed),
    }


def _is_changed(row: Row) -> bool:
    if "distinct" in row:
        return bool(row["distinct"] > 1 or row["failed"])
    return row["severity"] != "identical" or bool(row["flipped"])


def _badness(row: Row) -> tuple[int, int, float]:
    """Sort key: regressions and failures, then flips, then by severity and similarity."""
    if "distinct" in row:
        return 0, 0, float(row["share"])
    lost = row["right"][0] is True and not row["right"][1]
    first = 0 if lost or row["severity"] == "failed" else 1 if row["flipped"] else 2
    return first, _SEVERITIES.index(row["severity"]), float(row["similarity"])


def _change_kind(row: Row) -> str:
    """What changed, as a value of the filter."""
    if "distinct" in row:
        return "failed" if row["failed"] else "unstable"
    if row["severity"] == "failed":
        return "failed"
    if None not in row["right"] and row["right"][0] != row["right"][1]:
        return "regression" if row["right"][0] else "improvement"
    return "flip" if row["flipped"] else str(row["severity"])


def _change(check: Check, variant: Variant, row: Row) -> Row:
    names, texts = [check.baseline, variant.label], [*row["texts"], ""][:2]
    if "distinct" in row:
        names = ["most common", "next"]
    sides = (0, 1) if row.get("distinct") != 1 else (0,)  # every run failed with the same error
    choices = [(one["text"], [encode_float(float(score)) for score in one["logprobs"]]) for one in row.get("choices") or ()]
    return {
        **{name: str(row[name]) for name in ("task", "id", "category")},
        "variant": variant.label,
        "kind": _change_kind(row),
        "facts": _change_facts(row),
        "prompt": row["prompt"],
        "gold": _as_text(row.get("gold")),
        "sides": [_change_side(row, side, names[side], texts[side]) for side in sides],
        "choices": choices,
    }


def _change_side(row: Row, side: int, name: str, text: str) -> Row:
    of_side = {key: (row.get(key) or (None, None))[side] for key in ("errors", "extracted", "right")}
    return {
        "name": name,
        "error": _as_text(of_side["errors"] or None),
        "extracted": _as_text(of_side["extracted"]),
        "right": of_side["right"],
        "text": _marked(text, row.get("divergence"), side),
    }


def _marked(text: str, divergence: Row | None, side: int) -> list[str]:
    """What both texts start with, the first token, else word, that differs, and the rest; else the text."""
    if not divergence:
        return [text]
    start = min(int(divergence["char"]), len(text))
    token = ((divergence.get("tokens") or (None, None))[side] or {}).get("text", "")
    begin = text.rfind(token, 0, start + len(token)) if token else -1
    if begin < 0 or begin + len(token) <= start:
        begin, token = start, (re.match(r"\s*\S*", text[start:]) or [""])[0]
    end = begin + len(token)
    return [text[:begin], text[begin:end], text[end:]]


def _change_facts(row: Row) -> list[str]:
    facts = []
    if "distinct" in row:
        same = row["distinct"] == 1
        facts.append("every run failed" if same else f"{row['distinct']} answers, the first {row['times'][0]} times")
    elif row.get("choices"):
        best = sorted((float(choice["logprobs"][0]) for choice in row["choices"]), reverse=True)[:2]
        margin = best[0] - best[1] if len(best) == 2 and best[0] != best[1] else 0.0  # both may be infinite
        facts.append(f"the baseline preferred its choice by {margin:.3f} nats")
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


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


# --- One metric over time


def metric_over_time(checks: Mapping[str, Check], metric: str) -> dict[str, Any]:
    """One metric of those of these checks that measured it, oldest first: a series for each command, task and label."""
    series: dict[str, list[dict[str, Any]]] = {}
    for uid, check in sorted(checks.items(), key=lambda entry: entry[1].created):
        for variant in check.variants:
            if metric in variant.metrics:
                name = f"{check.command} {', '.join(check.tasks)}: {variant.label}"
                one = variant.metrics[metric]
                numbers = {"value": one.value, "low": one.low, "high": one.high}
                encoded = {key: None if value is None else encode_float(value) for key, value in numbers.items()}
                point = {"created": check.created, "uid": uid, **encoded, "text": format_value(metric, one.value)}
                series.setdefault(name, []).append(point)
    return {"metric": metric, "known": measured(checks), "series": series, "chart": _trend(metric, series)}


def measured(checks: Mapping[str, Check]) -> list[str]:
    """The metrics of these checks."""
    return sorted({name for check in checks.values() for variant in check.variants for name in variant.metrics})


def _trend(metric: str, series: dict[str, list[dict[str, Any]]]) -> Plot | None:
    """A line for each series over the times at which checks were made."""
    times = sorted({point["created"] for points in series.values() for point in points})
    drawn = []
    for number, (name, points) in enumerate(series.items()):
        shown = []
        for one in points:  # NaN and infinity are texts
            value, low, high = (one[key] if isinstance(one[key], float) else None for key in ("value", "low", "high"))
            if value is not None:
                tooltip = f"{name}, {one['created']}: {one['text']}"
                shown.append(Point(times.index(one["created"]), value, low, high, tooltip))
        drawn.append(Series(name, shown, number))
    values = [bound for line in drawn for point in line.points for bound in (point.bottom, point.top)]
    if not values:
        return None
    low, high = min(0.0, *values), max(values) * 1.1 or 1.0
    x = Axis("when the check was made", -0.4, len(times) - 0.6, names=[time[5:16].replace("T", " ") for time in times])
    return line_chart(title(metric), x, Axis("", low, high), drawn)
