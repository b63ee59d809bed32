"""The index of a report with several sections: what each is, when it was made, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mill.checks.glossary import counted
from mill.checks.verdict import first_sentences
from mill.report.sections import CheckSection, Section, only_checks


@dataclass(frozen=True)
class IndexRow:
    """A section in the index; `anchor` is the id of its heading."""

    kind: str
    name: str
    when: str
    result: list[str]
    anchor: str


def index_rows(sections: Sequence[Section]) -> list[IndexRow]:
    return [_row(section, f"section-{number}") for number, section in enumerate(sections, 1)]


def _row(section: Section, anchor: str) -> IndexRow:
    if not isinstance(section, CheckSection):
        return IndexRow("eval", section.name, section.when, [section.main_scores], anchor)
    check = section.check
    labels = [variant.label for variant in check.variants]
    name = f"{', '.join(labels)}{f' against {check.baseline}' if check.against else ''} on {', '.join(check.tasks)}"
    return IndexRow(check.command, name, check.created, first_sentences(check.variants), anchor)


def heading(sections: Sequence[Section]) -> str:
    checks = only_checks(sections)
    if len(sections) == 1:
        return f"mill {checks[0].command}" if checks else "mill eval"
    runs = len(sections) - len(checks)
    return ", ".join(counted(count, noun) for count, noun in ((len(checks), "check"), (runs, "run")) if count)
