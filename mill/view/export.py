"""`mill view --export`: a static copy of runs and checks that opens from disk or from any web server.

Every answer that the pages may request is written as a script in `data/`; filters and sorting happen in the browser.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import permutations
from pathlib import Path, PurePosixPath
from typing import Any

from mill.api.errors import MillError, RunError, SpecError
from mill.runs.sample_row import STATUSES
from mill.support.files import json_text, write_atomically
from mill.support.terminal import utf8
from mill.view import api, check_queries, comparing, queries
from mill.view.check_queries import find_check
from mill.view.comparing import PairFilter
from mill.view.filters import Page, SampleFilter, all_rows
from mill.view.index import ResultsIndex
from mill.view.media import read_media
from mill.view.overview import Viewer, overview
from mill.view.pairs import MARGINS
from mill.view.report import offline_report
from mill.view.run_info import RunInfo, run_labels
from mill.view.sample_line import FLAG_BITS
from mill.view.server import REPORT_CSS, STATIC

_IMPORT = re.compile(r'^import\s*(?:(?:(\w+)|\{([^}]*)\})\s*from\s*)?"([^"]+)";?', re.MULTILINE)
_REEXPORT = re.compile(r"^export \{([^}]*)\};?\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (const|function|class) (\w+)", re.MULTILINE)
_EXPORT_LIST = re.compile(r"export\s*\{([^}]*)\};?\s*$")
_EXPORT_DEFAULT = re.compile(r"export\s+default\s+")


def bundle(folder: Path, entry: str) -> str:
    """Each module becomes a function that is called once, those that it imports first."""
    order: list[str] = []
    _visit(folder, entry, order)
    parts = [f'modules["{name}"] = (() => {{\n{_converted(folder, name)}\n}})();' for name in order]
    return "(() => {\nconst modules = {};\n" + "\n".join(parts) + "\n})();\n"


def _visit(folder: Path, name: str, order: list[str]) -> None:
    if name in order:
        return
    for _, _, target in _IMPORT.findall(_read(folder, name)):
        _visit(folder, _resolved(name, target), order)
    order.append(name)


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _resolved(name: str, target: str) -> str:
    parts: list[str] = list(PurePosixPath(name).parent.parts)
    for part in target.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _converted(folder: Path, name: str) -> str:
    exported: dict[str, str] = {}
    text = _IMPORT.sub(lambda found: _as_constants(name, found), _read(folder, name))
    for pattern in (_REEXPORT, _EXPORT_LIST):
        for listed in pattern.findall(text):
            exported |= _names(listed, " as ", swap=True)
        text = pattern.sub("", text)
    exported |= {found[1]: found[1] for found in _EXPORT.findall(text)}
    text = _EXPORT.sub(r"\1 \2", text)
    if _EXPORT_DEFAULT.search(text):
        text = _EXPORT_DEFAULT.sub("const standard = ", text, count=1)
        exported["default"] = "standard"
    returned = ", ".join(f'"{shown}": {own}' for shown, own in exported.items())
    return f"{text.rstrip()}\nreturn {{ {returned} }};"


def _as_constants(name: str, found: re.Match[str]) -> str:
    module = f'modules["{_resolved(name, found[3])}"]'
    if found[1]:
        return f"const {found[1]} = {module}.default;"
    if found[2] is None:  # for its effect alone
        return ""
    names = ", ".join(f"{own}: {shown}" for own, shown in _names(found[2], " as ").items())
    return f"const {{ {names} }} = {module};"


def _names(listed: str, separator: str, *, swap: bool = False) -> dict[str, str]:
    """`a as b, c` as {a: b, c: c}, or the other way round."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in listed.split(","))):
        first, _, second = part.partition(separator)
        key, value = first.strip(), (second or first).strip()
        found |= {value: key} if swap else {key: value}
    return found


MARKER = "mill-view.txt"  # in the folder: it is a copy that may be replaced
MOST_SAMPLES = 50_000
MOST_PAIRS = 12  # ordered pairs of runs; beyond that, each run is compared with one other
CHUNK = 20  # samples in one file
POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file: data:; "
    "media-src 'self' file:; base-uri 'none'; form-action 'none'"
)
_SUFFIXES = {"jpeg": "jpg", "mpeg": "mp3"}


def export_site(folder: Path, target: Path, patterns: Sequence[str]) -> Path:
    """Write the copy, and return its first page. `patterns` choose runs by their labels or folders."""
    _refuse_target(target)
    index = ResultsIndex(folder)
    try:
        index.sync()
        _Export(index, target, _chosen(index, patterns), _chosen_checks(index, patterns)).write()
    finally:
        index.close()
    return target / "index.html"


