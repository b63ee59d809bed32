"""manifest.json and results.json under many processes: no word is lost, and the newest counts by its number."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mill.api.errors import RunError
from mill.api.task import RenderSettings
from mill.models.spec.parse import Spec
from mill.runs import shared
from mill.runs.folder import MANIFEST, RESULTS, RunFolder
from mill.runs.manifest import update_manifest
from mill.runs.shared import TOP, Entry, merged, publish

PROCESSES, ENTRIES = 4, 12


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def part(folder: RunFolder, writer: str, sections: Mapping[str, Mapping[str, Any]], file: str = RESULTS) -> Path:
    """What a process of this name has published; each entry is (number, weight, value)."""
    entries_of = {
        section: {name: dict(zip(("number", "weight", "value"), entry, strict=True)) for name, entry in entries.items()}
        for section, entries in sections.items()
    }
    path = folder.path / "parts" / f"{writer}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({file: entries_of}))
    return path


def as_writer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(shared, "writer_name", lambda: name)


def view_again(folder: RunFolder) -> dict[str, Any]:
    """The file after somebody who has nothing to add has written it."""
    publish(folder, RESULTS, {})
    return folder.read(RESULTS)


def publish_many(path: str, number: int, gate: Any) -> None:
    """One process: entries of its own, one that all of them change, and sessions; each published by itself."""
    folder = RunFolder(Path(path))
    gate.wait()
    for entry in range(ENTRIES):
        name = f"{number}-{entry}"
        one = Entry({"n": entry}, weight=entry)
        publish(folder, RESULTS, {"tasks": {name: one, "all": one}})
        session = {"id": name, "order": entry}
        publish(folder, MANIFEST, {"sessions": {name: Entry(session)}, TOP: {f"top-{name}": Entry(name)}})


def check_nothing_is_lost(folder: RunFolder) -> None:
    names = {f"{number}-{entry}" for number in range(PROCESSES) for entry in range(ENTRIES)}
    tasks, manifest = folder.read(RESULTS)["tasks"], folder.read(MANIFEST)
    assert set(tasks) == {*names, "all"}
    assert all(tasks[name] == {"n": int(name.partition("-")[2])} for name in names)
    assert [(entry["order"], entry["id"]) for entry in manifest["sessions"]] == sorted(
        (int(n.split("-")[1]), n) for n in names
    )
    assert {name: manifest[f"top-{name}"] for name in names} == {name: name for name in names}
    assert not [file for file in folder.path.rglob(".*") if file.is_file()]


def test_processes_that_publish_at_once_lose_nothing(folder: RunFolder) -> None:
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(PROCESSES)
    processes = [context.Process(target=publish_many, args=(str(folder.path), number, gate)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    check_nothing_is_lost(folder)


def test_threads_that_publish_at_once_lose_nothing(folder: RunFolder) -> None:
    """They share the part of their process."""
    gate = threading.Barrier(PROCESSES, timeout=30)
    with ThreadPoolExecutor(PROCESSES) as pool:
        for one in [pool.submit(publish_many, str(folder.path), number, gate) for number in range(PROCESSES)]:
            one.result()
    check_nothing_is_lost(folder)


@pytest.mark.parametrize("writers", [("a", "b"), ("b", "a")])
def test_of_entries_with_the_same_number_the_weightier_wins(folder: RunFolder, writers: tuple[str, str]) -> None:
    part(folder, writers[0], {"tasks": {"t": (3, 40, "full")}})
    part(folder, writers[1], {"tasks": {"t": (3, 10, "limited")}})
    assert view_again(folder)["tasks"] == {"t": "full"}


@pytest.mark.parametrize("writers", [("a", "b"), ("b", "a")])
def test_a_later_number_counts_more_than_weight(folder: RunFolder, writers: tuple[str, str]) -> None:
    part(folder, writers[0], {"tasks": {"t": (3, 40, "of other data")}})
    part(folder, writers[1], {"tasks": {"t": (4, 10, "now")}})
    assert view_again(folder)["tasks"] == {"t": "now"}


def test_the_last_entry_wins_by_number_and_not_by_clock_or_name(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process is one whose clock is behind that of all before, so that its name and times come first."""
    for number in range(9, 0, -1):
        as_writer(monkeypatch, f"2020010{number}T000000-host")
        monkeypatch.setattr(time, "time", lambda number=number: 1e9 + 1e5 * number)
        publish(folder, RESULTS, {"tasks": {"t": Entry(number, weight=number)}})
        for age, path in enumerate(sorted((folder.path / "parts").iterdir())):
            os.utime(path, (1e9 - age, 1e9 - age))
        assert folder.read(RESULTS)["tasks"] == {"t": number}
    assert merged(folder, RESULTS)["tasks"]["t"].number == 9


