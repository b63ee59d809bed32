"""Pages that need no server: `mill report` writes one file with all data in it, `mill view --export` a folder to publish.

The data are the answers of the server, and the first rows of each task. Filters, sorting and search happen in the browser.
"""

from __future__ import annotations

import base64
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import permutations
from pathlib import Path
from typing import Any

from mill import __version__
from mill.api.errors import MillError, RunError, SpecError
from mill.checks.result import Check
from mill.support.files import json_text, write_atomically
from mill.support.terminal import warn
from mill.view import api, check_queries, queries
from mill.view import compare as comparing
from mill.view.compare import JOINED, PairFilter, comparison
from mill.view.index import ResultsIndex
from mill.view.media import read_media
from mill.view.overview import Viewer, overview
from mill.view.page import STATIC, offline_page
from mill.view.queries import SampleFilter, all_rows
from mill.view.run_info import RunInfo, run_labels, uid_of

MOST_ROWS = 5_000  # of a task
MOST_BYTES = 32_000_000  # of all samples of a page, and again of all pairs; each task has the same share
MOST_MEDIA = 16_000_000  # bytes of images, audio and video inside of a page
MOST_PAIRS = 12  # ordered pairs of runs; beyond that, each run is compared with one other
MARKER = "mill-view.txt"  # in the folder of a copy: it may be replaced
NO_TOKENS = {"tokens": {"rows": [], "cut": {"characters": 0, "items": 0}}, "forced": False}
_SUFFIXES = {"jpeg": "jpg", "mpeg": "mp3"}

Data = dict[str, Any]
Keep = Callable[[str, bytes, str], str]
"""Stores an image, audio or video by its digest and content type, and returns its URL; empty where there is no room."""


# --- What is written


def check_page(check: Check, file: Path | None = None) -> bytes:
    """A page of one check, from the check alone; `file` is where it was saved."""
    uid = uid_of(str(file) if file else check.name)
    state = {**_EMPTY, "checks": [check_queries.check_entry(uid, check)]}
    shown = _checks_data({uid: check}, {uid: file}, lambda path: "")
    return offline_page({"state": state, "runs": {}, "pairs": {}, **shown})


def write_check_page(check: Check, file: Path, *, root: Path | None = None) -> Path:
    """`root` is the folder that the user gave, if mill chose the file below it."""
    write_atomically(file, check_page(check), root=root)
    return file


def results_page(path: Path) -> bytes:
    """A page of the check, the run or the log at a path, or of all that is below it."""
    with tempfile.TemporaryDirectory(prefix="mill-report-") as cache:
        index = ResultsIndex(path, cache=Path(cache))
        try:
            index.sync()
            damaged = [run.error for run in index.runs.values() if run.error]
            damaged += [entry["error"] for entry in check_queries.list_checks(index) if "error" in entry]
            if len(damaged) == len(index.runs) + len(index.checks):
                nothing = f"{index.root} contains no run and no check; `mill eval` and `mill compare` write them"
                raise RunError(damaged[0] if damaged else nothing)
            for reason in damaged:  # one of them does not hide the others
                warn(f"left out: {reason}")
            return index_page(index)
        finally:
            index.close()


def index_page(index: ResultsIndex, *, run: str = "", check: str = "") -> bytes:
    """A page of all that is indexed, or of one run or one check."""
    if check:
        return check_page(check_queries.find_check(index, check), index.checks[check])
    readable = [one for one in index.runs.values() if not one.error]
    runs = [queries.find_run(index, run)] if run else [one for one in readable if not one.of_check] or readable
    checks = {} if run else dict(check_queries.readable_checks(index))
    return offline_page(_Collected(index, runs, checks, _Inlined()).data())


def export_site(folder: Path, target: Path, patterns: Sequence[str]) -> Path:
    """Write a folder to publish, and return its page. `patterns` choose runs by their labels or folders."""
    if target.exists() and not target.is_dir():
        raise SpecError(f"--export {target}: it is a file, and a folder is needed")
    if target.is_dir() and any(target.iterdir()) and not (target / MARKER).exists():
        raise SpecError(f"--export {target}: the folder is not empty; name a new one")
    index = ResultsIndex(folder)
    try:
        index.sync()
        runs, checks = _chosen_runs(index, patterns), _chosen_checks(index, patterns)
        shutil.rmtree(target / "media", ignore_errors=True)
        _write(target, MARKER, b"A static copy of results, written by `mill view --export`.\n")
        page = offline_page(_Collected(index, runs, checks, _MediaFolder(target)).data())
        for licence in sorted((STATIC / "vendor").glob("LICENSE.*")):
            _write(target, licence.name, licence.read_bytes())
        _write(target, "index.html", page)
    finally:
        index.close()
    return target / "index.html"


def _write(target: Path, name: str, content: bytes) -> None:
    write_atomically(target / name, content, root=target, sync=False)


# --- Which runs and checks


