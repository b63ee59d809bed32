"""Ctrl-C before a command has begun: one line and the exit code of an interrupt."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import importlib.abc, os, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from mill.cli.{module} import main
main()
"""


def run(name: str, module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE.format(name=name, module=module), "ls", "models"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("imported", ["mill.cli.main", "click", "mill.cli.ls"])
def test_an_interrupt_during_imports_is_one_line(imported: str) -> None:
    done = run(imported, "start")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nmill: interrupted\n")


def test_without_the_entry_point_it_is_a_traceback() -> None:
    assert "Traceback" in run("click", "main").stderr
