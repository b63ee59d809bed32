"""`make soak`: a run is killed hundreds of times, and the engines that answer it are killed and started again.

MILL_SOAK is the number of kills. The dice of each test are fixed, but the moments that they choose are not: what a process
does then depends on the machine. So a failure says which kill it was, and leaves its folder.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines.prepared import ENVIRONMENT, MODEL, engine, shallow
from tests.launching import TESTS, ended, run, start_mill, start_ranks, toy, until
from tests.outcomes import assert_same_end, recorded
from tests.runs.faults import computed, kill, leftovers, start, stderr_of
from tests.servers import free_port, llama_command, wait_for

KILLS = int(os.environ.get("MILL_SOAK", "200"))
RANKED = [str(TESTS / "ranked.py")]
TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"
DELAY_S = 0.003  # of a request: a run takes a second or two


def test_a_run_killed_at_any_moment_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    """Also while it starts, scores, and writes its results. After a run that ended, the next one begins anew."""
    whole, out, log, dice = tmp_path / "whole", tmp_path / "out", tmp_path / "log", random.Random(1)
    assert start(tmp_path / "first", log, delay=DELAY_S).wait() == 0  # takes longer than those that follow
    begin = time.monotonic()
    assert start(whole, log, delay=DELAY_S).wait() == 0
    duration = time.monotonic() - begin
    ends = 0
    for number in range(KILLS):
        known = recorded(out)
        log.unlink(missing_ok=True)
        process = start(out, log, delay=DELAY_S)
        time.sleep(dice.uniform(0, duration))  # the moment is what the dice say
        over = process.poll() is not None
        kill(process)
        assert known.items() <= recorded(out).items(), f"kill {number} lost a response"
        assert not set(computed(log)) & set(known), f"a recorded response was computed again before kill {number}"
        if over:
            assert process.returncode == 0, stderr_of(log)
            assert_same_end(out, whole)
            shutil.rmtree(out)
            ends += 1
    assert start(out, log).wait() == 0, stderr_of(log)
    assert_same_end(out, whole)
    assert not leftovers(out)
    print(f"{KILLS} kills; {ends} of these runs had ended")


def test_ranks_killed_at_any_moment_lose_nothing(tmp_path: Path) -> None:
    whole, out, log, dice = tmp_path / "whole", tmp_path / "out", tmp_path / "log", random.Random(2)
    assert run(toy(whole, TASKS), TOY_N="60")[0] == 0
    for number in range(KILLS // 10):
        known = recorded(out)
        log.unlink(missing_ok=True)
        first, second = both = start_ranks(2, toy(out, TASKS), RANKED, TOY_N="60", TOY_DELAY="0.02", TOY_LOG=str(log))
        until(lambda: computed(log))
        time.sleep(dice.uniform(0, 0.2))
        for process in dice.choice([[first], [second], both]):
            process.kill()
        ends = [ended(process) for process in both]
        assert known.items() <= recorded(out).items(), f"kill {number} lost a response: {ends}"
        assert not set(computed(log)) & set(known), f"a recorded response was computed again before kill {number}"
    assert run(toy(out, TASKS), TOY_N="60")[0] == 0
    assert_same_end(out, whole)


def llama(port: int, folder: Path) -> tuple[str, list[str]]:
    """The spec of a server and the command that starts it."""
    weights = MODEL.with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    if not weights.is_file():
        pytest.skip("the demo model was not fetched: make fetch")
    return f"llama-cpp[base_url=http://127.0.0.1:{port}]", llama_command(weights, port)


def vllm_mlx(port: int, folder: Path) -> tuple[str, list[str]]:
    command = [str(engine("vllm-mlx") / "vllm-mlx"), "serve", str(shallow(folder / "shallow"))]
    return f"vllm-mlx[base_url=http://127.0.0.1:{port}]", [*command, "--host", "127.0.0.1", "--port", str(port)]


def vllm(port: int, folder: Path) -> tuple[str, list[str]]:
    command = [str(engine("vllm") / "python"), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    options = ["--model", str(MODEL), "--served-model-name", "m", "--dtype", "float32", "--max-model-len", "512"]
    return f"http://127.0.0.1:{port}/v1[model=m]", [*command, *options, "--host", "127.0.0.1", "--port", str(port)]


def started(command: list[str]) -> subprocess.Popen[bytes]:
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, **quiet)


def end(server: subprocess.Popen[bytes]) -> None:
    """With the processes that it started."""
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def progressed(out: Path, count: int, running: subprocess.Popen[str]) -> bool:
    return len(recorded(out)) > count or running.poll() is not None


@pytest.mark.parametrize(("serve", "restarts"), [(llama, KILLS // 10), (vllm_mlx, KILLS // 20), (vllm, KILLS // 50)])
def test_a_run_survives_every_restart_of_its_engine(serve: Any, restarts: int, tmp_path: Path) -> None:
    """One command: it waits for its engine, sends again what was in flight, and keeps what was answered."""
    port, out = free_port(), tmp_path / "out"
    spec, command = serve(port, tmp_path)
    count = 12 * (restarts + 1)
    arguments = toy(out, "toy_gen", "--gen_kwargs", "max_gen_toks=8", model=spec)
    server = started(command)
    try:
        wait_for(f"http://127.0.0.1:{port}", server.poll, 900)
        running = start_mill(arguments, TOY_N=str(count))
        for number in range(restarts):
            known = recorded(out)
            until(partial(progressed, out, len(known) + 4, running), 600)
            assert running.poll() is None, f"mill ended before restart {number}: {ended(running)}"
            end(server)
            assert known.items() <= recorded(out).items()
            server = started(command)
        code, stderr = ended(running, 600)
    finally:
        end(server)
    assert code == 0, stderr
    assert len(recorded(out)) >= count and not any(response.get("error") for response in recorded(out).values())
