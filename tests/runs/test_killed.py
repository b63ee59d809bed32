"""`kill -9` at any moment of a run: nothing recorded is computed again, and the end is that of an undisturbed run."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

from tests.outcomes import assert_same_end, recorded, sessions
from tests.runs.faults import (
    PATIENCE_S,
    computed,
    kill,
    killed_at_random,
    leftovers,
    resume,
    start,
    stderr_of,
    until_first_response,
)

KILLS = 8


def test_a_run_killed_many_times_ends_like_an_undisturbed_one(undisturbed: Path, tmp_path: Path) -> None:
    out, log, dice = tmp_path / "out", tmp_path / "log", random.Random(5)
    for _ in range(KILLS):
        known = recorded(out)
        killed_at_random(out, log, dice)
        assert not set(computed(log)) & set(known), "a recorded answer was computed again"
    resume(out, log)
    assert_same_end(out, undisturbed)
    assert not leftovers(out)
    assert len(recorded(out)) == len(computed(undisturbed.parent / "log"))


def test_every_batch_that_ended_before_a_kill_is_recorded(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    run = start(out, log, tasks="toy_gen", env={"TOY_HOLD": "9"})
    until_first_response(run, log, answers=9)  # the ninth request never ends: two batches of four did
    kill(run)
    assert list(recorded(out)) == computed(log)[:8]


def test_a_torn_last_line_is_computed_again_and_a_damaged_middle_is_reported(undisturbed: Path, tmp_path: Path) -> None:
    out, log = Path(shutil.copytree(undisturbed, tmp_path / "out")), tmp_path / "log"
    (file,) = out.glob("*/*/record/*.jsonl")
    file.write_bytes(file.read_bytes()[:-9])
    resume(out, log)
    assert len(computed(log)) == 1
    assert_same_end(out, undisturbed)
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], b'{"key": brok', *lines[2:]]))
    assert start(out, log).wait(PATIENCE_S) == 2
    assert f"{file} is damaged at byte {len(lines[0]) + 1}" in stderr_of(log)


def test_a_terminated_run_is_reported_and_resumes(undisturbed: Path, tmp_path: Path) -> None:
    """SIGTERM is what a scheduler sends before it kills."""
    out, log = tmp_path / "out", tmp_path / "log"
    run = start(out, log, env={"TOY_HOLD": "9"})
    until_first_response(run, log)
    run.send_signal(signal.SIGTERM)
    assert run.wait(PATIENCE_S) == 143
    assert "interrupted; all completed requests are recorded" in stderr_of(log) and "Traceback" not in stderr_of(log)
    assert [session["ended"] for session in sessions(out)] == ["interrupted"]
    resume(out, log)
    assert_same_end(out, undisturbed)
