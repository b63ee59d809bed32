"""A Ray cluster for tests: started, enlarged and killed on this machine, and inspected through /proc."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests import forking
from tests.launching import environment, lines
from tests.shared import join, shared_folder
from tests.waiting import until

TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"


@dataclass(frozen=True)
class Cluster:
    """The address, the authentication and the session of `ray start --head` on this machine."""

    address: str
    token: dict[str, str]

    @cached_property
    def session(self) -> str:
        """The name of the session, which no other cluster on this machine has."""
        lines = [line for _, line in processes() if f"={self.address} " in line]
        (name,) = {match[0] for line in lines for match in re.finditer(r"session_[\d_-]+", line)}
        return name

    def processes(self) -> list[int]:
        """Ray's own processes, which have the session in their command. Workers end with the raylet."""
        return [pid for pid, command_line in processes() if self.session in command_line and "/ray/" in command_line]

    def grow(self) -> list[int]:
        """Add a second node to the cluster; returns its processes."""
        before = self.processes()
        run_ray("start", "--address", self.address, "--num-cpus", "1", **self.token)
        return [pid for pid in self.processes() if pid not in before]


RAY = [sys.executable, "-m", "ray.scripts.scripts"]
HEAD = ["start", "--head", "--port", "0", "--include-dashboard", "false", "--disable-usage-stats", "--num-cpus"]


def run_ray(*arguments: str, **variables: str) -> str:
    done = forking.run([*RAY, *arguments], "ray", env=environment(**variables), timeout=120)
    return done.stdout + done.stderr


def address_in(output: str) -> str:
    """The address that `ray start` prints, or nothing."""
    match = re.search(r"--address='([^']+)'", output)
    return match[1] if match else ""


@contextlib.contextmanager
def shared_cluster(factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of all testing processes, which ends with them."""
    folder, token = shared_folder(factory) / "ray", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}

    def keeper(descriptor: int) -> list[str]:
        (folder / "token").write_text(json.dumps(token))
        return [sys.executable, "-m", "tests.shared", str(descriptor), *RAY, *HEAD, "2", "--block"]

    with join(folder, keeper, environment(**token, PYTHONUNBUFFERED="1")):
        address = until(lambda: address_in((folder / "log").read_text()), "address of the Ray cluster")
        yield Cluster(address, json.loads((folder / "token").read_text()))


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


def watched(log: Path, hold: str | Path = "") -> str:
    return f"watched[path=toy,hold={hold},log={log}]"


def computed(log: Path) -> list[str]:
    """The keys of the computed requests."""
    return [line.split()[0] for line in lines(log)]
