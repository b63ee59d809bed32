"""An output folder that is removed or moved under a run: the run notices, says so, and never ends well without a record."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import RunError
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.cli.main import run as mill
from mill.execute.sample_state import run_samples
from mill.runs import evaluate
from mill.store import record
from mill.store.record import Record
from tests.outcomes import recorded
from tests.runs.faults import PATIENCE_S, TASKS, arguments, computed, start, stderr_of, until_first_response

TAKEN: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "moved": lambda out: out.rename(out.with_name("elsewhere")),
}


@pytest.mark.parametrize("how", TAKEN)
def test_a_run_whose_output_folder_is_taken_away_ends_with_an_error(tmp_path: Path, how: str) -> None:
    out, log, hold = tmp_path / "out", tmp_path / "log", tmp_path / "hold"
    hold.write_text("20")
    run = start(out, log, delay=0.02, env={"TOY_HOLD": str(hold)})
    until_first_response(run, log, answers=20)
    TAKEN[how](out)
    hold.write_text("1000")
    assert run.wait(PATIENCE_S) not in (0, None)
    assert "removed or moved during the run" in stderr_of(log) and "Traceback" not in stderr_of(log)
    assert len(computed(log)) < 200, "it went on for long"
    assert not [*out.glob("*/*/manifest.json")], "what is left looks like a run"


def test_a_writer_looks_for_its_file_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    written = Record(tmp_path / "run")
    written.put(Request(GENERATE, "1"), Response(text="x"))
    shutil.rmtree(tmp_path / "run")
    written.put(Request(GENERATE, "2"), Response(text="x"))
    clock[0] += 2 * record.CHECK_S
    with pytest.raises(RunError, match="removed or moved during the run"):
        written.put(Request(GENERATE, "3"), Response(text="x"))


@pytest.mark.parametrize("moment", ["write_results", "write_samples"])
def test_a_folder_that_is_removed_while_scores_are_written(
    toy_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    out, write = tmp_path / "out", getattr(evaluate, moment)

    def write_late(*given: Any) -> Any:
        if len(recorded(out)) > 100:
            shutil.rmtree(out)
        return write(*given)

    monkeypatch.setattr(evaluate, moment, write_late)
    assert mill(arguments(out, TASKS, "--quiet")) != 0
    assert "removed or moved during the run" in capsys.readouterr().err


def test_a_run_with_nothing_left_to_compute_notices_too(
    toy_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert mill(arguments(out, TASKS, "--quiet")) == 0

    def answer_and_remove(*given: Any) -> None:
        run_samples(*given)
        shutil.rmtree(out)

    monkeypatch.setattr(evaluate, "run_samples", answer_and_remove)
    assert mill(arguments(out, TASKS, "--quiet")) != 0
    assert "removed or moved during the run" in capsys.readouterr().err


def test_a_record_that_is_emptied_under_the_run_stays_readable(tmp_path: Path) -> None:
    """Appended to, a file that somebody emptied has no hole of zeros in it."""
    written = Record(tmp_path / "run")
    written.put(Request(GENERATE, "1"), Response(text="x"))
    (file,) = (tmp_path / "run/record").iterdir()
    file.write_text("")
    written.put(Request(GENERATE, "2"), Response(text="y"))
    assert b"\0" not in file.read_bytes()
    assert Record(tmp_path / "run").response(Request(GENERATE, "2").key) == Response(text="y")
