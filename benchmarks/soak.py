"""Does a run that is killed again and again end like one that was left alone?

    python benchmarks/soak.py [--kills 200] [--seed N]

A fast fake model (tests/toy.py) answers four tasks. Commands are started and killed at random moments: a process by itself
(kill -9 or SIGTERM), or one of two ranks; between two commands the end of a record may be cut off.

After every kill all that was recorded before must still be there, unchanged, and nothing of it may have been computed again.
At the end record, samples and scores must equal those of an undisturbed run. Prints the seed, then what was done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"
SAMPLES = 400
DELAY_S = 0.004
# How often each kind of command is started, and the most seconds after its first answer until a process is killed.
WAYS = {"alone": (0.7, 0.4), "ranks": (0.3, 0.4)}


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.out, self.log = folder, folder / "out", folder / "log"
        self.dice = random.Random(seed)
        self.done: Counter[str] = Counter()

    def command(self, way: str, *, delay: float, out: Path) -> subprocess.Popen[bytes]:
        toy = str(ROOT / "tests/toy.py")
        arguments = ["-m", "mill", "eval", "toy[path=toy]", TASKS, "--task_paths", toy, "--output_dir", out]
        start = [sys.executable]
        if way == "ranks":
            start += ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(_free_port())]
        command = [*start, *map(str, arguments)]
        variables = {"TOY_N": str(SAMPLES), "TOY_DELAY": str(delay), "TOY_LOG": str(self.log), "PYTHONPATH": str(ROOT)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True, **quiet)  # type: ignore[call-overload, no-any-return]

    def disturb(self) -> bool:
        """Start a command and kill something of it; True when it came to its end before that."""
        way = self.dice.choices(list(WAYS), [share for share, _ in WAYS.values()])[0]
        before = recorded(self.out)
        self.log.write_text("")
        process = self.command(way, delay=DELAY_S, out=self.out)
        self._await_work(process)
        time.sleep(self.dice.uniform(0.0, WAYS[way][1]))
        if process.poll() is None:
            self._kill(way, process)
        _end_all(process)
        self._check(before)
        ended = process.returncode == 0
        if not ended and self.dice.random() < 0.2:
            self._cut_a_record()
        return ended

    def _await_work(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + 60
        while process.poll() is None and not self.log.read_text() and time.monotonic() < until:
            time.sleep(0.01)

    def _kill(self, way: str, process: subprocess.Popen[bytes]) -> None:
        """The process that was started, or one of its ranks."""
        children = [child for child in _family(process.pid) if child != process.pid]
        if way == "ranks":
            ranks = [child for child in children if "-m\0mill" in _title(child)]
            victim, name = (self.dice.choice(ranks), "a rank") if ranks else (process.pid, "torchrun")
        else:
            victim, name = process.pid, "a process"
        sign = signal.SIGKILL if self.dice.random() < 0.8 else signal.SIGTERM
        _signal(victim, sign)
        self.done[f"{'kill -9' if sign == signal.SIGKILL else 'SIGTERM'} of {name}"] += 1

    def _check(self, before: Mapping[str, Any]) -> None:
        after, computed = recorded(self.out), set(self.log.read_text().split())
        lost = [key for key, answer in before.items() if after.get(key) != answer]
        assert not lost, f"{len(lost)} recorded answers are lost or changed"
        again = computed & set(before)
        assert not again, f"{len(again)} recorded answers were computed again"

    def _cut_a_record(self) -> None:
        """As a machine that lost its power leaves a file: its last line torn."""
        files = [file for file in self.out.glob("*/*/record/*.jsonl") if file.stat().st_size > 400]
        if files:
            file = self.dice.choice(files)
            os.truncate(file, file.stat().st_size - self.dice.randint(2, 60))
            self.done["a record's end cut off"] += 1

    @property
    def kills(self) -> int:
        return sum(count for what, count in self.done.items() if "record" not in what)


def recorded(out: Path) -> dict[str, Any]:
    """Whole lines of all record files, as anybody with a JSON reader sees them."""
    found: dict[str, Any] = {}
    for file in sorted(out.glob("*/*/record/*.jsonl")):
        for line in file.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            answer = {name: value for name, value in entry["response"].items() if name != "seconds"}
            assert found.setdefault(entry["key"], answer) == answer, "two answers to one question"
    return found


def outcome(out: Path) -> dict[str, Any]:
    """Samples and scores without times."""
    found: dict[str, Any] = {}
    for file in sorted(out.glob("*/*/samples/*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["responses"] = [[{**answer, "seconds": 0} for answer in repeat] for repeat in row["responses"]]
        found[file.name] = rows
    found["scores"] = json.loads(next(out.glob("*/*/results.json")).read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(Path(temporary), given.seed)
        whole = Path(temporary) / "whole"
        assert soak.command("alone", delay=0.0, out=whole).wait() == 0
        started, runs = time.monotonic(), 0
        while soak.kills < given.kills:
            runs += 1
            if soak.disturb():  # complete: start a fresh run beside it
                _check_end(soak.out, whole)
                soak.out = Path(temporary) / f"out{runs}"
            if runs % 20 == 0:
                print(f"{runs} commands, {soak.kills} kills, {len(recorded(soak.out))} answers recorded", flush=True)
        assert soak.command("alone", delay=0.0, out=soak.out).wait() == 0
        _check_end(soak.out, whole)
        for what, count in soak.done.most_common():
            print(f"{count:5} x {what}")
        took = f"{soak.kills} kills in {runs} commands and {time.monotonic() - started:.0f} s"
        print(f"{took}; the end is that of an undisturbed run")
    return 0


def _check_end(out: Path, whole: Path) -> None:
    assert recorded(out) == recorded(whole), "another record than an undisturbed run's"
    assert outcome(out) == outcome(whole), "other samples or scores than an undisturbed run's"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _family(pid: int) -> list[int]:
    """A process and all that come from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, open_ends = [], [pid]
    while open_ends:
        found.append(open_ends.pop())
        open_ends += children.get(found[-1], [])
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _signal(pid: int, sign: signal.Signals) -> None:
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        return


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a command, so that the next one starts on a quiet machine."""
    for pid in reversed(_family(process.pid)):
        _signal(pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
