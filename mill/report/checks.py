"""Checks on the terminal: the verdict, then every metric with its interval, a column for each variant. The outcomes of their
rules as JUnit XML, which CI systems display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mill.checks.gate import KEPT, RuleOutcome
from mill.checks.glossary import GROUPS, METRICS, counted, format_interval, format_value, title
from mill.checks.pairing import EMPTY
from mill.checks.result import Check, Variant
from mill.checks.verdict import first_sentences
from mill.metrics.differences import FAILED
from mill.metrics.divergence import TIERS
from mill.report.tables import console, dash, print_table
from mill.support.terminal import printable

MAX_ERRORS = 3  # listed below the table
MAX_TASKS = 30  # in the table on the terminal


def print_check(check: Check) -> None:
    head = f"{check.command} on {', '.join(check.tasks)}"
    if check.against:
        head += f", against {check.baseline}"
    out = console()
    for sentence in first_sentences(check.variants):
        out.print(printable(sentence), markup=False, soft_wrap=True)
    labels = [variant.label for variant in check.variants]
    print_table(head, ("metric", *labels), _joined(check.variants), numbers=labels, repeated=1)
    for variant in check.variants:
        columns, rows = task_table(check, variant)
        if rows:
            print_table(f"{variant.label} by task", columns, rows[:MAX_TASKS], numbers=columns[1:])
            if len(rows) > MAX_TASKS:
                out.print(f"the {MAX_TASKS} of {len(rows)} whose answers changed most; check.json has all", markup=False)
    for variant in check.variants:
        for line in details(variant):
            out.print(printable(f"{variant.label}: {line}"), markup=False, soft_wrap=True)
    for warning in check.warnings:
        out.print(printable(warning), markup=False, soft_wrap=True)


def _joined(variants: list[Variant]) -> list[list[str]]:
    """The rows below the name of their group, which is a row by itself."""
    rows: list[list[str]] = []
    for group, members in metric_groups(variants, dash()):
        rows.append([group.upper(), *[""] * len(variants)])
        rows += [row.texts for row in members]
    return rows


Cell = tuple[str, str]  # a value, and its interval with the p-value


@dataclass(frozen=True)
class MetricRow:
    """A row of the table, with a cell for each variant."""

    title: str
    cells: list[Cell]
    about: str
    name: str = ""
    """Of the metric; empty for counts."""

    @property
    def texts(self) -> list[str]:
        return [self.title, *(" ".join(filter(None, cell)) for cell in self.cells)]


def metric_groups(variants: Sequence[Variant], between: str = "–") -> list[tuple[str, list[MetricRow]]]:
    """The rows of the table in their groups, without those that no variant has: what failed, then what changed."""
    found = []
    for group, names in GROUPS.items():
        others = dict.fromkeys(name for one in variants for name in one.metrics if name not in METRICS)
        shown = (*names, *others) if group == "answers" else names  # the metrics of tasks, which claims may be about
        rows = []
        for name in shown:
            about, quiet = (METRICS[name].about, METRICS[name].quiet) if name in METRICS else ("", False)
            known = [variant for variant in variants if name in variant.metrics]
            if any(not quiet or variant.metrics[name].value != 0 for variant in known):
                cells = [_cell(variant, name, between) for variant in variants]
                rows.append(MetricRow(title(name), cells, about, name))
        tiers = [tier for tier, _ in TIERS] + [EMPTY, FAILED]
        if group == "text" and any(f"severity_{tier}" in variant.counts for variant in variants for tier in tiers):
            counts = [" / ".join(str(one.counts.get(f"severity_{tier}", 0)) for tier in tiers) for one in variants]
            cells = [(text, "") for text in counts]
            rows.append(MetricRow(" / ".join(tiers), cells, "samples by how much their answer changed"))
        found += [(group, rows)] if rows else []
    return found


def _cell(variant: Variant, name: str, between: str) -> Cell:
    estimate = variant.metrics.get(name)
    if estimate is None:
        return "-", ""
    extra = [format_interval(name, estimate, between)]
    if name in variant.p_values and not math.isnan(variant.p_values[name]):
        extra.append(f"p={variant.p_values[name]:.2g}")
    return format_value(name, estimate.value), " ".join(filter(None, extra))


def task_table(check: Check, variant: Variant) -> tuple[list[str], list[list[str]]]:
    """The columns and a row for each task, or category of a task, those whose answers changed most first. There are no rows
    for one task without categories."""
    if len(variant.groups) < 2:
        return [], []
    columns = ["task", "samples", *(title(name) for name in ("match_rate", "flip_rate"))]
    columns += [f"score, {label}" for label in (check.baseline, variant.label)]
    groups = sorted(
        variant.groups, key=lambda group: (-(_rate(group, "flip_rate") or 0.0), _rate(group, "match_rate") or 0.0)
    )
    rows = []
    for group in groups:
        scored = "acc" if "acc" in group else "score"
        names = ("match_rate", "flip_rate", f"{scored}_baseline", scored)
        rows.append([group_name(group), str(group["n"]), *(format_value(name, _rate(group, name)) for name in names)])
    return columns, rows


def group_name(group: Mapping[str, Any]) -> str:
    """A task, or one of its categories."""
    return group["task"] if group["category"] == group["task"] else f"{group['task']} / {group['category']}"


def _rate(group: Mapping[str, Any], name: str) -> float | None:
    value = group[name][0] if name in group else None
    return None if value is None else float(value)  # NaN is a text in the file


def details(variant: Variant) -> list[str]:
    """Lines below the table: the counts of samples and divergences, the first errors, and warnings."""
    counts, lines = variant.counts, []
    if "samples" in counts:
        line = counted(counts["samples"], "sample")
        if counts.get("runs"):
            line += f" x {counted(counts['runs'], 'run')}"
        if counts.get("repetitions"):
            line += f" x {counted(counts['repetitions'], 'repetition')}"
        if counts.get("failed"):
            line += f", {counts['failed']} failed"
        if counts.get("retries"):
            line += f", {counts['retries']} retries"
        if counts.get("diverged"):
            line += f", {counts['diverged']} diverge"
            line += f" ({counts['near_ties']} at a near-tie)" if counts.get("near_ties") else ""
        if counts.get("positions"):
            texts = counted(counts["forced_texts"], "text")
            line += f"; {counted(counts['positions'], 'position')} of {texts} scored by both"
        lines.append(line)
    errors = variant.series.get("errors") or []
    lines += [f"sample {entry['id']}: {entry['error']}" for entry in errors[:MAX_ERRORS]]
    return lines + variant.warnings


def as_junit(judged: Sequence[tuple[Check, Sequence[RuleOutcome]]]) -> str:
    """A suite for each check, a case for each rule on each variant; without rules a case for each variant. An inconclusive
    rule is a failure of type `inconclusive`. The verdicts are in the suite's output."""
    import xml.etree.ElementTree as ET

    root = ET.Element("testsuites", name="mill")
    for check, outcomes in judged:
        failures = sum(outcome.status != KEPT for outcome in outcomes)
        name = f"{check.name}: {', '.join(variant.label for variant in check.variants)}"
        count = len(outcomes) or len(check.variants)
        suite = ET.SubElement(
            root, "testsuite", name=_clean(name), tests=str(count), failures=str(failures), timestamp=check.created
        )
        for outcome in outcomes:
            case = ET.SubElement(suite, "testcase", classname=_clean(outcome.variant), name=outcome.rule.text)
            if outcome.status != KEPT:
                ET.SubElement(case, "failure", type=outcome.status, message=_clean(outcome.message))
        if not outcomes:
            for variant in check.variants:
                ET.SubElement(suite, "testcase", classname=_clean(variant.label), name=check.command)
        ET.SubElement(suite, "system-out").text = _clean("\n".join(first_sentences(check.variants)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Without control characters, which XML forbids."""
    return "".join(char if char.isprintable() or char in "\t\n" else "\ufffd" for char in text)
