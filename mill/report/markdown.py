"""Checks and runs as GitHub-flavoured Markdown. Nothing in a name, a message or a text of a model is markup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mill.checks.gate import RuleOutcome
from mill.checks.result import Check
from mill.checks.verdict import first_sentences
from mill.report.checks import details, explanations, metric_groups, task_table
from mill.report.scores import COLUMNS, NUMBERS, score_table
from mill.report.sections import About, CheckSection, RunSection, Section, index_rows, listed
from mill.report.tables import escape


def report_markdown(sections: Sequence[Section], judge: Callable[[Check], Sequence[RuleOutcome]]) -> str:
    """Every section, below an index where there are several."""
    texts = [
        summary_markdown(section.check, judge(section.check), section.about)
        if isinstance(section, CheckSection)
        else run_markdown(section)
        for section in sections
    ]
    if len(texts) == 1:
        return texts[0]
    rows = index_rows(sections)
    lines = _table(
        ("what", "name", "when", "result"),
        [[f"[{row.kind}](#{row.anchor})", *map(escape, (row.name, row.when, "; ".join(row.result)))] for row in rows],
    )
    anchored = [f'<a id="{row.anchor}"></a>\n\n{text}' for row, text in zip(rows, texts, strict=True)]
    return "\n".join([*lines, "", *anchored])


def summary_markdown(check: Check, outcomes: Sequence[RuleOutcome] = (), about: Sequence[tuple[str, About]] = ()) -> str:
    """A check with the outcomes of its rules."""
    lines = [f"### mill {escape(check.command)}: {escape(', '.join(check.tasks))}", ""]
    lines += [f"**{escape(sentence)}**  " for sentence in first_sentences(check.variants)] + [""]
    lines += [f"{escape(paragraph)}\n" for paragraph in explanations(check)]
    lines += [
        f"- `{outcome.rule.option} {outcome.rule.text}`: {outcome.status} ({escape(outcome.message)})"
        for outcome in outcomes
    ]
    lines += [""] if outcomes else []
    if check.against:
        lines += [f"Baseline: **{escape(check.baseline)}**", ""]
    labels = [escape(variant.label) for variant in check.variants]
    rows: list[list[str]] = []
    for group, members in metric_groups(check.variants):
        rows.append([f"**{group}**", *[""] * len(labels)])
        rows += [list(map(escape, row.texts)) for row in members]
    lines += _table(("metric", *labels), rows, numbers=labels)
    for variant in check.variants:
        columns, texts = task_table(check, variant)
        if texts:
            lines += ["", *_table(list(map(escape, columns)), [map(escape, row) for row in texts], numbers=columns[1:])]
    warnings = [f"- {escape(variant.label)}: {escape(line)}" for variant in check.variants for line in details(variant)]
    settings = [f"- settings: {escape(text)}"] if about and (text := listed(check.settings)) else []
    models = [_about_line(label, facts) for label, facts in about]
    return "\n".join(
        [*lines, "", *warnings, *(f"- {escape(warning)}" for warning in check.warnings), *models, *settings, ""]
    )


def run_markdown(run: RunSection) -> str:
    """A run: its scores, warnings and failures. Its samples are on the page."""
    lines = [f"### mill eval: {escape(run.name)}", ""]
    lines += [f"**{escape(run.unfinished)}**", ""] if run.unfinished else []
    if run.tasks:
        rows = [list(map(escape, row)) for row in score_table(run.tasks, run.benchmarks, "–")]
        lines += [*_table(COLUMNS, rows, numbers=NUMBERS), ""]
    lines += [f"- {escape(warning)}" for warning in run.warnings]
    lines += [f"- {escape(path)}" for path in run.computed_by]
    lines += [_about_line("", run.about), f"- run: {escape(str(run.path))}, {escape(run.when)}", ""]
    return "\n".join(lines)


def _about_line(label: str, about: About) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in about)
    return f"- {escape(f'{label}: {facts}' if label else facts)}"


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]], numbers: Sequence[str] = ()) -> list[str]:
    """The cells are escaped already."""
    ruler = ("---:" if column in numbers else "---" for column in columns)
    return [f"| {' | '.join(cells)} |" for cells in (columns, ruler, *rows)]
