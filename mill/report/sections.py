"""What a report is about: the checks and the evaluation runs in a folder, what ran in each, and the index of several; as
GitHub-flavoured Markdown, in which no name, message or text of a model is markup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.task import RenderSettings
from mill.checks.gate import RuleOutcome
from mill.checks.result import FILE, FOLDER, Check, read_check
from mill.checks.subjects import CHECK_RUNS
from mill.checks.verdict import first_sentences
from mill.report.checks import details, metric_groups, task_table
from mill.report.scores import COLUMNS, NUMBERS, result_warnings, score_table
from mill.report.tables import escape, markdown_table, number
from mill.store.folder import MANIFEST, RESULTS, RunFolder, find_runs
from mill.store.schema import Results, main_metric
from mill.support.files import json_text
from mill.support.terminal import one_line, warn

MAIN_SCORES = 4  # in the index
MOST_CHARS = 300  # of one value
_ADDRESS = ("path", "model", "base_url")  # arguments that name a model, the first one is shown by itself
_LIBRARIES = ("mill", "torch", "transformers", "vllm", "mlx-lm")

About = list[tuple[str, str]]
"""Names and values, such as ("dtype", "float32")."""


def manifest_about(manifest: Mapping[str, Any]) -> About:
    """From a run's manifest, which has no keys."""
    model, settings = manifest["model"], manifest["settings"]
    arguments, identity = (mapping(model.get(name)) for name in ("arguments", "identity"))
    address = next((name for name in _ADDRESS if arguments.get(name)), None)
    dtype = identity.get("dtype") or arguments.get("dtype")
    others = {name: value for name, value in arguments.items() if name not in (address, "dtype")}
    defaults = asdict(RenderSettings())
    changed = {name: value for name, value in settings.items() if value != defaults.get(name)}
    versions = mapping(manifest.get("versions"))
    found = {
        "model": model["name"],
        "path" if address in (None, "path") else str(address): arguments.get(address) if address else None,
        "backend": model.get("backend"),
        "dtype": dtype,
        "arguments": listed(others),
        "settings": listed(changed),
        "versions": listed({name: versions[name] for name in _LIBRARIES if name in versions}, " "),
    }
    return [(name, _short(value)) for name, value in found.items() if value]


def check_about(check: Check, file: Path | None = None) -> list[tuple[str, About]]:
    """For each model of a check its label and what is known of it: from the manifest of its run where that still exists,
    else from the check. One entry without a label where all are the same. `file` is the check's file."""
    sides = [(check.baseline, check.baseline_run, check.baseline_model, check.baseline_backend)] if check.against else []
    sides += [(variant.label, variant.run, variant.model, variant.backend) for variant in check.variants]
    found = []
    for label, run, model, backend in sides:
        about = _of_run(run, file) or [("model", _short(model)), ("backend", _short(backend))]
        found.append((label, [(name, value) for name, value in about if value]))
    if len({dict(about).get("settings") for _, about in found}) < 2:  # those of the check
        found = [(label, [fact for fact in about if fact[0] != "settings"]) for label, about in found]
    if found and all(about == found[0][1] for _, about in found):
        found = [("", found[0][1])]
    return [(label, about) for label, about in found if about]


def _of_run(run: str, file: Path | None) -> About:
    """Empty where the run is gone or is none. A path that does not exist here is tried below the folder of the check."""
    if not run:
        return []
    candidates = [Path(run)]
    if file is not None and len(Path(run).parts) > 1:
        checks, name = file.absolute().parent.parent, Path(*Path(run).parts[-2:])
        candidates += [checks.parent / name, checks / CHECK_RUNS / name] if checks.name == FOLDER else []
    for path in candidates:
        try:
            return manifest_about(RunFolder(path).manifest())
        except (RunError, OSError, ValueError):  # it was moved or deleted, or the path is none
            continue
    return []


def listed(values: Mapping[str, Any], sign: str = "=") -> str:
    return ", ".join(f"{name}{sign}{_plain(value)}" for name, value in values.items() if value not in (None, {}, []))


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def _short(value: Any) -> str:
    text = one_line(_plain(value)) if value else ""
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} […]"


@dataclass(frozen=True)
class RunSection:
    """A run as it is read for a report."""

    path: Path
    manifest: Mapping[str, Any]
    results: Results

    @property
    def name(self) -> str:
        return f"{self.manifest['model']['name']} on {', '.join(self.manifest['tasks'])}"

    @property
    def when(self) -> str:
        """The start of the last session."""
        return max((str(session.get("started", "")) for session in self.manifest["sessions"]), default="")

    @property
    def about(self) -> About:
        return manifest_about(self.manifest)

    @property
    def computed_by(self) -> list[str]:
        """Which paths of the model gave the answers, in the last session that computed some, and how they were verified."""
        computed = [session for session in self.manifest["sessions"] if session.get("paths")]
        return [f"{stage}: {path}" for session in computed[-1:] for stage, path in session["paths"].items()]

    @property
    def unfinished(self) -> str:
        """Why there are no scores, or not those of all tasks; empty for a finished run."""
        missing = [name for name in self.manifest["tasks"] if name not in self.results.tasks]
        if not missing:
            return ""
        ended = [str(session.get("ended", "")) for session in self.manifest["sessions"]][-1:]
        how = f" The last session {_ENDED.get(ended[0], 'did not end')}." if ended else " No session has ended yet."
        have = "has" if len(missing) == 1 else "have"
        what = f"it has no {RESULTS}" if not self.results.tasks else f"{', '.join(missing)} {have} no score"
        return f"This run was not finished: {what}.{how} The same command resumes it."

    @property
    def main_scores(self) -> str:
        """The main metric of each benchmark, or of each task that belongs to none."""
        benchmarks = self.results.benchmarks
        inside = {task for mean in benchmarks.values() for task in mean.tasks}
        named = [(name, mean.metrics) for name, mean in benchmarks.items()]
        named += [(name, task.metrics) for name, task in self.results.tasks.items() if name not in inside]
        scores = [
            f"{name} {metric} {number(found[metric].value, 3)}" for name, found in named if (metric := main_metric(found))
        ]
        more = f" and {len(scores) - MAIN_SCORES} more" if len(scores) > MAIN_SCORES else ""
        return ", ".join(scores[:MAIN_SCORES]) + more or "not finished"

    @property
    def warnings(self) -> list[str]:
        found = self.results
        return result_warnings(list(found.tasks.values()), list(found.benchmarks.values()), list(found.decisions.values()))

    def to_dict(self) -> dict[str, Any]:
        """The manifest and the results, under one name each."""
        decisions = self.results.decisions
        return {
            "run": str(self.path),
            "finished": not self.unfinished,
            **{name: self.manifest[name] for name in ("model", "settings", "sessions")},
            "tasks": {name: result.to_dict() for name, result in self.results.tasks.items()},
            "benchmarks": {name: result.to_dict() for name, result in self.results.benchmarks.items()},
            **({"decisions": {one.name: asdict(one) for one in decisions.values()}} if decisions else {}),
        }


