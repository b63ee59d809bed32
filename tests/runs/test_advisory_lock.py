"""The advisory lock: nothing is computed twice, and no command waits for dead processes or for other tasks."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mill.api.judge import Judge
from mill.api.registry import tasks as registry
from mill.api.response import Response
from mill.api.storage import write_json
from mill.api.task import RenderSettings, Sample
from mill.models.spec.parse import parse_spec
from mill.runs import advisory_lock as locks
from mill.runs import evaluate, results
from mill.runs.advisory_lock import advisory_lock
from mill.runs.evaluate import Plan
from mill.runs.folder import RESULTS, RunFolder
from mill.runs.results import write_results
from mill.runs.shared import publish
from mill.tasks.load import select
from tests.outcomes import assert_same_end, recorded, scores, sessions
from tests.plans import prepare
from tests.runs.faults import (
    PATIENCE_S,
    N,
    computed,
    kill,
    leftovers,
    resume,
    start,
    stderr_of,
    until,
    until_first_response,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(locks, "_POLL_S", 0.01)
    return RunFolder(tmp_path / "run")


@pytest.fixture
def other(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """What a command at work on the task `t` tells of itself: a process of this machine that is there."""
    process = subprocess.Popen(["sleep", "100"])
    born = locks._born(process.pid)
    yield {
        "host": "h",
        "machine": locks._machine(),
        "pid": process.pid,
        "born": born,
        "tasks": ["t"],
        "working": True,
        "beat": 1,
    }
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def write_heartbeat(folder: RunFolder, entry: dict[str, Any], name: str = "other") -> Path:
    path = folder.path / "working" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry))
    return path


def turn_comes(folder: RunFolder, within: float, tasks: tuple[str, ...] = ("t",)) -> bool:
    """Whether a turn comes within so many seconds; afterwards the way is made free."""
    came, free = threading.Event(), threading.Event()

    def take() -> None:
        with advisory_lock(folder, tasks):
            came.set()
            free.wait(PATIENCE_S)

    thread = threading.Thread(target=take)
    thread.start()
    found = came.wait(within)
    if not found:
        for file in (folder.path / "working").glob("other*.json"):
            file.unlink()
    free.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return found


def left(folder: RunFolder) -> list[str]:
    return sorted(file.name for file in (folder.path / "working").iterdir())


def test_three_commands_at_once_compute_each_answer_once(undisturbed: Path, tmp_path: Path) -> None:
    out, log, hold = tmp_path / "out", tmp_path / "log", tmp_path / "hold"
    hold.write_text("9")
    runs = [start(out, log, env={"TOY_HOLD": str(hold)}) for _ in range(3)]
    until(lambda: stderr_of(log).count("waiting for it to end") == 2, "notice of two that wait")
    hold.write_text("1000")
    assert [run.wait(PATIENCE_S) for run in runs] == [0, 0, 0], stderr_of(log)
    assert Counter(computed(log)) == Counter(recorded(undisturbed).keys())
    assert_same_end(out, undisturbed)
    assert not leftovers(out)
    entries = sessions(out)
    assert [(entry["ended"], entry["failed"]) for entry in entries] == [("finished", 0)] * 3
    assert sorted(entry["computed"] for entry in entries) == [0, 0, len(recorded(undisturbed))]
    assert {entry["known"] + entry["computed"] for entry in entries} == {len(recorded(undisturbed))}


def test_other_tasks_of_the_same_run_are_not_waited_for(tmp_path: Path) -> None:
    out, slow, quick = tmp_path / "out", tmp_path / "slow", tmp_path / "quick"
    at_work = start(out, slow, tasks="toy_gen,toy_text", env={"TOY_HOLD": "9"})
    until_first_response(at_work, slow)
    assert start(out, quick, tasks="toy_choice").wait(PATIENCE_S) == 0
    assert at_work.poll() is None and "waiting" not in stderr_of(quick)
    assert list(scores(out)["tasks"]) == ["toy_choice"]
    at_work.send_signal(signal.SIGTERM)
    assert at_work.wait(PATIENCE_S) == 143
    resume(out, slow, tasks="toy_gen,toy_text")
    assert sorted(scores(out)["tasks"]) == ["toy_choice", "toy_gen", "toy_text"]


def test_a_waiter_continues_at_once_when_the_one_at_work_is_killed(undisturbed: Path, tmp_path: Path) -> None:
    out, first, second = tmp_path / "out", tmp_path / "first", tmp_path / "second"
    at_work = start(out, first, env={"TOY_HOLD": "9"})
    until_first_response(at_work, first, answers=9)
    waiter = start(out, second)
    until(lambda: "waiting for it to end" in stderr_of(second), "the notice")
    assert f"process {at_work.pid} on " in stderr_of(second)
    assert not computed(second)
    kill(at_work)
    known = recorded(out)
    assert known
    assert waiter.wait(locks.SILENCE_S / 2) == 0
    assert Counter(computed(second)) == Counter(recorded(undisturbed).keys() - known.keys())
    assert_same_end(out, undisturbed)
    assert not leftovers(out)


def test_a_waiter_that_is_terminated_leaves_the_other_in_peace(undisturbed: Path, tmp_path: Path) -> None:
    out, first, second, hold = tmp_path / "out", tmp_path / "first", tmp_path / "second", tmp_path / "hold"
    hold.write_text("9")
    at_work = start(out, first, env={"TOY_HOLD": str(hold)})
    until_first_response(at_work, first)
    waiter = start(out, second)
    until(lambda: "waiting for it to end" in stderr_of(second), "the notice")
    waiter.send_signal(signal.SIGTERM)
    assert waiter.wait(PATIENCE_S) == 143
    hold.write_text("1000")
    assert at_work.wait(PATIENCE_S) == 0
    assert not computed(second)
    assert_same_end(out, undisturbed)
    assert not leftovers(out)


def test_a_live_process_is_waited_for_and_a_dead_one_is_not(folder: RunFolder, other: dict[str, Any]) -> None:
    write_heartbeat(folder, other)
    assert not turn_comes(folder, within=0.3)
    write_heartbeat(folder, {**other, "tasks": ["u"]})
    assert turn_comes(folder, within=15)
    write_heartbeat(folder, {**other, "born": "another process had this number"})
    assert turn_comes(folder, within=15)
    write_heartbeat(folder, other)
    os.kill(other["pid"], signal.SIGKILL)
    os.waitpid(other["pid"], 0)
    assert turn_comes(folder, within=15)
    assert left(folder) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells of processes in files")
def test_a_killed_process_that_its_parent_does_not_reap_is_not_waited_for(folder: RunFolder, other: dict[str, Any]) -> None:
    """So it stays in a container whose first process does not reap, for as long as the container lives."""
    write_heartbeat(folder, other)
    os.kill(other["pid"], signal.SIGKILL)
    until(lambda: ") Z " in Path(f"/proc/{other['pid']}/stat").read_text(), "the zombie")
    assert turn_comes(folder, within=15)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is in the list is added to the time, and each wait for a turn adds a second."""
    passed = [0.0]
    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: sum(passed), sleep=lambda _: passed.append(1.0)))
    return passed