def _refuse_target(target: Path) -> None:
    """A folder with other content is never written to, and an earlier copy is replaced."""
    if target.exists() and not target.is_dir():
        raise SpecError(f"--export {target}: it is a file, and a folder is needed")
    if target.is_dir() and any(target.iterdir()) and not (target / MARKER).exists():
        raise SpecError(f"--export {target}: the folder is not empty; name a new one")


def _chosen(index: ResultsIndex, patterns: Sequence[str]) -> list[RunInfo]:
    labels = run_labels(index.runs.values())
    runs = [run for run in index.runs.values() if not run.of_check and not run.error]
    if patterns:
        unused = [one for one in patterns if not any(_matches(one, run, labels) for run in runs)]
        if unused:
            raise SpecError(f"--runs {unused[0]}: no run is called so; there are {', '.join(sorted(labels.values())[:10])}")
        runs = [run for run in runs if any(_matches(one, run, labels) for one in patterns)]
    if not runs and not index.checks:
        raise RunError(f"{index.root} has no run and no check to export")
    total = sum(sum(queries.status_counts(index, run.uid)[name] for name in STATUSES) for run in runs)
    if total > MOST_SAMPLES:
        raise SpecError(f"the runs have {total:,} samples, and a copy has at most {MOST_SAMPLES:,}: choose some with --runs")
    return runs


def _chosen_checks(index: ResultsIndex, patterns: Sequence[str]) -> list[str]:
    """Of chosen runs, the checks that concern no other run: a check has the prompts and answers of its runs."""
    if not patterns:
        return list(index.checks)
    labels = run_labels(index.runs.values())
    chosen = {run.uid for run in index.runs.values() if any(_matches(one, run, labels) for one in patterns)}
    return [uid for uid in index.checks if _is_about(index, uid, chosen)]


def _is_about(index: ResultsIndex, uid: str, runs: Collection[str]) -> bool:
    try:
        check = find_check(index, uid)
    except MillError:  # its runs are not known
        return False
    paths = [variant.run for variant in check.variants] + ([check.baseline_run] if check.against else [])
    return all(check_queries.uid_of_run(index, path) in runs for path in paths)


def _matches(pattern: str, run: RunInfo, labels: dict[str, str]) -> bool:
    return any(fnmatch(name, pattern) or name.startswith(pattern) for name in (labels[run.uid], run.name, run.uid))


