"""Whoever dies of a Ray cluster: nothing is lost, nothing is answered twice, nobody waits."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.launching import ended, launched, lines, run, told, toy, until
from tests.outcomes import assert_same_end, recorded, samples, sessions
from tests.ray_cluster import TASKS, Cluster, computed, kill, on_ray, processes, watched

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for Ray's processes in /proc")


def test_ray_of_this_machine_needs_no_preparation_and_leaves_nothing(alone: Path, tmp_path: Path) -> None:
    """Resumed with another number of workers, once from an interruption such as a scheduler sends it."""
    log, out = tmp_path / "log", tmp_path / "out"
    running = launched(toy(out, TASKS, *on_ray(2), model=watched(log, 0.05)))
    until(lambda: len(recorded(out)) > 8)
    running.send_signal(signal.SIGTERM)
    began = time.monotonic()
    code, said = ended(running, 60)
    assert code == 143 and time.monotonic() - began < 40
    assert told(said) == ["mill: interrupted; all completed requests are recorded: the same command resumes from there"]
    assert [session["ended"] for session in sessions(out)] == ["interrupted"]
    known = set(recorded(out))
    log.unlink()
    code, said = run(toy(out, TASKS, *on_ray(3), model=watched(log, 0.05)))
    assert code == 0, said
    assert not known & set(computed(log))
    assert_same_end(out, alone)
    until(lambda: not of_driver(running.pid))


def of_driver(pid: int) -> list[int]:
    """The processes of the Ray that a driver started: its session is named after the driver."""
    return [found for found, words in processes() if re.search(rf"session_[\d_-]+_{pid}\b", words)]


def test_a_killed_driver_takes_its_ray_along_and_loses_nothing(alone: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, TASKS, *on_ray(2), model=watched(log, 0.05))
    running = launched(command)
    until(lambda: len(recorded(out)) > 8)
    assert of_driver(running.pid)
    running.kill()
    until(lambda: not of_driver(running.pid))
    running.communicate()
    known = set(recorded(out))
    log.unlink()
    assert run(toy(out, TASKS, model=watched(log, 0.05)))[0] == 0
    assert known and not known & set(computed(log))
    assert_same_end(out, alone)


def test_a_killed_worker_is_replaced_and_nothing_is_lost(cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, TASKS, *on_ray(2, cluster), model=watched(log, 0.02))
    running = launched(command, **cluster.token)
    until(lambda: len(recorded(out)) > 8)
    os.kill(int(lines(log)[0].split()[1]), signal.SIGKILL)
    code, said = ended(running)
    assert code == 0, said
    assert "warning: a worker died (killed or crashed)" in said
    assert_same_end(out, alone)
    assert "workers that died and were replaced: 1" in sessions(out)[0]["warnings"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_that_kills_its_worker_twice_is_answered_in_the_end(
    workers: int, cluster: Cluster, tmp_path: Path
) -> None:
    model = f"deadly[path=toy,poison=toy_gen 17,deaths=2,tombs={tmp_path}/tombs]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(workers, cluster), model=model), **cluster.token)
    assert code == 0, said
    assert run(toy(tmp_path / "alone", "toy_gen"))[0] == 0
    assert_same_end(tmp_path / "out", tmp_path / "alone")
    assert len(lines(tmp_path / "tombs")) == 3


def test_a_request_that_always_kills_its_worker_is_an_error_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    model = f"deadly[path=toy,poison=toy_gen 17,deaths=99,tombs={tmp_path}/tombs]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 1, said
    rows = {row["id"]: row["error"] for row in samples(tmp_path / "out")["toy_gen.jsonl"]}
    assert [sample for sample, error in rows.items() if error] == ["17"]
    assert "the worker died each of the 3 times it was asked" in rows["17"]
    assert run(toy(tmp_path / "alone", "toy_gen"))[0] == 0
    found, expected = recorded(tmp_path / "out"), recorded(tmp_path / "alone")
    assert found.keys() == expected.keys()
    assert sum(found[key] != expected[key] for key in expected) == 1


def test_a_worker_with_little_memory_takes_smaller_batches(cluster: Cluster, tmp_path: Path) -> None:
    model = f"hungry[path=toy,table={tmp_path}/table]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 0, said
    assert run(toy(tmp_path / "alone", "toy_gen"))[0] == 0
    assert_same_end(tmp_path / "out", tmp_path / "alone")
    poor = lines(tmp_path / "table")[0]
    eaten = [int(line.split()[2]) for line in lines(tmp_path / "table") if line.startswith(f"{poor} ate")]
    assert eaten and max(eaten) <= 400_000_000


def test_failing_samples_that_stand_together_are_errors_as_in_one_process(cluster: Cluster, tmp_path: Path) -> None:
    """Samples 20 to 29 may be all that is in a bundle: that is no reason to give the model up."""
    model = "watched[path=toy,fails=2]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 1 and told(said) == [], said
    assert run(toy(tmp_path / "alone", "toy_gen", model=model))[0] == 1
    assert_same_end(tmp_path / "out", tmp_path / "alone")


def test_a_backend_that_exits_keeps_nobody_waiting(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path, "toy_gen", *on_ray(2, cluster), model="quitting[path=toy]")
    code, said = ended(launched(command, **cluster.token), 30)
    assert code != 0 and len(told(said)) == 1 and "SystemExit" in said, said


def test_a_worker_that_cannot_open_the_model_says_so_while_another_is_on_its_way(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=f"latecoming[path=toy,table={tmp_path}/table]")
    code, said = run(command, **cluster.token)
    assert code == 1
    assert said.splitlines() == ["mill: toy: ValueError: no weights"]


def test_a_machine_that_is_lost_leaves_its_work_to_the_others(alone: Path, tmp_path: Path) -> None:
    log, out, cluster = tmp_path / "log", tmp_path / "out", Cluster(cores=1)
    try:
        other = cluster.grow()
        running = launched(toy(out, TASKS, *on_ray(2, cluster), model=watched(log, 0.04)), **cluster.token)
        until(lambda: len({line.split()[1] for line in lines(log)}) == 2)
        kill(other)
        code, said = ended(running)
    finally:
        cluster.kill()
    assert code == 0 and "warning: a worker died" in said, said
    assert_same_end(out, alone)


@pytest.mark.parametrize("part", ["", "raylet"], ids=["head", "node"])
def test_a_cluster_that_dies_is_told_and_the_run_goes_on_without_ray(part: str, alone: Path, tmp_path: Path) -> None:
    """All of it, or only what manages the machine that the command runs on."""
    log, out, cluster = tmp_path / "log", tmp_path / "out", Cluster()
    try:
        command = toy(out, TASKS, *on_ray(2, cluster), model=watched(log, 0.04))
        running = launched(command, **cluster.token)
        until(lambda: len(recorded(out)) > 8)
        kill([pid for pid, words in processes() if pid in cluster.processes() and part in words.split()[0]])
        began = time.monotonic()
        code, said = ended(running, 90)
    finally:
        cluster.kill()
    assert code > 0 and time.monotonic() - began < 80
    (line,) = told(said)
    assert (cluster.address if not part else "that this command is on died") in line
    assert [session["ended"] for session in sessions(out)] == ["failed"]
    known = set(recorded(out))
    log.unlink(missing_ok=True)
    assert run(toy(out, TASKS, model=watched(log, 0.04)))[0] == 0
    assert known and not known & set(computed(log))
    assert_same_end(out, alone)
