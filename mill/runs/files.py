"""The files of a run before it is scored: its manifest, and its samples, which can be read while the run is in progress.

The manifest has versions, resolved arguments, settings, data and sessions, so that a score can be traced.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mill import __version__
from mill.api.engine import Engine
from mill.api.model import ComputeDevice, MillModel, RendersPrompts
from mill.api.request import Request
from mill.api.task import RenderSettings
from mill.execute.executor import Tally
from mill.execute.sample_state import SampleState
from mill.plan.sampling import replaces
from mill.plan.task_plan import TaskPlan
from mill.sandbox.programs import sandbox_label
from mill.store.folder import MANIFEST, RunFolder
from mill.store.samples import RunSample, prompt_requests, score_sample, with_answers, without_answers, write_samples
from mill.store.schema import Entry, SessionEntry, TaskEntry
from mill.store.session import TOP, SessionFile, read_entries
from mill.support.clocks import WRITING, phase
from mill.support.files import unique_name
from mill.support.processes import Background
from mill.support.secrets import redact, redact_command

if TYPE_CHECKING:
    from mill.runs.evaluate import Plan

_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy")


def shown_settings(settings: RenderSettings) -> dict[str, Any]:
    """The settings that differ from their defaults: they distinguish the runs of one model."""
    defaults = RenderSettings()
    changed = {name: value for name, value in asdict(settings).items() if value != getattr(defaults, name)}
    if "gen_kwargs" in changed:
        changed["gen_kwargs"] = dict(changed["gen_kwargs"])
    return changed


def versions() -> dict[str, str]:
    installed = {"mill": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def update_manifest(session: SessionFile, plan: Plan, plans: Sequence[TaskPlan]) -> set[str]:
    """Write the manifest before the first request; tasks of earlier sessions stay.

    Returns the names of tasks whose samples an earlier session has written already, or had more of.
    """
    folder = session.folder
    known = read_entries(folder, MANIFEST, "tasks", TaskEntry)
    tasks, covered = {}, set()
    for one in plans:
        entry, earlier = _task_entry(one), known.get(one.task.name)
        other = earlier is not None and earlier.n < earlier.total and replaces(one.sampled, earlier.sampled)
        if earlier and not other and earlier.data_hash == entry["data_hash"] and entry["n"] <= earlier.n <= entry["total"]:
            if entry["n"] < earlier.n or folder.samples_file(one.task.name).exists():
                covered.add(one.task.name)
            entry |= {"n": earlier.n, "sampled": asdict(earlier.sampled) if earlier.sampled is not None else None}
        tasks[one.task.name] = Entry(entry, weight=entry["n"])
    top = {
        "id": str(folder.read(MANIFEST).get("id") or unique_name()),  # trackers find the run by it
        "model": {
            "name": plan.model.model_name,
            "backend": plan.spec.backend,
            "arguments": redact(plan.spec.arguments),
            "identity": dict(plan.identity),
        },
        "settings": asdict(plan.config.settings),
        "fresh": plan.fresh,
        **({"condition": plan.config.condition} if plan.config.condition else {}),
        **({"judge": plan.judging.label} if plan.judging is not None else {}),
        **({"sandbox": label} if (label := sandbox_label([one.task for one in plans])) else {}),
        "versions": versions(),
    }
    publish_engines(session, plan.model.engines)
    session.publish(MANIFEST, {TOP: {name: Entry(value) for name, value in top.items()}, "tasks": tasks, "sessions": {}})
    return covered


def publish_engines(session: SessionFile, engines: Mapping[str, Engine]) -> None:
    if engines:
        entries = {name: Entry({"build": dict(one.build), "instance": dict(one.instance)}) for name, one in engines.items()}
        session.publish(MANIFEST, {"engines": entries})


def write_session(
    session: SessionFile,
    *,
    tally: Tally,
    ended: str,
    warnings: Sequence[str] = (),
    paths: Mapping[str, str],
    engines: Mapping[str, Engine],
    device: ComputeDevice | None = None,
    timing: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Add the session to the manifest; `ended` is finished, stopped (at its budget), interrupted or failed. `timing` are the
    seconds of each phase, where no scores follow. Returns the entry."""
    known = read_entries(session.folder, MANIFEST, "sessions", SessionEntry)
    entry = {
        "id": session.name,
        "order": 1 + max((one.order for one in known.values()), default=0),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.state.started)),
        "seconds": round(session.state.seconds, 3),
        "ended": ended,
        "host": socket.gethostname(),
        "command": shown_command(sys.argv),
        "cwd": _working_folder(),
        **asdict(tally),
        "warnings": list(warnings),
        "paths": dict(paths),
        **({"device": asdict(device)} if device is not None else {}),
        **({"timing": _rounded(timing)} if timing is not None else {}),
    }
    publish_engines(session, engines)
    session.publish(MANIFEST, {"sessions": {session.name: Entry(entry)}})
    return entry