def _chosen_runs(index: ResultsIndex, patterns: Sequence[str]) -> list[RunInfo]:
    labels = run_labels(index.runs.values())
    runs = [run for run in index.runs.values() if not run.of_check and not run.error]
    if patterns:
        unused = [one for one in patterns if not any(_matches(one, run, labels) for run in runs)]
        if unused:
            raise SpecError(f"--runs {unused[0]}: no run is called so; there are {', '.join(sorted(labels.values())[:10])}")
        runs = [run for run in runs if any(_matches(one, run, labels) for one in patterns)]
    if not runs and not index.checks:
        raise RunError(f"{index.root} has no run and no check to export")
    return runs


def _chosen_checks(index: ResultsIndex, patterns: Sequence[str]) -> dict[str, Check]:
    """Of chosen runs, the checks that concern no other run: a check has the prompts and answers of its runs."""
    checks = dict(check_queries.readable_checks(index))
    if not patterns:
        return checks
    labels, run_of = run_labels(index.runs.values()), check_queries.run_finder(index)
    chosen = {run.uid for run in index.runs.values() if any(_matches(one, run, labels) for one in patterns)}
    found: dict[str, Check] = {}
    for uid, check in checks.items():
        paths = [variant.run for variant in check.variants] + ([check.baseline_run] if check.against else [])
        found |= {uid: check} if all(run_of(path) in chosen for path in paths) else {}
    return found


def _matches(pattern: str, run: RunInfo, labels: dict[str, str]) -> bool:
    return any(fnmatch(name, pattern) or name.startswith(pattern) for name in (labels[run.uid], run.name, run.uid))


# --- Their data

_EMPTY: Data = {
    "mill": __version__, "folder": "", "version": 0, "syncing": False, "indexed": [0, 0], "warnings": [], "runs": [],
    "checks": [], "search": {"done": 0, "total": 0},
}  # fmt: skip


def _checks_data(checks: Mapping[str, Check], files: Mapping[str, Path | None], run_of: Callable[[str], str]) -> Data:
    shown = {uid: check_queries.show_check(uid, check, file=files[uid], run_of=run_of) for uid, check in checks.items()}
    trends = {name: check_queries.metric_over_time(checks, name) for name in check_queries.measured(checks)}
    return {"checks": shown, "trends": trends}


@dataclass
class _Inlined:
    """Images, audio and video inside of the page, as far as there is room."""

    left: int = MOST_MEDIA
    known: dict[str, str] = field(default_factory=dict)

    def __call__(self, digest: str, content: bytes, kind: str) -> str:
        if digest not in self.known and len(content) <= self.left:
            self.left -= len(content)
            self.known[digest] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
        return self.known.get(digest, "")


@dataclass
class _MediaFolder:
    """Each image, audio or video once, as a file beside the page."""

    target: Path

    def __call__(self, digest: str, content: bytes, kind: str) -> str:
        suffix = kind.rpartition("/")[2]
        name = f"media/{re.sub('[^0-9a-f]', '', digest)}.{_SUFFIXES.get(suffix, suffix)}"
        if not (self.target / name).exists():
            _write(self.target, name, content)
        return name


