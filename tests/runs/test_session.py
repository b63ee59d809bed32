"""Session files: a second command waits its turn, no entry of manifest.json and results.json is lost, dead sessions end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mill.api.budget import TokenUsage
from mill.api.errors import RunError
from mill.api.task import RenderSettings
from mill.runs.evaluate import Plan
from mill.store import session
from mill.store.folder import MANIFEST, RESULTS, RunFolder
from mill.store.schema import Entry
from mill.store.session import TOP, SessionFile, SessionWatcher, merged, read_sessions, spent_so_far
from mill.tasks.load import select
from tests.outcomes import assert_same_end, recorded, sessions
from tests.plans import prepare
from tests.runs.faults import (
    PATIENCE_S,
    N,
    computed,
    leftovers,
    start,
    stderr_of,
    until,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(session, "_POLL_S", 0.01)
    return RunFolder(tmp_path / "run")


@contextlib.contextmanager
def at_work(folder: RunFolder, *tasks: str) -> Iterator[SessionFile]:
    with SessionFile(folder, tasks) as own:
        own.take_turn()
        yield own


# Turns.


@pytest.fixture
def other(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """What a command at work on the task `t` tells of itself: a process of this machine that is there."""
    process = subprocess.Popen(["sleep", "100"])
    yield {
        "host": "h",
        "machine": session._machine(),
        "pid": process.pid,
        "born": session._born(process.pid),
        "tasks": ["t"],
        "working": True,
        "beat": 1,
    }
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


NAMED = "-1-0000beef"  # how the names of session files end


def write_session(folder: RunFolder, state: dict[str, Any], name: str = "other") -> Path:
    path = folder.path / "sessions" / f"{name}{NAMED}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(".draft")
    draft.write_text(json.dumps(state))
    draft.replace(path)
    return path


def turn_comes(folder: RunFolder, within: float) -> bool:
    """Whether a turn on the task `t` comes within so many seconds; afterwards the way is made free."""
    came, free = threading.Event(), threading.Event()

    def take() -> None:
        with at_work(folder, "t"):
            came.set()
            free.wait(PATIENCE_S)

    thread = threading.Thread(target=take)
    thread.start()
    found = came.wait(within)
    if not found:
        for file in (folder.path / "sessions").glob("other*.json"):
            file.unlink()
    free.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return found


def test_three_commands_at_once_compute_each_answer_once(undisturbed: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    runs = [start(out, log, delay=0.005) for _ in range(3)]
    assert [run.wait(PATIENCE_S) for run in runs] == [0, 0, 0], stderr_of(log)
    assert Counter(computed(log)) == Counter(recorded(undisturbed).keys())
    assert_same_end(out, undisturbed)
    assert not leftovers(out)
    entries = sessions(out)
    assert [(entry["ended"], entry["failed"]) for entry in entries] == [("finished", 0)] * 3
    assert sorted(entry["computed"] for entry in entries) == [0, 0, len(recorded(undisturbed))]
    assert {entry["known"] + entry["computed"] for entry in entries} == {len(recorded(undisturbed))}
    assert "waiting for it to end" in stderr_of(log)


def test_a_live_process_is_waited_for_and_a_dead_one_is_not(folder: RunFolder, other: dict[str, Any]) -> None:
    write_session(folder, other)
    assert not turn_comes(folder, within=0.3)
    write_session(folder, {**other, "tasks": ["u"]})
    assert turn_comes(folder, within=15)
    write_session(folder, {**other, "born": "another process had this number"})
    assert turn_comes(folder, within=15)
    write_session(folder, other)
    os.kill(other["pid"], signal.SIGKILL)
    os.waitpid(other["pid"], 0)
    assert turn_comes(folder, within=15)
    assert read_sessions(folder)["other" + NAMED].ended, "so that nobody has to find it out again"


def test_a_process_of_another_machine_is_alive_as_long_as_it_gives_signs(
    folder: RunFolder, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its beats, not by the times of the file, which another machine's clock may have made."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watcher, alive = SessionWatcher(folder), []
    for beat in (1, 2, 2, 3, 3):
        write_session(folder, {**other, "machine": "elsewhere", "beat": beat})
        alive.append([state.beat for state in watcher.at_work()])
        clock[0] += session.SILENCE_S * 0.6
    assert alive == [[1], [2], [2], [3], [3]]
    clock[0] += session.SILENCE_S
    assert watcher.at_work() == []


def test_a_silent_process_of_another_machine_is_waited_for_once(
    folder: RunFolder, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SILENCE_S", 0.1)
    write_session(folder, {**other, "machine": "elsewhere", "pid": 1})
    assert turn_comes(folder, within=15)
    monkeypatch.setattr(session, "SILENCE_S", 60.0)
    assert turn_comes(folder, within=15), "the next command need not wait again"


def test_a_session_file_is_rewritten_and_says_when_it_has_ended(folder: RunFolder) -> None:
    with SessionFile(folder, ["t"], beat_s=0.01) as own:
        own.publish(RESULTS, {"tasks": {"t": Entry({"n": 1})}})
        own.take_turn()
        first = read_sessions(folder)[own.name]
        assert (first.working, first.ended, first.pid, first.tasks) == (True, False, os.getpid(), ["t"])
        until(lambda: read_sessions(folder)[own.name].beat > first.beat + 1, "a beat")
    last = read_sessions(folder)[own.name]
    assert (last.working, last.ended) == (False, True) and last.seconds > first.seconds


def test_what_is_no_session_file_is_left_alone_and_a_copy_counts_nothing(folder: RunFolder) -> None:
    """Cloud drives write a copy of a file that two machines changed; people keep notes and folders beside it."""
    with at_work(folder, "t") as own:
        own.spent["model"] = TokenUsage(3, 4)
    (file,) = (folder.path / "sessions").glob("*.json")
    for name in (" (1)", " (laptop's conflicted copy 2026-11-19)", ".sync-conflict-20261119-173206-ABCDEFG", "-LAPTOP"):
        file.with_name(f"{own.name}{name}.json").write_bytes(file.read_bytes())
    file.with_name("notes.json").write_text('["mine"]')
    file.with_name("x.json").mkdir()
    file.with_name("y-1-0000beef.json").mkdir()
    assert [*read_sessions(folder)] == [own.name]
    assert spent_so_far(folder)[0] == {"model": TokenUsage(3, 4)}


def test_a_session_that_fails_before_it_leaves_anything_leaves_no_file(folder: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), at_work(folder, "t"):
        raise ZeroDivisionError
    assert read_sessions(folder) == {}


@pytest.fixture
def ready(toy_here: Path, tmp_path: Path) -> Callable[..., Plan]:
    """Prepare a run of the toy model in this process."""

    def make(limit: int | None = None) -> Plan:
        return prepare("toy[path=toy]", select(["toy_gen"]), RenderSettings(), output_dir=tmp_path / "out", limit=limit)

    return make


def test_answers_that_came_between_planning_and_the_turn_are_not_computed_again(
    ready: Callable[..., Plan], toy_here: Path
) -> None:
    """`mill eval one,two`: the second model is planned before the first runs, and others may answer for it meanwhile."""
    planned = ready()
    ready().execute(quiet=True)
    planned.execute(quiet=True)
    assert len(computed(toy_here)) == N


# Entries of manifest.json and results.json.


def publisher(folder: RunFolder, writer: str, sections: Mapping[str, Mapping[str, Any]], file: str = RESULTS) -> Path:
    """A session of this name that has published; each entry is (number, weight, value)."""
    entries_of = {
        section: {name: dict(zip(("number", "weight", "value"), entry, strict=True)) for name, entry in entries.items()}
        for section, entries in sections.items()
    }
    state = {"host": "h", "machine": "m", "pid": 1, "tasks": [], "ended": True, "published": {file: entries_of}}
    return write_session(folder, state, writer)


def view_again(folder: RunFolder) -> dict[str, Any]:
    """The file after somebody who has nothing to add has written it."""
    with SessionFile(folder) as own:
        own.publish(RESULTS, {})
    return folder.read(RESULTS)


def test_an_entry_that_comes_while_the_file_is_written_is_in_it(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have written the file already, and would not do so again."""
    write = RunFolder.write

    def write_late(path: RunFolder, name: str, content: Mapping[str, Any]) -> None:
        if not (folder.path / f"sessions/late{NAMED}.json").exists():
            publisher(folder, "late", {"tasks": {"late": (1, 0, 2)}})
        write(path, name, content)

    monkeypatch.setattr(RunFolder, "write", write_late)
    SessionFile(folder).publish(RESULTS, {"tasks": {"t": Entry(1)}})
    assert folder.read(RESULTS) == {"tasks": {"t": 1, "late": 2}}


