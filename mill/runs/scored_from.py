"""What the scores of each task were computed from. A repeated command that finds it unchanged takes the scores that the
folder has, instead of reading every response again to compute the same numbers and to write the same samples.

This is for built-in tasks that score log-probabilities: their scores depend on the data, the responses and mill's own code.
Those of other tasks may depend on anything, such as a user's functions or the programs that a model wrote.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import mill
from mill.api.errors import MillError, RunError
from mill.api.files import imported_files
from mill.api.registry import metrics, tasks
from mill.api.request import LOGLIKELIHOOD, ROLLING
from mill.api.storage import json_text, write_atomically
from mill.api.task import RenderSettings
from mill.api.validate import read_file
from mill.metrics.repeats import RepeatMetric
from mill.runs.folder import RESULTS, RunFolder
from mill.runs.plan import TaskPlan
from mill.runs.record import Record
from mill.runs.schema import TaskResult
from mill.runs.shared import read_entries
from mill.tasks.sources import added_folders

FILE = "scored_from.json"
_LOG_PROBABILITIES = (LOGLIKELIHOOD, ROLLING)
_CODE = (".py", ".yaml", ".json")
_json = json.JSONEncoder(sort_keys=True, default=str).encode


@dataclass(frozen=True)
class ScoredFrom:
    """Digests of what a task's scores were computed from and of the scores, and the file of its samples as it was then."""

    inputs: str
    result: str
    samples: str


@dataclass(frozen=True)
class ScoreInputs:
    """Everything that the scores of a run's tasks depend on."""

    folder: RunFolder
    record: Record
    plans: Sequence[TaskPlan]
    settings: RenderSettings
    repeat_metrics: Sequence[RepeatMetric] | None

    def unchanged(self) -> dict[str, TaskResult] | None:
        """The results of all tasks by their requested names, where nothing changed that they were computed from."""
        known = _read(self.folder)
        if not all(plan.task.name in known for plan in self.plans):
            return None
        results = read_entries(self.folder, RESULTS, "tasks", TaskResult)
        for plan in self.plans:
            result = results.get(plan.task.name)
            if result is None or self._now(plan, result) != known[plan.task.name]:
                return None
        return {plan.requested: results[plan.task.name] for plan in self.plans}

    def write(self, written: Mapping[str, TaskResult]) -> None:
        """Store it for the tasks whose results and samples were written."""
        known = _read(self.folder)
        now = {plan.task.name: self._now(plan, written[plan.task.name]) for plan in self.plans if plan.task.name in written}
        entries = {**known, **{name: one for name, one in now.items() if one is not None}}
        if entries != known:
            content = {name: asdict(one) for name, one in entries.items()}
            with contextlib.suppress(RunError):  # which costs the next command time
                write_atomically(self.folder.path / FILE, json_text(content), root=self.folder.root, sync=False)

    def _now(self, plan: TaskPlan, result: TaskResult) -> ScoredFrom | None:
        """None where it is not known what the scores depend on, or where a repeated command runs samples again."""
        if result.errors or result.pending or not _is_reproducible(plan):
            return None
        inputs = self._inputs(plan)
        if inputs is None:
            return None
        return ScoredFrom(inputs, _digest([_json(result.to_dict())]), _state(self.folder.samples_file(plan.task.name)))

    def _inputs(self, plan: TaskPlan) -> str | None:
        """A digest of what a task's scores depend on; None where a response is missing."""
        task, lines, files = plan.task, list[str](), dict[str, str]()
        how = [plan.requested, task.name, task.version, plan.n_shots, plan.total, plan.data_hash, plan.warnings()]
        settings = [asdict(self.settings), plan.sampled and asdict(plan.sampled)]
        repeats = None if self.repeat_metrics is None else [str(metric) for metric in self.repeat_metrics]
        for state in plan.states:
            lines.append(f"sample {state.sample.id}")
            for clone in chain.from_iterable(request.clones() for request in state.requests):
                found = self.record.location(clone.key)
                if found is None:
                    return None
                name, offset = found
                if name not in files:
                    files[name] = _state(self.record.folder / name)
                lines.append(f"{clone.key} {name} {offset}")
        return _digest([_code_state(), _json([how, settings, repeats, files]), *lines])


def _is_reproducible(plan: TaskPlan) -> bool:
    """Whether a task's scores depend on nothing but its data, its responses and mill's own code."""
    task = plan.task
    if imported_files() or added_folders() or task.judge is not None or plan.positions or plan.pool:
        return False
    builtin = tasks.is_builtin(task.name) and all(metrics.is_builtin(name) for name in task.metrics.values())
    return builtin and all(
        request.kind in _LOG_PROBABILITIES and not request.media and "logprobs" not in request.options
        for state in plan.states
        for request in state.requests
    )


@cache
def _code_state() -> str:
    """Of Python and of the files of this package: an edit or an installation changes it."""
    files = sorted(path for path in Path(mill.__file__).parent.rglob("*") if path.suffix in _CODE)
    return _digest([sys.version, mill.__version__, *(f"{file} {_state(file)}" for file in files)])


def _state(file: Path) -> str:
    """The attributes that change when a file does; empty where it is missing."""
    try:
        stat = file.stat()
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def _digest(lines: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _read(folder: RunFolder) -> dict[str, ScoredFrom]:
    """Empty where the file is missing or not valid: the scores are computed then."""
    try:
        return read_file(folder.path / FILE, dict[str, ScoredFrom])
    except (MillError, FileNotFoundError):
        return {}
