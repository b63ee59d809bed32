"""Faults of a Ray cluster: no response is lost or computed twice, and nothing waits forever."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.launching import ended, lines, mill_lines, run, start_mill, toy
from tests.outcomes import assert_same_end, recorded, samples, sessions
from tests.ray_cluster import TASKS, Cluster, computed, kill, on_ray, processes, start_cluster, watched
from tests.waiting import until

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for Ray's processes in /proc")


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file with the number of requests that a worker may compute."""
    file = tmp_path / "hold"
    file.write_text("20")
    return file


def test_local_ray_starts_on_demand_and_leaves_no_processes(alone: Path, hold: Path, tmp_path: Path) -> None:
    """After an interruption by SIGTERM it is resumed with another number of workers."""
    log, out = tmp_path / "log", tmp_path / "out"
    running = start_mill(toy(out, TASKS, *on_ray(2), model=watched(log, hold)))
    until(lambda: len(recorded(out)) > 8, "ninth response")
    running.send_signal(signal.SIGTERM)
    code, stderr = ended(running, 60)
    assert code == 143
    assert mill_lines(stderr) == [
        "mill: interrupted; all completed requests are recorded: the same command resumes from there"
    ]
    assert [session["ended"] for session in sessions(out)] == ["interrupted"]
    recorded_before = set(recorded(out))
    log.unlink()
    hold.write_text("1000")
    code, stderr = run(toy(out, TASKS, *on_ray(3), model=watched(log, hold)))
    assert code == 0, stderr
    assert not recorded_before & set(computed(log))
    assert_same_end(out, alone)
    until(lambda: not ray_processes(running.pid), "end of Ray's processes")


def ray_processes(pid: int) -> list[int]:
    """The Ray processes that a driver started: their session has the driver's process id."""
    return [process for process, command_line in processes() if re.search(rf"session_[\d_-]+_{pid}\b", command_line)]


def test_the_ray_of_a_killed_driver_ends_and_no_response_is_lost(alone: Path, hold: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, TASKS, *on_ray(2), model=watched(log, hold))
    running = start_mill(command)
    until(lambda: len(recorded(out)) > 8, "ninth response")
    assert ray_processes(running.pid)
    running.kill()
    until(lambda: not ray_processes(running.pid), "end of Ray's processes")
    running.communicate()
    recorded_before = set(recorded(out))
    log.unlink()
    hold.write_text("1000")
    assert run(toy(out, TASKS, model=watched(log, hold)))[0] == 0
    assert recorded_before and not recorded_before & set(computed(log))
    assert_same_end(out, alone)