def write_timing(session: SessionFile, entry: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
    """Add the seconds of each phase to the entry of a session, once the scores are written."""
    session.publish(MANIFEST, {"sessions": {session.name: Entry({**entry, "timing": _rounded(seconds)})}})


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}


def shown_command(argv: Sequence[str]) -> str:
    """A command without keys, to be copied into a shell: `mill` instead of the path of its program."""
    own = [Path(word).name == "mill" or Path(word).parts[-2:] == ("mill", "__main__.py") for word in argv[:1]]
    return redact_command(["mill", *argv[1:]] if any(own) else argv)


def _working_folder() -> str:
    """Empty where it was removed during the run."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _task_entry(plan: TaskPlan) -> dict[str, Any]:
    return {
        "requested": plan.requested,
        "version": plan.task.version,
        "task_type": plan.task.task_type.value,
        "n_shots": plan.n_shots,
        "n": len(plan.states),
        "total": plan.total,
        "data_hash": plan.data_hash,
        "warnings": plan.warnings(),
        "sampled": asdict(plan.sampled) if plan.sampled is not None else None,
    }


class SamplesAhead:
    """What samples have before their responses: their files, and their prompts as the model gets them. Both are made in a
    thread while the model computes, where that is possible."""

    def __init__(self, folder: RunFolder, model: MillModel) -> None:
        self._folder, self._model = folder, model
        self._prompts: dict[tuple[str, str | int], list[str]] = {}
        self._asked: dict[tuple[str, str | int], RunSample] = {}
        self._beside: Background[None] | None = None
        self.unwritten: Sequence[TaskPlan] = ()
        """The tasks whose samples no earlier session has written."""

    @property
    def fixed(self) -> bool:
        """Whether the samples do not change while they are answered. Dialogs grow."""
        return not any(state.rounds for plan in self.unwritten for state in plan.states)

    def write(self) -> None:
        plans, self.unwritten = self.unwritten, ()
        with phase(WRITING):
            for plan in plans:
                unanswered = (score_sample(plan.task, self._without_answers(state)) for state in plan.states)
                # Without fsync: they are written again.
                write_samples(self._folder, self._model.model_name, plan.task.name, unanswered, sync=False)

    def start(self, states: Sequence[SampleState]) -> None:
        """In a thread, while the model computes."""
        self.finish_files()

        def prepare() -> None:
            self.write()
            self._render(state for state in states if not state.rounds)

        self._beside = Background(prepare)

    def finish_files(self) -> None:
        """Wait until the files are written, or write them if that has not begun."""
        if self._beside is not None:
            with phase(WRITING):
                self._beside.result()
            self._beside = None
        elif self.unwritten:
            self.write()

    def finish_prompts(self, states: Iterable[SampleState]) -> None:
        """Render what is left, after the last request and before the model is closed: some keep no tokenizer."""
        if self._beside is not None:
            self.finish_files()
        self._render(state for state in states if _name(state) not in self._prompts)

    def answered(self, state: SampleState) -> RunSample:
        """The sample with its answers and its `prompt_requests` after the model's chat template."""
        return with_answers(self._without_answers(state), state, self._prompts.get(_name(state), []))

    def _without_answers(self, state: SampleState) -> RunSample:
        if state.rounds:
            return without_answers(state)
        name = _name(state)
        if name not in self._asked:
            self._asked[name] = without_answers(state)
        return self._asked[name]

    def _render(self, states: Iterable[SampleState]) -> None:
        rendered = self._model.rendered_prompt if isinstance(self._model, RendersPrompts) else _as_it_is
        for state in states:
            with contextlib.suppress(Exception):  # the samples then show the prompt as it was before the template
                self._prompts[_name(state)] = [rendered(request) for request in prompt_requests(state)]


def _as_it_is(request: Request) -> str:
    """A text, or messages as JSON."""
    if isinstance(request.context, str):
        return request.context
    return json.dumps([message.to_json() for message in request.context], ensure_ascii=False)


def _name(state: SampleState) -> tuple[str, str | int]:
    return state.task.name, state.sample.id
