"""What a report is about: the checks and the evaluation runs in a folder, and the index of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mill.api.errors import RunError
from mill.checks.result import FILE, Check, read_check
from mill.checks.verdict import first_sentences
from mill.report.about import About, check_about
from mill.report.runs import RunSection, read_run
from mill.store.folder import MANIFEST, RunFolder, find_runs
from mill.support.terminal import warn

DECIDE = "decide"  # the command of checks that are about one run


@dataclass(frozen=True)
class CheckSection:
    """A check with what is known of its models."""

    check: Check
    about: list[tuple[str, About]] = field(default_factory=list)


Section = CheckSection | RunSection


def find_sections(path: Path) -> list[Section]:
    """The check or run at a path, or all below it: the checks, oldest first, then the runs. A damaged run is reported and
    left out. So are runs whose tasks these checks compare, all of them: they are in the sections of the checks. That of a
    decision has no scores and samples, so that its run stays."""
    if path.is_file() or (path / FILE).exists():
        return [_read_check(path)]
    if (path / MANIFEST).exists():
        return [read_run(RunFolder(path))]
    if not path.exists():
        raise RunError(f"{path} does not exist")
    files = sorted(path.rglob(FILE), key=lambda file: (file.lstat().st_mtime, file))
    checks = [check for file in files if (check := _check_or_warn(file)) is not None]
    compared = _compared_tasks([section.check for section in checks if section.check.command != DECIDE])
    below = [RunFolder(manifest.parent, path) for manifest in sorted(path.glob(f"*/{MANIFEST}"))] + find_runs(path)
    found = [run for folder in below if (run := _read_or_warn(folder)) is not None]
    runs = [run for run in found if not set(run.manifest["tasks"]) <= compared.get(_name(run.path), set())]
    if not checks and not runs:
        raise RunError(f"{path} contains no run and no check; `mill eval` and `mill compare` write them")
    return [*checks, *runs]


def _read_check(path: Path) -> CheckSection:
    check = read_check(path)
    return CheckSection(check, check_about(check, path / FILE if path.is_dir() else path))


def _check_or_warn(file: Path) -> CheckSection | None:
    try:
        return _read_check(file)
    except RunError as error:  # one damaged check does not hide the others
        warn(f"left out: {error}")
        return None


def _compared_tasks(checks: Sequence[Check]) -> dict[tuple[str, ...], set[str]]:
    """The tasks of each run that these checks compare, by the name of its folder."""
    compared: dict[tuple[str, ...], set[str]] = {}
    for check in checks:
        renderings = [group["task"] for variant in check.variants for group in variant.groups]
        for run in _runs_of(check):
            compared.setdefault(run, set()).update(check.tasks, renderings)
    return compared


def _runs_of(check: Check) -> list[tuple[str, ...]]:
    return [_name(Path(run)) for run in (check.baseline_run, *(variant.run for variant in check.variants)) if run]


def _name(run: Path) -> tuple[str, ...]:
    """The folders of the model and of the settings: a check has the path of its runs from where it was made."""
    return run.parts[-2:]


def _read_or_warn(folder: RunFolder) -> RunSection | None:
    try:
        return read_run(folder)
    except RunError as error:  # one damaged run does not hide the others
        warn(f"left out: {error}")
        return None


def only_checks(sections: Sequence[Section]) -> list[Check]:
    return [section.check for section in sections if isinstance(section, CheckSection)]


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