words = st.dictionaries(st.sampled_from("xyz"), st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=3)


@given(st.dictionaries(st.sampled_from("abcd"), words, max_size=4), st.randoms())
@settings(max_examples=40)
def test_entries_add_up_to_the_same_in_any_order_and_however_often(published: dict[str, dict[str, Any]], dice: Any) -> None:
    expected: dict[str, tuple[int, int, str]] = {}
    for writer, entries in published.items():
        for name, (number, weight) in entries.items():
            expected[name] = max(expected.get(name, (0, 0, "")), (number, weight, writer))
    with tempfile.TemporaryDirectory() as path:
        folder, order = RunFolder(Path(path)), list(published)
        dice.shuffle(order)
        for writer in order:
            manifest = {
                name: (number, weight, [number, weight, writer]) for name, (number, weight) in published[writer].items()
            }
            publisher(folder, writer, {"tasks": manifest})
            if dice.random() < 0.5:
                view_again(folder)
        first = view_again(folder)
        assert first.get("tasks", {}) == {name: list(rank) for name, rank in expected.items()}
        assert view_again(folder) == first


OLD: dict[str, Any] = {
    "model": {"name": "m"},
    "settings": {"seed": 0},
    "fresh": False,
    "tasks": {"old": {"n": 7, "data_hash": "x"}, "both": {"n": 1, "data_hash": "x"}},
    "sessions": [{"started": "2020-01-02", "ended": "failed"}, {"started": "2020-01-01", "ended": "finished"}],
}