def test_a_silent_process_of_another_machine_is_waited_for_a_while(
    folder: RunFolder, other: dict[str, Any], clock: list[float]
) -> None:
    path = write_heartbeat(folder, {**other, "machine": "elsewhere", "pid": 1})
    assert turn_comes(folder, within=PATIENCE_S)
    assert locks.SILENCE_S < sum(clock) < locks.SILENCE_S + 3
    assert not path.exists()


def test_a_process_of_another_machine_that_gives_signs_is_waited_for(
    folder: RunFolder, other: dict[str, Any], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its beats, not by the times of the file, which another machine's clock may have made."""
    beats, silent_from = itertools.count(1), 3 * locks.SILENCE_S

    def beat() -> None:
        path = write_heartbeat(folder, {**other, "machine": "elsewhere", "beat": next(beats)}, name="draft")
        os.utime(path, (1e9, 1e9))
        path.replace(path.with_name("other.json"))

    def wait(_: float) -> None:
        clock.append(1.0)
        if sum(clock) < silent_from:
            beat()

    monkeypatch.setattr(locks.time, "sleep", wait)
    beat()
    assert turn_comes(folder, within=PATIENCE_S)
    assert silent_from + locks.SILENCE_S - 1 <= sum(clock) < silent_from + locks.SILENCE_S + 3


def test_the_heartbeat_file_is_rewritten_and_then_removed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.05)
    with advisory_lock(folder, ["t"]) as waited:
        assert not waited
        (file,) = (folder.path / "working").glob("*.json")
        first = json.loads(file.read_text())
        assert first["working"] and first["pid"] == os.getpid() and first["tasks"] == ["t"]
        until(lambda: json.loads(file.read_text())["beat"] > first["beat"] + 1, "a beat")
    assert left(folder) == []