def test_a_killed_worker_is_replaced_and_nothing_is_lost(cluster: Cluster, alone: Path, hold: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, TASKS, *on_ray(2, cluster), model=watched(log, hold))
    running = start_mill(command, **cluster.token)
    until(lambda: len(recorded(out)) > 8, "ninth response")
    os.kill(int(lines(log)[0].split()[1]), signal.SIGKILL)
    hold.write_text("1000")
    code, stderr = ended(running)
    assert code == 0, stderr
    assert "warning: a worker died (killed or crashed)" in stderr
    assert_same_end(out, alone)
    assert "workers that died and were replaced: 1" in sessions(out)[0]["warnings"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_that_kills_its_worker_twice_completes(
    workers: int, cluster: Cluster, alone_gen: Path, tmp_path: Path
) -> None:
    model = f"deadly[path=toy,poison=toy_gen 17,deaths=2,tombs={tmp_path}/tombs]"
    code, stderr = run(toy(tmp_path / "out", "toy_gen", *on_ray(workers, cluster), model=model), **cluster.token)
    assert code == 0, stderr
    assert_same_end(tmp_path / "out", alone_gen)
    assert len(lines(tmp_path / "tombs")) == 3


def test_a_request_that_always_kills_its_worker_is_an_error(cluster: Cluster, alone_gen: Path, tmp_path: Path) -> None:
    model = f"deadly[path=toy,poison=toy_gen 17,deaths=99,tombs={tmp_path}/tombs]"
    code, stderr = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 1, stderr
    rows = {row["id"]: row["error"] for row in samples(tmp_path / "out")["toy_gen.jsonl"]}
    assert [sample for sample, error in rows.items() if error] == ["17"]
    assert "the worker died each of the 3 times it got this request" in rows["17"]
    responses, expected = recorded(tmp_path / "out"), recorded(alone_gen)
    assert responses.keys() == expected.keys()
    assert sum(responses[key] != expected[key] for key in expected) == 1


def test_a_worker_with_little_memory_uses_smaller_batches(cluster: Cluster, alone_gen: Path, tmp_path: Path) -> None:
    model = f"hungry[path=toy,table={tmp_path}/table]"
    code, stderr = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 0, stderr
    assert_same_end(tmp_path / "out", alone_gen)
    poor = lines(tmp_path / "table")[0]
    eaten = [int(line.split()[2]) for line in lines(tmp_path / "table") if line.startswith(f"{poor} ate")]
    assert eaten and max(eaten) <= 400_000_000


def test_adjacent_failing_samples_are_errors_as_in_one_process(cluster: Cluster, tmp_path: Path) -> None:
    """Samples 20 to 29 may be a whole chunk: that does not mean a broken model."""
    model = "watched[path=toy,fails=2]"
    code, stderr = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 1 and mill_lines(stderr) == [], stderr
    assert run(toy(tmp_path / "alone", "toy_gen", model=model))[0] == 1
    assert_same_end(tmp_path / "out", tmp_path / "alone")


def test_a_backend_that_calls_exit_ends_the_run(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path, "toy_gen", *on_ray(2, cluster), model="quitting[path=toy]")
    code, stderr = ended(start_mill(command, **cluster.token), 30)
    assert code != 0 and len(mill_lines(stderr)) == 1 and "SystemExit" in stderr, stderr


def test_a_worker_that_cannot_open_the_model_ends_the_run_while_another_starts(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=f"latecoming[path=toy,table={tmp_path}/table]")
    code, stderr = run(command, **cluster.token)
    assert code == 1
    assert stderr.splitlines() == ["mill: toy: ValueError: no weights"]


def test_the_requests_of_a_lost_machine_go_to_the_others(
    ray_cluster: Cluster, alone: Path, hold: Path, tmp_path: Path
) -> None:
    log, out, cluster = tmp_path / "log", tmp_path / "out", start_cluster(ray_cluster.token, cores=1)
    try:
        other = cluster.grow()
        running = start_mill(toy(out, TASKS, *on_ray(2, cluster), model=watched(log, hold)), **cluster.token)
        until(lambda: len({line.split()[1] for line in lines(log)}) == 2, "request of the second worker")
        kill(other)
        hold.write_text("1000")
        code, stderr = ended(running)
    finally:
        cluster.kill()
    assert code == 0 and "warning: a worker died" in stderr, stderr
    assert_same_end(out, alone)


@pytest.mark.parametrize("part", ["", "raylet"], ids=["head", "node"])
def test_a_dead_cluster_is_reported_and_the_run_resumes_without_ray(
    part: str, ray_cluster: Cluster, alone: Path, hold: Path, tmp_path: Path
) -> None:
    """The whole cluster, or only the raylet of the command's machine."""
    log, out, cluster = tmp_path / "log", tmp_path / "out", start_cluster(ray_cluster.token)
    try:
        command = toy(out, TASKS, *on_ray(2, cluster), model=watched(log, hold))
        running = start_mill(command, **cluster.token)
        until(lambda: len(recorded(out)) > 8, "ninth response")
        kill([pid for pid, command_line in processes() if pid in cluster.processes() and part in command_line.split()[0]])
        code, stderr = ended(running, 90)
    finally:
        cluster.kill()
    assert code > 0
    (line,) = mill_lines(stderr)
    assert (cluster.address if not part else "that this command is on died") in line
    assert [session["ended"] for session in sessions(out)] == ["failed"]
    recorded_before = set(recorded(out))
    log.unlink(missing_ok=True)
    hold.write_text("1000")
    assert run(toy(out, TASKS, model=watched(log, hold)))[0] == 0
    assert recorded_before and not recorded_before & set(computed(log))
    assert_same_end(out, alone)
