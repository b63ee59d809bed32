"""One budget for all processes of a run: killed and resumed, at the same time, and as ranks."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from mill.store.folder import RunFolder
from mill.store.session import spent_so_far
from tests.launching import TESTS, ended, lines, run, start_mill, start_ranks, toy
from tests.outcomes import only, recorded, scores
from tests.waiting import until

TOKENS = 5  # of an answer of the toy model
RANKED = [str(TESTS / "ranked.py")]


def within(budget: int, out: Path, tasks: str = "toy_gen", **model: str) -> list[str]:
    return toy(out, tasks, "--max_tokens_total", str(budget), **model)


def spent(out: Path) -> int:
    amounts, _ = spent_so_far(RunFolder(only(out, "manifest.json").parent))
    return sum(usage.total for usage in amounts.values())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(60)


@pytest.mark.parametrize("apart", [{}, {"APART": "1"}], ids=["shared files", "files apart"])
def test_ranks_of_a_local_model_share_a_budget(apart: dict[str, str], tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    for budget, done in ((60, 12), (100, 20)):
        ranks = start_ranks(2, within(budget, out), RANKED, TOY_LOG=str(log), **apart)
        results = [ended(process) for process in ranks]
        assert [code for code, _ in results] == [4, 0], results
        assert done <= len(lines(log)) <= done + 1, "each rank may have one request in flight"
        first = tmp_path / ("out-0" if apart else "out")
        assert scores(first)["tasks"]["toy_gen"]["n"] == len(lines(log))
    assert [ended(process)[0] for process in start_ranks(2, toy(out, "toy_gen"), RANKED, TOY_LOG=str(log), **apart)] == [
        0,
        0,
    ]
    assert len(lines(log)) == 40


def test_ranks_in_lock_step_stop_together(tmp_path: Path) -> None:
    steps, out, log = tmp_path / "steps", tmp_path / "out", tmp_path / "log"
    ranks = start_ranks(2, within(60, out, model=f"stepping[path=toy,steps={steps}]"), RANKED, TOY_LOG=str(log))
    results = [ended(process) for process in ranks]
    assert [code for code, _ in results] == [4, 0], results
    assert lines(tmp_path / "steps-0") == lines(tmp_path / "steps-1") != []
    done = scores(out)["tasks"]["toy_gen"]["n"]
    assert 12 <= done <= 13 and spent(out) == TOKENS * done


def held(out: Path, log: Path, budget: int, responses: int, **more: str) -> subprocess.Popen[str]:
    """A process that waits in the middle of its work, when its file says what it has spent."""
    process = start_mill(within(budget, out, model="toy[path=toy,batch_size=1]"), TOY_LOG=str(log), **more)
    until(lambda: len(lines(log)) == responses, f"response {responses}")
    until(lambda: out.is_dir() and spent(out) == TOKENS * (responses - 1), "what it has spent")
    return process


def test_what_a_killed_process_has_spent_counts(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    kill(held(out, log, 100, 9, TOY_HOLD="9"))
    assert spent(out) == 8 * TOKENS == TOKENS * len(recorded(out))
    assert run(within(100, out))[0] == 4
    assert spent(out) == 100


def test_what_another_process_has_spent_counts(tmp_path: Path) -> None:
    out, log, hold = tmp_path / "out", tmp_path / "log", tmp_path / "hold"
    hold.write_text("9")
    first = held(out, log, 60, 9, TOY_HOLD=str(hold))
    assert run(within(60, out, "toy_gen2"))[0] == 4
    assert spent(out) == 60 and scores(out)["tasks"]["toy_gen2"]["n"] == 4
    hold.write_text("1000")
    assert ended(first)[0] == 4 and spent(out) == 65, "one request was in flight"
