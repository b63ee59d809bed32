"""Ranks and workers leave the record of one process, and what befalls one of them costs nothing that was recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.faults import (
    PATIENCE_S,
    ROOT,
    N,
    arguments,
    assert_same_end,
    computed,
    go_on,
    recorded,
    start,
    told,
    until,
    until_answering,
)


def ranks(count: int, out: Path, log: Path, *, delay: float = 0.0) -> subprocess.Popen[bytes]:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}", "-m", "mill"]
    environment = {**os.environ, "TOY_N": str(N), "TOY_LOG": str(log), "TOY_DELAY": str(delay), "PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, *launch, *arguments(out)], env=environment, stdout=quiet, stderr=quiet)


def children(pid: int, word: str) -> list[int]:
    """The processes below one whose command line has a word in it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            line = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if parent == pid:
            found += [int(stat.parent.name)] if word in line else []
            found += children(int(stat.parent.name), word)
    return found


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_leave_the_record_of_one_process(undisturbed: Path, tmp_path: Path, count: int) -> None:
    log = tmp_path / "log"
    assert ranks(count, tmp_path / "out", log).wait(PATIENCE_S) == 0
    assert_same_end(tmp_path / "out", undisturbed)
    assert len(computed(log)) == len(recorded(undisturbed)), "every question is asked once, by one rank"
    go_on(tmp_path / "out", log)
    assert computed(log) == []


def test_a_killed_rank_ends_the_others_and_one_process_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    launcher = ranks(2, out, log, delay=0.02)
    until_answering(launcher, log, answers=20)
    os.kill(children(launcher.pid, "toy_gen")[-1], signal.SIGKILL)
    assert launcher.wait(PATIENCE_S) != 0
    assert 0 < len(recorded(out)) < len(recorded(undisturbed))
    go_on(out, log)
    assert_same_end(out, undisturbed)


def test_a_killed_worker_of_ray_is_replaced(undisturbed: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out, log = tmp_path / "out", tmp_path / "log"
    run = start(out, log, "--engine", "ray", "--workers", "2", delay=0.02)
    until_answering(run, log, answers=20)
    until(lambda: children(run.pid, "ray::Worker"), "a worker")
    os.kill(children(run.pid, "ray::Worker")[0], signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 0, told(log)
    assert "a worker died" in told(log)
    assert_same_end(out, undisturbed)
    go_on(out, log)
    assert computed(log) == []
