"""A Ray cluster for tests: started, enlarged and killed on this machine, and inspected through /proc."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.launching import environment, lines
from tests.waiting import until

TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"


class Cluster:
    """`ray start --head` on this machine: its address and its authentication token."""

    def __init__(self, cores: int = 2) -> None:
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        output = self._ray("start", "--head", "--port", "0", "--num-cpus", str(cores), "--include-dashboard", "false")
        match = re.search(r"--address='([^']+:(\d+))'", output)
        assert match, output
        self.address, self.port = match.groups()

    def _ray(self, *arguments: str) -> str:
        script = "from ray.scripts.scripts import main; main()"
        command = [sys.executable, "-c", script, *arguments, "--disable-usage-stats"]
        done = subprocess.run(command, env=environment(**self.token), capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    def processes(self) -> list[int]:
        """Ray's own processes, which have the head's address in their command. Workers end with the raylet."""
        pattern = re.compile(rf"site-packages/ray/.*[:=]{self.port}\b")
        return [pid for pid, command_line in processes() if pattern.search(command_line)]

    def grow(self) -> list[int]:
        """Add a second node to the cluster; returns its processes."""
        before = self.processes()
        self._ray("start", "--address", self.address, "--num-cpus", "1")
        return [pid for pid in self.processes() if pid not in before]

    def kill(self) -> None:
        def killed() -> bool:
            alive = self.processes()
            kill(alive)
            return not alive

        until(killed, "end of Ray's processes")


def kill(processes: list[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes() -> Iterator[tuple[int, str]]:
    """Every running process with its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if command_line := (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                yield int(entry.name), command_line


def on_ray(workers: int, cluster: Cluster | None = None) -> list[str]:
    return ["--executor", "ray", "--workers", str(workers), *(["--address", cluster.address] if cluster else [])]


def watched(log: Path, delay: float = 0.0) -> str:
    return f"watched[path=toy,delay={delay},log={log}]"


def computed(log: Path) -> list[str]:
    """The keys of the computed requests."""
    return [line.split()[0] for line in lines(log)]