_ENDED = {"interrupted": "was interrupted", "failed": "failed", "finished": "finished", "stopped": "stopped at its budget"}


@dataclass(frozen=True)
class CheckSection:
    """A check with what is known of its models."""

    check: Check
    about: list[tuple[str, About]] = field(default_factory=list)


Section = CheckSection | RunSection


def find_sections(path: Path) -> list[Section]:
    """The check or run at a path, or all below it: the checks, oldest first, then the runs. A damaged one is left out with a
    warning."""
    if path.is_file() or (path / FILE).exists():
        return [_read_check(path)]
    if (path / MANIFEST).exists():
        return [read_run(RunFolder(path))]
    if not path.exists():
        raise RunError(f"{path} does not exist")
    files = sorted(path.rglob(FILE), key=lambda file: (file.lstat().st_mtime, file))
    folders = [RunFolder(manifest.parent, path) for manifest in sorted(path.glob(f"*/{MANIFEST}"))] + find_runs(path)
    below: list[Path | RunFolder] = [*files, *folders]
    found: list[Section] = []
    for one in below:
        try:
            found.append(read_run(one) if isinstance(one, RunFolder) else _read_check(one))
        except RunError as error:  # one that is damaged does not hide the others
            warn(f"left out: {error}")
    if not found:
        raise RunError(f"{path} contains no run and no check; `mill eval` and `mill compare` write them")
    return found


def read_run(folder: RunFolder) -> RunSection:
    """Refuses a run whose files are not valid; a run without results is unfinished."""
    return RunSection(folder.path, folder.manifest(), folder.results())


def _read_check(path: Path) -> CheckSection:
    check = read_check(path)
    return CheckSection(check, check_about(check, path / FILE if path.is_dir() else path))


def report_markdown(sections: Sequence[Section], judge: Callable[[Check], Sequence[RuleOutcome]]) -> str:
    """Every section, below an index where there are several."""
    texts, rows = [], list[list[str]]()
    for number_of, section in enumerate(sections, 1):
        if isinstance(section, CheckSection):
            check = section.check
            texts.append(summary_markdown(check, judge(check), section.about))
            labels, against = ", ".join(variant.label for variant in check.variants), f" against {check.baseline}"
            name = f"{labels}{against if check.against else ''} on {', '.join(check.tasks)}"
            kind, when, result = check.command, check.created, "; ".join(first_sentences(check.variants))
        else:
            texts.append(run_markdown(section))
            kind, name, when, result = "eval", section.name, section.when, section.main_scores
        rows.append([f"[{kind}](#section-{number_of})", *map(escape, (name, when, result))])
    if len(texts) == 1:
        return texts[0]
    anchored = [f'<a id="section-{number_of}"></a>\n\n{text}' for number_of, text in enumerate(texts, 1)]
    return "\n".join([*markdown_table(("what", "name", "when", "result"), rows), "", *anchored])


def summary_markdown(check: Check, outcomes: Sequence[RuleOutcome] = (), about: Sequence[tuple[str, About]] = ()) -> str:
    """A check with the outcomes of its rules."""
    lines = [f"### mill {escape(check.command)}: {escape(', '.join(check.tasks))}", ""]
    lines += [f"**{escape(sentence)}**  " for sentence in first_sentences(check.variants)] + [""]
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
    lines += markdown_table(("metric", *labels), rows, numbers=labels)
    for variant in check.variants:
        columns, texts = task_table(check, variant)
        if texts:
            rows = [list(map(escape, row)) for row in texts]
            lines += ["", *markdown_table(list(map(escape, columns)), rows, numbers=columns[1:])]
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
    if run.results.tasks:
        table = score_table(run.results.tasks.values(), run.results.benchmarks.values(), "–")
        rows = [list(map(escape, row)) for row in table]
        lines += [*markdown_table(COLUMNS, rows, numbers=NUMBERS), ""]
    lines += [f"- {escape(warning)}" for warning in run.warnings]
    lines += [f"- {escape(path)}" for path in run.computed_by]
    lines += [_about_line("", run.about), f"- run: {escape(str(run.path))}, {escape(run.when)}", ""]
    return "\n".join(lines)


def _about_line(label: str, about: About) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in about)
    return f"- {escape(f'{label}: {facts}' if label else facts)}"
