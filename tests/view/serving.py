"""Starts `mill view` as a command and ends it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.launching import MILL, environment

ADDRESS = re.compile(r"(http://[^/\s]+/)\?token=([\w-]+)")


@dataclass(frozen=True)
class Served:
    """A running server: `root` is its address without the token."""

    process: subprocess.Popen[str]
    root: str
    token: str

    @property
    def address(self) -> str:
        return f"{self.root}?token={self.token}"


@contextmanager
def serving(folder: Path, cache: Path, *options: str) -> Iterator[Served]:
    command = [sys.executable, *MILL, "view", str(folder), "--no_browser", *options]
    env = environment(MILL_CACHE=str(cache), PYTHONFAULTHANDLER="1")
    log = cache / "stderr.txt"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            found = ADDRESS.search(process.stdout.readline())
            assert found is not None, log.read_text()
            yield Served(process, found[1], found[2])
            assert process.poll() is None, f"ended with {process.poll()}: {log.read_text()}"
        finally:
            process.terminate()
    assert "Traceback" not in log.read_text(), log.read_text()
