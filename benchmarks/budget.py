"""Does a run spend more than its budget when it is killed, resumed and distributed?

    python benchmarks/budget.py --model FILE.gguf [--budget 1500] [--kills 8] [--seed N]

A real llama-server answers the questions of tests/toy.py through a proxy that sums up the tokens that the server reports.
Every way of running gets the same budget, until a command ends with exit code 4; then the same command is repeated, which
must send nothing. Prints for each way what the server counted, what the run itself counted, and how much of the difference
to the budget was in flight.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from counting_proxy import CountingProxy  # noqa: E402

from mill.store.folder import RunFolder  # noqa: E402
from mill.store.session import spent_so_far  # noqa: E402
from tests.servers import free_port, llama_server  # noqa: E402

WAYS = ("one process", "killed and resumed", "two processes", "two ranks", "two servers")
SAMPLES = 2000
CONCURRENCY = 4


@dataclass
class Spent:
    """What a way of running spent, by the server and by the run."""

    way: str
    server: int
    run: int
    largest: int
    """Tokens of the largest answer with its prompt."""
    in_flight: int
    """The most requests at a time."""
    commands: int
    again: int
    """Requests that the same command sent after the end."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--budget", type=int, default=1500)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}, a budget of {given.budget} tokens")
    print("| | tokens, by the server | by the run | above the budget | largest request | most in flight | sent again |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for way in WAYS:
        with llama_server(given.model, slots=CONCURRENCY) as url, tempfile.TemporaryDirectory() as folder:
            spent = measure(way, url, Path(folder), given.budget, given.kills, random.Random(given.seed))
        above = max(0, spent.server - given.budget)
        name = f"{way} ({spent.commands} commands)" if spent.commands > 2 else way
        counts = (spent.server, spent.run, above, spent.largest, spent.in_flight, spent.again)
        print(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |", flush=True)


def measure(way: str, url: str, out: Path, budget: int, kills: int, dice: random.Random) -> Spent:
    with ExitStack() as stack:
        proxies = [stack.enter_context(CountingProxy(url)) for _ in range(2 if way == "two servers" else 1)]
        model = f"llama-cpp[base_url='{','.join(proxy.url for proxy in proxies)}']"
        commands = 0
        for _ in range(kills if way == "killed and resumed" else 0):
            commands += 1
            kill_early(start(way, model, out, budget)[0], proxies[0], dice)
        processes = start(way, model, out, budget)
        codes = [process.wait(600) for process in processes]
        assert 4 in codes, f"{way} ended with {codes}"
        calls = sum(len(proxy.tokens) for proxy in proxies)
        again = [process.wait(600) for process in start(way, model, out, budget)]
        assert 4 in again, f"{way}, repeated, ended with {again}"
        (manifest,) = out.glob("*/*/manifest.json")
        return Spent(
            way,
            server=sum(proxy.total for proxy in proxies),
            run=sum(usage.total for usage in spent_so_far(RunFolder(manifest.parent))[0].values()),
            largest=max(count for proxy in proxies for count in proxy.tokens),
            in_flight=sum(proxy.most_in_flight for proxy in proxies),
            commands=commands + len(processes),
            again=sum(len(proxy.tokens) for proxy in proxies) - calls,
        )


def start(way: str, model: str, out: Path, budget: int) -> list[subprocess.Popen[bytes]]:
    """The processes of one command, or of two at the same time."""
    if way == "two processes":
        return [launch(command(model, task, out, budget)) for task in ("toy_gen", "toy_gen2")]
    if way == "two ranks":
        port = str(free_port())
        ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return [
            launch(command(model, "toy_gen", out, budget), RANK=str(rank), LOCAL_RANK=str(rank), **ranks) for rank in (0, 1)
        ]
    return [launch(command(model, "toy_gen", out, budget))]


def command(model: str, tasks: str, out: Path, budget: int) -> list[str]:
    options = ["--task_paths", str(ROOT / "tests/toy.py"), "--output_dir", str(out), "--max_tokens_total", str(budget)]
    return [sys.executable, "-m", "mill", "eval", model, tasks, *options]


def launch(words: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOY_N": str(SAMPLES), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_early(process: subprocess.Popen[bytes], proxy: CountingProxy, dice: random.Random) -> None:
    """`kill -9` at a random moment after the first answer."""
    before = len(proxy.tokens)
    while len(proxy.tokens) == before and process.poll() is None:
        time.sleep(0.01)
    time.sleep(dice.uniform(0, 1.0))
    process.send_signal(signal.SIGKILL)
    process.wait()
    while proxy.in_flight:  # the server completes what it has
        time.sleep(0.01)


if __name__ == "__main__":
    main()
