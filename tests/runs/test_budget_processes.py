"""One budget for all processes of a run: killed and resumed, at the same time, as ranks, and on several servers.

A real llama-server's own counts say what was spent. An answer has at most 7 + 8 tokens there.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mill.runs.folder import RunFolder
from mill.runs.ledger import spent_so_far
from tests.counting_proxy import CountingProxy
from tests.launching import TESTS, ended, lines, run, start_mill, start_ranks, toy
from tests.outcomes import only, recorded, scores
from tests.waiting import until

ANSWER = 16  # tokens of a prompt and an answer of the server, at most
TOKENS = 5  # of an answer of the toy model
RANKED = [str(TESTS / "ranked.py")]
FILE = str(TESTS / "toy.py")


@pytest.fixture
def proxy(llama: str) -> Iterator[CountingProxy]:
    with CountingProxy(llama) as proxy:
        yield proxy


def arguments(model: str, out: Path, budget: int, tasks: str = "toy_gen") -> list[str]:
    options = ["--task_paths", FILE, "--output_dir", str(out), "--quiet", "--max_tokens_total", str(budget)]
    return ["eval", model, tasks, *options]


def spent(out: Path) -> int:
    amounts, _ = spent_so_far(RunFolder(only(out, "manifest.json").parent))
    return sum(usage.total for usage in amounts.values())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(60)


def test_the_server_counts_what_the_run_says(proxy: CountingProxy, tmp_path: Path) -> None:
    model = f"llama-cpp[base_url={proxy.url}]"
    assert run(arguments(model, tmp_path, 200))[0] == 4
    assert proxy.total == spent(tmp_path) and 200 <= proxy.total < 200 + ANSWER
    calls = len(proxy.tokens)
    assert scores(tmp_path)["tasks"]["toy_gen"]["n"] == calls
    assert run(arguments(model, tmp_path, 200))[0] == 4
    assert len(proxy.tokens) == calls, "nothing is sent with the same budget"


def test_a_killed_run_spends_its_budget_once(proxy: CountingProxy, tmp_path: Path) -> None:
    """Requests that were in flight count, though their responses were lost."""
    model, budget = f"llama-cpp[base_url={proxy.url}]", 300
    for more in (1, 3, 2, 5):
        process, enough = start_mill(arguments(model, tmp_path, budget)), len(proxy.tokens) + more
        until(lambda enough=enough, process=process: len(proxy.tokens) >= enough or process.poll() is not None, "answer")  # type: ignore[misc]
        kill(process)
    until(lambda: not proxy.in_flight, "end of what is in flight")
    assert proxy.total > 0
    assert run(arguments(model, tmp_path, budget))[0] == 4
    assert proxy.total < budget + 2 * ANSWER, "no more than two slots have in flight"
    # A lost request counts as if it had been answered to the limit; its prompt is an estimate.
    assert spent(tmp_path) >= budget
    assert len(recorded(tmp_path)) <= len(proxy.tokens)


def test_two_processes_share_a_budget(proxy: CountingProxy, tmp_path: Path) -> None:
    model = f"llama-cpp[base_url={proxy.url}]"
    both = [start_mill(arguments(model, tmp_path, 300, tasks)) for tasks in ("toy_gen", "toy_gen2")]
    assert [ended(process)[0] for process in both] == [4, 4]
    assert 300 <= proxy.total < 300 + 2 * ANSWER
    assert spent(tmp_path) == proxy.total


def test_workers_of_several_servers_share_a_budget(proxy: CountingProxy, llama: str, tmp_path: Path) -> None:
    with CountingProxy(llama) as other:
        model = f"llama-cpp[base_url='{proxy.url},{other.url}']"
        assert run(arguments(model, tmp_path, 300))[0] == 4
        assert proxy.tokens and other.tokens
        assert 300 <= proxy.total + other.total < 300 + ANSWER
        assert spent(tmp_path) == proxy.total + other.total


def test_ranks_share_a_budget(proxy: CountingProxy, tmp_path: Path) -> None:
    model = f"llama-cpp[base_url={proxy.url}]"
    ranks = start_ranks(2, arguments(model, tmp_path, 300), RANKED)
    assert [ended(process)[0] for process in ranks] == [4, 0]
    assert 300 - ANSWER < proxy.total < 300 + 2 * ANSWER
    assert spent(tmp_path) == proxy.total
    assert scores(tmp_path)["tasks"]["toy_gen"]["n"] == len(proxy.tokens)


@pytest.mark.parametrize("apart", [{}, {"APART": "1"}], ids=["shared files", "files apart"])
def test_ranks_of_a_local_model_share_a_budget(apart: dict[str, str], tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    for budget, done in ((60, 12), (60, 12), (100, 20)):
        command = toy(out, "toy_gen", "--max_tokens_total", str(budget))
        ranks = start_ranks(2, command, RANKED, TOY_LOG=str(log), **apart)
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
    command = toy(out, "toy_gen", "--max_tokens_total", "60", model=f"stepping[path=toy,steps={steps}]")
    ranks = start_ranks(2, command, RANKED, TOY_LOG=str(log))
    results = [ended(process) for process in ranks]
    assert [code for code, _ in results] == [4, 0], results
    assert lines(tmp_path / "steps-0") == lines(tmp_path / "steps-1") != []
    done = scores(out)["tasks"]["toy_gen"]["n"]
    assert 12 <= done <= 13 and spent(out) == TOKENS * done


def test_a_killed_local_run_spends_its_budget_once(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, "toy_gen", "--max_tokens_total", "150")
    for _ in range(3):
        known = len(lines(log))
        process = start_mill(command, TOY_LOG=str(log), TOY_HOLD="6")  # in the middle of a batch
        until(lambda known=known: len(lines(log)) == known + 6, "sixth response")  # type: ignore[misc]
        kill(process)
    lost = len(lines(log)) - len(recorded(out))
    assert lost > 0 and run(command, TOY_LOG=str(log))[0] == 4
    # A lost request counts 3 or 4 tokens of its prompt and 8 of the longest answer. The rest of a window is free again.
    assert 150 <= spent(out) < 150 + TOKENS + 8
    counted = spent(out) - TOKENS * len(recorded(out))
    assert TOKENS * lost <= counted <= 3 * 4 * (4 + 8), "a batch has four requests"
    assert TOKENS * len(lines(log)) <= 150 + TOKENS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_what_is_lost_in_large_batches_counts(number: signal.Signals, tmp_path: Path) -> None:
    """A model whose batches of 64 never end: each session computes some of a batch and is killed."""
    log, out, budget = tmp_path / "log", tmp_path / "out", 800
    options = ["--task_paths", str(TESTS / "toy_exam.py"), "--output_dir", str(out), "--max_tokens_total", str(budget)]
    command = ["eval", "exam[name=a]", "toy_exam_law", "--quiet", *options]
    for _ in range(3):
        known = len(lines(log))
        process = start_mill(command, EXAM_LOG=str(log), EXAM_HOLD="10")
        until(lambda known=known: len(lines(log)) == known + 10, "tenth response")  # type: ignore[misc]
        process.send_signal(number)
        process.wait(60)
    assert len(lines(log)) > len(recorded(out))
    assert run(command, EXAM_LOG=str(log))[0] == 4
    assert 4 * len(lines(log)) <= budget + 16 and spent(out) >= 4 * len(lines(log))


def test_the_time_of_killed_sessions_counts(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    command = toy(out, "toy_gen", "--max_time", "60s")
    process = start_mill(command, TOY_LOG=str(log), TOY_DELAY="0.2", TOY_HOLD="9")
    until(lambda: len(lines(log)) == 9, "ninth response")
    kill(process)
    seconds = spent_so_far(RunFolder(only(out, "manifest.json").parent))[1]
    assert seconds > 1.0
    code, _ = run(toy(out, "toy_gen", "--max_time", f"{seconds:.3f}"), TOY_LOG=str(log))
    assert code == 4


def test_a_process_waits_for_what_another_has_in_flight(tmp_path: Path) -> None:
    """A process that finds all of the rest planned by another one waits for it, and does not stop before."""
    out, log = tmp_path / "out", tmp_path / "log"
    hold = tmp_path / "hold"
    hold.write_text("9")
    first = start_mill(arguments("toy[path=toy]", out, 400), TOY_LOG=str(log), TOY_HOLD=str(hold))
    until(lambda: len(lines(log)) == 9, "ninth response")
    second = start_mill(arguments("toy[path=toy]", out, 400, "toy_gen2"), TOY_LOG=str(log))
    until(lambda: len([*out.glob("*/*/working/*.json")]) == 2, "second process at work")
    hold.write_text("1000")
    assert (ended(second)[0], ended(first)[0]) == (0, 0)
    assert spent(out) == 400
