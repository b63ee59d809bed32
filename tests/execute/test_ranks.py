"""Several ranks of one command give the results of one process, for any number of ranks and after failures."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from mill.runs import ranks
from tests.launching import (
    TESTS,
    ended,
    lines,
    mill_lines,
    run,
    run_ranks,
    start,
    start_ranks,
    torchrun,
    toy,
)
from tests.outcomes import assert_same_end, recorded, samples, scores, sessions
from tests.toy import TASKS
from tests.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="torchrun needs POSIX")
RANKED = [str(TESTS / "ranked.py")]


def codes(processes: list[subprocess.Popen[str]]) -> list[int]:
    """The exit codes of all ranks."""
    return [ended(process)[0] for process in processes]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    code, stderr = run_ranks(2, toy(folder / "out", TASKS), TOY_LOG=str(folder / "log"))
    assert code == 0, stderr
    return folder


def test_two_ranks_give_the_results_of_one_process_and_compute_each_request_once(alone: Path, two: Path) -> None:
    assert_same_end(two / "out", alone)
    assert sorted(lines(two / "log")) == sorted(lines(alone.parent / "log"))
    (session,) = sessions(two / "out")
    assert (session["ended"], session["computed"], session["padded"]) == ("finished", len(lines(alone.parent / "log")), 0)


def test_another_number_of_ranks_resumes_a_run_and_computes_nothing_again(two: Path, alone: Path, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    assert run_ranks(3, toy(two / "out", TASKS), TOY_LOG=log)[0] == 0
    assert run(toy(two / "out", TASKS), TOY_LOG=log)[0] == 0
    assert lines(tmp_path / "log") == []
    assert_same_end(two / "out", alone)


def test_a_dry_run_is_printed_once(tmp_path: Path) -> None:
    both = start_ranks(2, toy(tmp_path / "out", "toy_gen", "--dry_run"))
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert "toy_gen" in printed[0] and printed[1] == ""


def rank_process(launcher: subprocess.Popen[str], rank: int) -> int:
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            ours = f"PPid:\t{launcher.pid}\n" in status.read_text()
            if ours and f"\0RANK={rank}\0" in "\0" + (status.parent / "environ").read_text():
                return int(status.parent.name)
        except OSError:
            continue
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_rank_killed_under_torchrun_ends_all_and_loses_nothing(alone: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    launcher = start(torchrun(2, toy(tmp_path / "out", TASKS)), TOY_HOLD="20", TOY_LOG=str(log))
    until(lambda: len(recorded(tmp_path / "out")) > 8, "recorded response")
    os.kill(rank_process(launcher, 1), signal.SIGKILL)
    code, stderr = ended(launcher)
    assert code != 0
    assert [line for line in mill_lines(stderr) if "all completed requests are recorded" in line]
    recorded_before = recorded(tmp_path / "out")
    log.unlink()
    assert run(toy(tmp_path / "out", TASKS), TOY_LOG=str(log))[0] == 0
    assert not set(lines(log)) & set(recorded_before)
    assert_same_end(tmp_path / "out", alone)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_killed_without_a_launcher_is_detected(killed: int, alone: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = start_ranks(2, toy(tmp_path / "out", TASKS), RANKED, TOY_LOG=str(log), **{f"RANK{killed}_TOY_HOLD": "20"})
    until(lambda: len(recorded(tmp_path / "out")) > 8, "recorded response")
    both[killed].kill()
    code, stderr = ended(both[1 - killed])
    both[killed].communicate()
    assert code == 1
    (line,) = mill_lines(stderr)
    assert ("rank 1 sent no heartbeat" if killed else "the store of the launcher is gone") in line
    recorded_before = recorded(tmp_path / "out")
    log.unlink()
    assert run(toy(tmp_path / "out", TASKS), TOY_LOG=str(log))[0] == 0
    assert not set(lines(log)) & set(recorded_before)
    assert_same_end(tmp_path / "out", alone)


def test_a_rank_with_other_data_is_refused_on_all_ranks(tmp_path: Path) -> None:
    both = start_ranks(2, toy(tmp_path / "out"), RANKED, RANK1_TOY_N="39", TOY_LOG=str(tmp_path / "log"))
    for rank, (code, stderr) in enumerate([ended(process) for process in both]):
        (line,) = mill_lines(stderr)
        assert code == 2
        assert line.startswith("mill (rank 1): " if rank else "mill: ") and "rank 1 has other samples" in line
    assert lines(tmp_path / "log") == []


def test_a_model_that_breaks_on_one_rank_ends_all_with_the_reason(tmp_path: Path) -> None:
    both = start_ranks(2, toy(tmp_path / "out", "toy_gen"), RANKED, TOY_N="200", RANK1_TOY_FAILS="toy")
    (code, stderr), (code_1, stderr_1) = [ended(process) for process in both]
    assert (code, code_1) == (1, 2)
    why = "the model failed on each of the first 8 requests: ValueError: cannot read toy"
    assert mill_lines(stderr) == [f"mill: rank 1: {why}"]
    assert mill_lines(stderr_1) == [f"mill (rank 1): {why}"]


def test_ranks_without_a_shared_file_system_send_their_responses(alone: Path, tmp_path: Path) -> None:
    both = start_ranks(2, toy(tmp_path / "out", TASKS), RANKED, APART="1", TOY_LOG=str(tmp_path / "log"))
    assert codes(both) == [0, 0]
    assert_same_end(tmp_path / "out-0", alone)
    assert 0 < len(recorded(tmp_path / "out-1")) < len(lines(tmp_path / "log")) == len(lines(alone.parent / "log"))


def test_without_a_shared_file_system_a_recorded_error_is_replaced_by_a_response(alone: Path, tmp_path: Path) -> None:
    command = toy(tmp_path / "out", TASKS)
    assert codes(start_ranks(2, command, RANKED, APART="1", TOY_FAILS="toy_gen 7")) == [1, 0]
    assert codes(start_ranks(2, command, RANKED, APART="1")) == [0, 0]
    assert samples(tmp_path / "out-0") == samples(alone)
    assert scores(tmp_path / "out-0") == scores(alone)


def test_a_fresh_run_has_one_folder_though_a_rank_starts_late(tmp_path: Path) -> None:
    assert run(toy(tmp_path / "out", "toy_gen"))[0] == 0
    log = str(tmp_path / "log")
    code, stderr = run_ranks(2, toy(tmp_path / "out", "toy_gen", "--fresh"), RANKED, RANK1_LATE="0.5", TOY_LOG=log)
    assert code == 0, stderr
    assert sorted(folder.name for folder in (tmp_path / "out").glob("*/*")) == ["default", "default~2"]
    assert len(lines(tmp_path / "log")) == 40


def test_heartbeats_continue_between_two_runs_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may score for an hour while the others wait for the next model."""
    values: dict[str, bytes] = {}

    class Store:
        def set(self, name: str, text: str) -> None:
            values[name] = text.encode()

        def check(self, names: list[str]) -> bool:
            return all(name in values for name in names)

        def get(self, name: str) -> bytes:
            return values[name]

    store = Store()
    monkeypatch.setattr(ranks, "_rendezvous", lambda: store)
    monkeypatch.setattr(ranks, "BEAT_S", 0.01)
    ends: list[Any] = []
    monkeypatch.setattr(atexit, "register", ends.append)
    assert ranks._last_heartbeat(store, 0) == ""
    before = set(threading.enumerate())
    ranks._send_heartbeats.__wrapped__(0)
    until(lambda: int(ranks._last_heartbeat(store, 0) or 0) > 3, "fourth heartbeat")
    (beating,) = set(threading.enumerate()) - before
    (end,) = ends
    end()
    assert not beating.is_alive()