def test_the_file_is_removed_when_the_work_fails(folder: RunFolder) -> None:
    with pytest.raises(ZeroDivisionError), advisory_lock(folder, ["t"]):
        raise ZeroDivisionError
    assert left(folder) == []


def test_what_is_no_heartbeat_file_blocks_no_process(folder: RunFolder) -> None:
    for number, text in enumerate(["", "{", "[]", "{}", '{"tasks": ["t"]}']):
        path = folder.path / "working" / f"other{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert turn_comes(folder, within=15)


@pytest.mark.parametrize("clock", [1, -1])
def test_never_two_at_work_at_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, clock: int) -> None:
    """Also where who comes later has the earlier name: within a second that is up to chance, and clocks differ."""
    names, dice = itertools.count(5000, clock), itertools.cycle([0.0, 0.012, 0.004, 0.02])
    inside: list[int] = []
    most: list[int] = []

    def slowly(file: Path, entry: Any, **how: Any) -> None:
        time.sleep(0.01)  # as over a network
        write_json(file, entry, **how)

    def take(number: int, delay: float) -> None:
        time.sleep(delay)
        with advisory_lock(folder, ["t"]):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.02)
            inside.remove(number)

    monkeypatch.setattr(locks, "unique_name", lambda: str(next(names)))
    monkeypatch.setattr(locks, "write_json", slowly)
    for _ in range(15):
        threads = [threading.Thread(target=take, args=(number, next(dice))) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert len(most) == 45
    assert max(most) == 1


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


@pytest.mark.parametrize("moment", ["before its results", "before its samples"])
def test_a_limited_run_does_not_write_over_a_full_one_that_ends_with_it(
    ready: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    here, full = threading.current_thread(), threading.Thread(target=lambda: ready().execute(quiet=True))

    def meanwhile(when: str) -> None:
        if threading.current_thread() is here and when == moment:
            full.start()
            full.join(2)

    def said(*given: Any) -> None:
        meanwhile("before its results")
        publish(*given)

    def written(*given: Any) -> set[str]:
        found = write_results(*given)
        meanwhile("before its samples")
        return found

    monkeypatch.setattr(results, "publish", said)
    monkeypatch.setattr(evaluate, "write_results", written)
    folder = ready(limit=10).execute(quiet=True).folder
    full.join(PATIENCE_S)
    assert folder.read(RESULTS)["tasks"]["toy_gen"]["n"] == N
    assert len(folder.samples_file("toy_gen").read_bytes().split(b"\n")[:-1]) == N


def test_two_commands_call_a_judge_once(toy_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Judged(registry.get("toy_gen")):  # type: ignore[misc]
        judge = Judge()

        def judged_fields(self, sample: Sample, responses: Sequence[Response]) -> dict[str, str]:
            return {"question": sample.doc["question"], "answer": responses[0].text or "", "reference": self.target(sample)}

    registry.add("toy_judged", Judged)
    hold = tmp_path / "hold"
    hold.write_text("2")
    monkeypatch.setenv("TOY_HOLD", str(hold))
    chosen, judge, out = select(["toy_judged"]), parse_spec("toy[path=judge]"), tmp_path / "out"
    runs = [prepare("toy[path=toy]", chosen, RenderSettings(), output_dir=out, judge=judge) for _ in range(2)]
    both = [threading.Thread(target=run.execute, kwargs={"quiet": True}) for run in runs]
    for thread in both:
        thread.start()
    until(lambda: len([*out.glob("*/*/working/*.json")]) == 2, "second run that waits")
    hold.write_text("1000")
    for thread in both:
        thread.join(PATIENCE_S)
    assert set(Counter(computed(toy_here)).values()) == {1}
    assert len(computed(toy_here)) == 2 * N