def test_a_manifest_of_an_earlier_version_is_kept(folder: RunFolder) -> None:
    folder.write(MANIFEST, OLD)
    SessionFile(folder).publish(
        MANIFEST, {"tasks": {"both": Entry({"n": 2}), "new": Entry({"n": 3})}, TOP: {"fresh": Entry(True)}}
    )
    SessionFile(folder).publish(MANIFEST, {"sessions": {"s": Entry({"id": "s", "order": 1})}})
    manifest = folder.read(MANIFEST)
    assert manifest["tasks"] == {"old": OLD["tasks"]["old"], "both": {"n": 2}, "new": {"n": 3}}
    assert manifest["sessions"] == [*OLD["sessions"], {"id": "s", "order": 1}]
    assert (manifest["model"], manifest["settings"], manifest["fresh"]) == (OLD["model"], OLD["settings"], True)


def test_a_folder_of_an_earlier_version_is_continued(toy_here: Path, ready: Callable[..., Plan]) -> None:
    """It had files in parts/, working/ and spending/, and no sessions."""
    folder = ready(limit=10).execute(quiet=True).folder
    (folder.path / "sessions").rename(folder.path / "parts")
    (folder.path / "spending").mkdir()
    (folder.path / "spending/one.ledger").write_text("00000000 {}")
    assert read_sessions(folder) == {} and folder.results().tasks["toy_gen"].n == 10
    toy_here.write_text("")
    ready().execute(quiet=True)
    assert len(computed(toy_here)) == N - 10 and folder.results().tasks["toy_gen"].n == N
    assert [one["computed"] for one in folder.read(MANIFEST)["sessions"]] == [10, N - 10]


def test_session_files_removed_by_hand_leave_what_the_file_has(folder: RunFolder) -> None:
    folder.write(MANIFEST, OLD)
    for number, writer in enumerate("ab", start=1):
        listed = Entry({"id": writer, "order": number})
        SessionFile(folder).publish(MANIFEST, {"tasks": {"both": Entry(number)}, "sessions": {writer: listed}})
    before = folder.read(MANIFEST)
    for path in (folder.path / "sessions").iterdir():
        path.unlink()
    SessionFile(folder).publish(MANIFEST, {"tasks": {"new": Entry(3)}})
    assert folder.read(MANIFEST) == {**before, "tasks": {**before["tasks"], "new": 3}}
    assert before["tasks"]["both"] == 2 and [entry["id"] for entry in before["sessions"][2:]] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"published": {RESULTS: {"tasks": {"t": {"number": None, "weight": 0, "value": 1}}}}}, "expected int, got null"),
        ({"published": {RESULTS: {"tasks": [1]}}}, "expected object, got array"),
        ({"seconds": -5.0}, "seconds: expected float >= 0.0"),
        ({"spent": {"model": {"prompt": -1}}}, "prompt"),
        ({"pid": None}, "pid: expected int, got null"),
    ],
)
def test_a_file_that_is_not_as_mill_writes_it_is_refused_by_name(folder: RunFolder, content: Any, what: str) -> None:
    path = publisher(folder, "odd", {})
    path.write_text(json.dumps({**json.loads(path.read_text()), **content}))
    with pytest.raises(RunError) as caught:
        merged(folder, RESULTS)
    assert str(path) in str(caught.value) and what in str(caught.value)


def test_what_a_newer_version_has_in_addition_is_ignored(folder: RunFolder) -> None:
    path = publisher(folder, "newer", {"tasks": {"t": (1, 0, {"n": 1})}})
    state = json.loads(path.read_text())
    state["published"][RESULTS]["tasks"]["t"]["signed"] = True
    path.write_text(json.dumps({**state, "version": 3}))
    assert merged(folder, RESULTS)["tasks"]["t"].value == {"n": 1}