class _Export:
    def __init__(self, index: ResultsIndex, target: Path, runs: Sequence[RunInfo], checks: Sequence[str]) -> None:
        self.index, self.target, self.runs, self.checks = index, target, list(runs), checks
        self.viewer = Viewer(index)

    def write(self) -> None:
        for name in ("data", "media", "reports"):
            shutil.rmtree(self.target / name, ignore_errors=True)
        self._file(MARKER, "A static copy of results, written by `mill view --export`.\n")
        self._pages()
        self._overview()
        for run in self.runs:
            self._run(run.uid)
        for a, b in self._pairs():
            self._pair(a, b)
        self._checks()

    def _pairs(self) -> list[tuple[str, str]]:
        """All pairs of runs with a task in common; of many, each run with the first one that shares a task with it."""
        pairs = [(a.uid, b.uid) for a, b in permutations(self.runs, 2) if set(self._tasks(a)) & set(self._tasks(b))]
        if len(pairs) <= MOST_PAIRS:
            return pairs
        first: dict[str, str] = {}
        for a, b in pairs:
            first.setdefault(b, a)
        return [(a, b) for b, a in first.items()]

    def _file(self, name: str, content: str | bytes) -> None:
        write_atomically(self.target / name, content, root=self.target, sync=False)

    def _data(self, name: str, data: Any) -> None:
        self._file(f"data/{name}.js", b"millData(" + utf8(json_text(name)) + b", " + utf8(json_text(data)) + b");\n")

    def _pages(self) -> None:
        page = (STATIC / "index.html").read_text(encoding="utf-8")
        page = re.sub('<link rel="modulepreload".*\n', "", page)
        page = page.replace('<script type="module" src="app.js">', '<script defer src="app.js">')
        page = page.replace("<title>", f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>')
        self._file("index.html", page)
        self._file("app.js", bundle(STATIC, "static.js"))
        self._file("style.css", (STATIC / "style.css").read_bytes())
        self._file("report.css", REPORT_CSS.read_bytes())
        for licence in sorted((STATIC / "vendor").glob("LICENSE.*")):
            self._file(licence.name, licence.read_bytes())

    def _overview(self) -> None:
        uids = [run.uid for run in self.runs]
        state = overview(self.viewer)
        state |= {"folder": self.index.root.name, "syncing": False, "warnings": [], "search": {"done": 0, "total": 0}}
        state["runs"] = [{**run, "live": None} for run in state["runs"] if run["uid"] in uids]
        state["checks"] = [check for check in state["checks"] if check["uid"] in self.checks]
        self._data("state", state)
        self._data("scores", queries.score_table(self.index, uids))
        self._data("load", {one["run"]: one for one in api.load(self.viewer, {"runs": ",".join(uids)})["runs"]})
        found = {}
        for run in self.runs:
            found[run.uid] = {task: queries.categories(self.index, run.uid, task) for task in self._tasks(run)}
        self._data("categories", found)

    def _tasks(self, run: RunInfo) -> list[str]:
        return [row["task"] for row in queries.files_of(self.index, run.uid).values()]

    def _run(self, uid: str) -> None:
        chosen = SampleFilter(uid)
        self._data(f"run-{uid}", api.run(self.viewer, {"run": uid}))
        flagged = {
            name: {(row["task"], row["id"]) for row in self._rows(replace(chosen, flags=(name,)))} for name in FLAG_BITS
        }
        rows = [
            {**row, "all_flags": [name for name in FLAG_BITS if (row["task"], row["id"]) in flagged[name]]}
            for row in self._rows(chosen)
        ]
        metrics = queries.list_samples(self.index, replace(chosen, page=Page(limit=1)))["metrics"]
        self._data(f"samples-{uid}", {"rows": rows, "metrics": metrics, "size": CHUNK})
        for number, part in enumerate(_chunks(rows)):
            self._data(f"sample-{uid}-{number}", [self._sample(uid, row) for row in part])
        self._data(f"worst-{uid}", api.worst_tokens(self.viewer, {"a": uid}))

    def _rows(self, chosen: SampleFilter) -> list[dict[str, Any]]:
        return all_rows(lambda page: queries.list_samples(self.index, replace(chosen, page=page)))

    def _sample(self, uid: str, row: dict[str, Any]) -> dict[str, Any]:
        found = api.sample(self.viewer, {"run": uid, "t": row["task"], "id": row["id"]})
        del found["neighbours"]
        self._copy_media(found["sample"], uid, row)
        return found

    def _copy_media(self, sample: dict[str, Any], uid: str, row: dict[str, Any]) -> None:
        """Each image, audio or video once; one that cannot be read any more is left out."""
        for number, entry in enumerate(sample.get("media") or ()):
            entry.pop("url", None)
            try:
                content, kind = read_media(self.index, uid, row["task"], row["id"], number)
            except MillError:
                continue
            suffix = kind.rpartition("/")[2]
            name = f"media/{re.sub('[^0-9a-f]', '', str(entry['digest']))}.{_SUFFIXES.get(suffix, suffix)}"
            if not (self.target / name).exists():
                self._file(name, content)
            entry["url"] = name

    def _pair(self, a: str, b: str) -> None:
        tasks = [task for task in self._tasks(self.index.runs[a]) if task in self._tasks(self.index.runs[b])]
        chosen = PairFilter(a, b)
        rows = all_rows(lambda page: comparing.list_pairs(self.index, replace(chosen, page=page)))
        self._data(f"pairs-{a}-{b}", {"rows": rows, "size": CHUNK})
        steps = {}
        for margin in MARGINS:
            one = replace(chosen, least_margin=margin)
            of_tasks = {task: comparing.compare_summary(self.index, replace(one, task=task)) for task in tasks}
            steps[f"{margin:g}"] = {"all": comparing.compare_summary(self.index, one), "tasks": of_tasks}
        self._data(f"compare-{a}-{b}", steps)
        for number, part in enumerate(_chunks(rows)):
            self._data(f"pair-{a}-{b}-{number}", [self._one_pair(a, b, row) for row in part])
        self._data(f"worst-{a}-{b}", api.worst_tokens(self.viewer, {"a": a, "b": b}))

    def _one_pair(self, a: str, b: str, row: dict[str, Any]) -> dict[str, Any]:
        given = {"a": a, "b": b, "t": row["task"], "id": row["id"]}
        found = api.pair(self.viewer, given)
        del found["neighbours"]
        self._copy_media(found["a"], a, row)
        return {**found, "tokens": api.sample_tokens(self.viewer, given)}

    def _checks(self) -> None:
        measured: set[str] = set()
        for uid in self.checks:
            try:
                shown = check_queries.show_check(self.index, uid)
            except MillError:
                continue  # the list of checks has the reason
            measured |= {metric["name"] for metric in shown["metrics"]}
            self._data(f"check-{uid}", shown)
            self._file(f"reports/{uid}.html", offline_report(self.index, "check", uid))
        trends = {name: check_queries.metric_over_time(self.index, name, self.checks) for name in sorted(measured)}
        self._data("trends", trends)


def _chunks(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]