def test_a_part_that_comes_while_the_file_is_written_is_in_it(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have written the file already, and would not do so again."""
    write = RunFolder.write

    def write_late(path: RunFolder, name: str, content: Mapping[str, Any]) -> None:
        if not (folder.path / "parts/late.json").exists():
            part(folder, "late", {"tasks": {"late": (1, 0, 2)}})
        write(path, name, content)

    monkeypatch.setattr(RunFolder, "write", write_late)
    publish(folder, RESULTS, {"tasks": {"t": Entry(1)}})
    assert folder.read(RESULTS) == {"tasks": {"t": 1, "late": 2}}


words = st.dictionaries(st.sampled_from("xyz"), st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=3)


@given(st.dictionaries(st.sampled_from("abcd"), words, max_size=4), st.randoms())
@settings(deadline=None, max_examples=40)
def test_parts_add_up_to_the_same_in_any_order_and_however_often(published: dict[str, dict[str, Any]], dice: Any) -> None:
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
            part(folder, writer, {"tasks": manifest})
            if dice.random() < 0.5:
                view_again(folder)
        first = view_again(folder)
        assert first.get("tasks", {}) == {name: list(rank) for name, rank in expected.items()}
        assert view_again(folder) == first


def test_writing_again_changes_no_byte(folder: RunFolder) -> None:
    publish(folder, MANIFEST, {"tasks": {"b": Entry(1), "a": Entry(2)}, TOP: {"model": Entry({"name": "m"})}})
    publish(folder, MANIFEST, {"sessions": {"s": Entry({"id": "s", "order": 1})}})
    before = (folder.path / MANIFEST).read_bytes()
    for _ in range(3):
        publish(folder, MANIFEST, {})
    assert (folder.path / MANIFEST).read_bytes() == before


OLD: dict[str, Any] = {
    "model": {"name": "m"},
    "settings": {"seed": 0},
    "fresh": False,
    "tasks": {"old": {"n": 7, "data_hash": "x"}, "both": {"n": 1, "data_hash": "x"}},
    "sessions": [{"started": "2020-01-02", "ended": "failed"}, {"started": "2020-01-01", "ended": "finished"}],
}


def test_a_manifest_from_before_there_were_parts_is_kept(folder: RunFolder) -> None:
    folder.write(MANIFEST, OLD)
    publish(folder, MANIFEST, {"tasks": {"both": Entry({"n": 2}), "new": Entry({"n": 3})}, TOP: {"fresh": Entry(True)}})
    publish(folder, MANIFEST, {"sessions": {"s": Entry({"id": "s", "order": 1})}})
    manifest = folder.read(MANIFEST)
    assert manifest["tasks"] == {"old": OLD["tasks"]["old"], "both": {"n": 2}, "new": {"n": 3}}
    assert manifest["sessions"] == [*OLD["sessions"], {"id": "s", "order": 1}]
    assert (manifest["model"], manifest["settings"], manifest["fresh"]) == (OLD["model"], OLD["settings"], True)


def test_parts_removed_by_hand_leave_what_the_file_has(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(MANIFEST, OLD)
    for number, writer in enumerate("ab", start=1):
        as_writer(monkeypatch, writer)
        session = Entry({"id": writer, "order": number})
        publish(folder, MANIFEST, {"tasks": {"both": Entry(number)}, "sessions": {writer: session}})
    before = folder.read(MANIFEST)
    for path in (folder.path / "parts").iterdir():
        path.unlink()
    publish(folder, MANIFEST, {"tasks": {"new": Entry(3)}})
    assert folder.read(MANIFEST) == {**before, "tasks": {**before["tasks"], "new": 3}}
    assert before["tasks"]["both"] == 2 and [entry["id"] for entry in before["sessions"][2:]] == ["a", "b"]


def test_a_file_removed_by_hand_comes_back_from_its_parts(folder: RunFolder) -> None:
    publish(folder, RESULTS, {"tasks": {"t": Entry(1)}})
    (folder.path / RESULTS).unlink()
    assert view_again(folder) == {"tasks": {"t": 1}}


def test_odd_characters_come_back_as_they_were(folder: RunFolder) -> None:
    odd = "\ud800 \u2028 \x85"
    publish(folder, RESULTS, {"tasks": {odd: Entry(odd)}})
    assert view_again(folder) == {"tasks": {odd: odd}}


def test_a_forked_child_is_another_writer() -> None:
    mine, (reader, writer) = shared.writer_name(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, shared.writer_name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1000).decode() != mine
    assert shared.writer_name() == mine
    os.close(reader)
    os.close(writer)


def test_a_manifest_is_whole_before_the_first_session_has_ended(folder: RunFolder) -> None:
    """`mill ls runs` and `mill score` must find a run that is running or was killed."""
    spec = Spec("toy", {"path": "toy"})
    update_manifest(folder, spec=spec, model_name="toy", identity={}, settings=RenderSettings(), plans=[], fresh=False)
    assert folder.read(MANIFEST)["sessions"] == []


def test_thousands_of_parts_are_each_read_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command looks at the parts many times, and a run that was resumed often has many."""
    for number in range(2000):
        part(folder, f"{number:04}", {"tasks": {"t": (number + 1, 0, {"n": number})}})
    opened: list[str] = []
    real = os.open

    def recording(file: Any, *how: Any) -> int:
        opened.append(str(file))
        return real(file, *how)

    monkeypatch.setattr(os, "open", recording)
    for number in range(5):
        publish(folder, RESULTS, {"tasks": {"u": Entry({"n": number})}})
    assert folder.read(RESULTS)["tasks"] == {"t": {"n": 1999}, "u": {"n": 4}}
    in_parts = [file for file in opened if "/parts/" in file and not file.startswith(".")]
    assert len(in_parts) < 2000 + 40


def test_a_part_that_changes_is_read_again(folder: RunFolder) -> None:
    for number in (1, 2, 3):
        part(folder, "other", {"tasks": {"t": (number, 0, {"n": number})}})
        assert merged(folder, RESULTS)["tasks"]["t"].value == {"n": number}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({RESULTS: {"tasks": {"t": {"number": None, "weight": 0, "value": 1}}}}, "number: expected int, got null"),
        ({RESULTS: {"tasks": {"t": {"weight": 0, "value": 1}}}}, "missing required field number"),
        ({RESULTS: {"tasks": [1]}}, "expected object, got array"),
        ({RESULTS: 7}, "expected object, got int"),
        ([], "does not hold an object"),
    ],
)
def test_a_part_that_is_not_as_mill_writes_it_is_refused_by_name(folder: RunFolder, content: Any, what: str) -> None:
    path = part(folder, "odd", {})
    path.write_text(json.dumps(content))
    with pytest.raises(RunError) as caught:
        merged(folder, RESULTS)
    assert str(path) in str(caught.value) and what in str(caught.value)


def test_what_a_part_of_a_newer_version_has_in_addition_is_ignored(folder: RunFolder) -> None:
    path = part(folder, "newer", {"tasks": {"t": (1, 0, {"n": 1})}})
    manifest = json.loads(path.read_text())
    manifest[RESULTS]["tasks"]["t"]["signed"] = True
    path.write_text(json.dumps({**manifest, "version": 3}))
    assert merged(folder, RESULTS)["tasks"]["t"].value == {"n": 1}