class _Collected:
    """The data of a page with some runs and checks."""

    def __init__(self, index: ResultsIndex, runs: Sequence[RunInfo], checks: Mapping[str, Check], keep: Keep) -> None:
        self.index, self.runs, self.checks, self.keep = index, runs, checks, keep
        self.viewer = Viewer(index)
        self.share = MOST_BYTES // max(1, sum(len(self._tasks(run)) for run in runs))
        self.pairs = self._pairs()
        self.pair_share = MOST_BYTES // max(1, sum(len(self._tasks(index.runs[a])) for a, _ in self.pairs))

    def data(self) -> Data:
        uids, run_of = {run.uid for run in self.runs}, check_queries.run_finder(self.index)
        state = {**overview(self.viewer), "folder": self.index.root.name, "syncing": False, "warnings": []}
        state |= {"runs": [{**one, "live": None} for one in state["runs"] if one["uid"] in uids]}
        state |= {"checks": [check for check in state["checks"] if check["uid"] in self.checks], "search": _EMPTY["search"]}
        runs = {run.uid: self._run(run) for run in self.runs}
        return {
            "state": state,
            "runs": runs,
            "pairs": {f"{a}/{b}": self._pair(a, b, runs) for a, b in self.pairs},
            **_checks_data(self.checks, self.index.checks, lambda path: uid if (uid := run_of(path)) in uids else ""),
        }

    def _tasks(self, run: RunInfo) -> list[str]:
        return [row["task"] for row in queries.files_of(self.index, run.uid).values()]

    def _run(self, run: RunInfo) -> Data:
        uid, samples, held = run.uid, list[Data](), list[str]()
        tasks, asked = self._tasks(run), {"run": uid}
        for task in tasks:
            rows, total = self._rows(uid, task)
            samples += rows
            held += [f"{task}: the first {len(rows):,} of {total:,} samples are here"] if len(rows) < total else []
        listed = queries.list_samples(self.index, SampleFilter(uid))
        return {
            "run": {**api.run(self.viewer, asked), "held": held},
            "categories": {task: queries.categories(self.index, uid, task) for task in tasks},
            "calibration": {task: api.calibration(self.viewer, {**asked, "task": task})["chart"] for task in tasks},
            "load": {task: api.usage_of(self.index, uid, task) for task in ("", *tasks)},
            "worst": api.worst_tokens(self.viewer, {"a": uid}),
            "metrics": listed["metrics"],
            "samples": samples,
        }

    def _rows(self, uid: str, task: str) -> tuple[list[Data], int]:
        """The first samples of a task in the order of its file, and how many there are."""
        chosen, left, rows = SampleFilter(uid, task), self.share, list[Data]()
        total = queries.list_samples(self.index, chosen)["total"]
        for row in all_rows(lambda page: queries.list_samples(self.index, replace(chosen, page=page)), MOST_ROWS):
            found = {**row, **api.one_sample(self.index, uid, task, row["id"])}
            left -= len(json_text(found))
            if rows and left < 0:
                break
            self._keep_media(found["sample"], uid, row)
            rows.append(found)
        return rows, total

    def _keep_media(self, sample: Data, uid: str, row: Data) -> None:
        """One that cannot be read any more has no address."""
        for number, entry in enumerate(sample.get("media") or ()):
            entry.pop("url", None)
            try:
                content, kind = read_media(self.index, uid, row["task"], row["id"], number)
            except MillError:
                continue
            entry["url"] = self.keep(str(entry["digest"]), content, kind)

    def _pairs(self) -> list[tuple[str, str]]:
        """All pairs of runs with a task in common; of many, each run with the first one that shares a task with it."""
        runs = [run for run in self.runs if not run.of_check]
        pairs = [(a.uid, b.uid) for a, b in permutations(runs, 2) if set(self._tasks(a)) & set(self._tasks(b))]
        if len(pairs) <= MOST_PAIRS:
            return pairs
        first: dict[str, str] = {}
        for a, b in pairs:
            first.setdefault(b, a)
        return [(a, b) for b, a in first.items()]

    def _pair(self, a: str, b: str, runs: Mapping[str, Data]) -> Data:
        """Pairs of samples that are both in the page. The tests are over all."""
        held = [{(row["task"], row["id"]): row for row in runs[uid]["samples"]} for uid in (a, b)]
        tasks = [task for task in self._tasks(self.index.runs[a]) if task in self._tasks(self.index.runs[b])]
        return {
            "compare": {task: comparing.compare_summary(self.index, PairFilter(a, b, task)) for task in ("", *tasks)},
            "rows": [row for task in tasks for row in self._pairs_of(PairFilter(a, b, task), held)],
            "worst": api.worst_tokens(self.viewer, {"a": a, "b": b}),
        }

    def _pairs_of(self, chosen: PairFilter, held: Sequence[Mapping[tuple[str, str], Data]]) -> Iterator[Data]:
        """Those of one task, until its share of the page is full."""
        task, left = chosen.task, self.pair_share
        stored = comparison(self.index, chosen.a, chosen.b)
        (file,) = queries.files_of(self.index, chosen.a, task)
        query = f"SELECT x.name, y.name FROM {JOINED} WHERE pairs.id BETWEEN ? AND ? AND pairs.file = ?"
        found = self.index.database.connection().execute(query, (stored["first"], stored["last"], file))
        others = dict(map(tuple, found))  # the ids in the second run: samples are paired by their data
        for row in all_rows(lambda page: comparing.list_pairs(self.index, replace(chosen, page=page)), MOST_ROWS):
            first, second = held[0].get((task, row["id"])), held[1].get((task, others[row["id"]]))
            if first is None or second is None:
                continue
            pair = {**row, "other": second["id"], **self._differences(chosen, row, first, second)}
            left -= len(json_text(pair))
            if left < 0:
                return
            yield pair

    def _differences(self, chosen: PairFilter, row: Data, first: Data, second: Data) -> Data:
        """Where two texts diverge, and their tokens side by side; files are only read where there are such."""
        tokens = NO_TOKENS
        if "logprobs" in first["flags"] and "logprobs" in second["flags"]:
            asked = {"a": chosen.a, "b": chosen.b, "t": row["task"], "id": row["id"]}
            tokens = api.sample_tokens(self.viewer, asked)
        if not row["changed"] or first["sample"].get("response") is None:
            return {"divergence": None, "diff": None, "tokens": tokens}
        sides = ((chosen.a, first), (chosen.b, second))
        lines = [queries.read_sample(self.index, uid, row["task"], one["id"]) for uid, one in sides]
        return {**api.difference(*lines), "tokens": tokens}
