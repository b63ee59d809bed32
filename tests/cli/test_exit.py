"""A process that has imported torch ends early, and still does what a process does at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import atexit, sys, threading, types
from pathlib import Path
folder = Path(sys.argv.pop(1))
class Torn(types.ModuleType):
    def __del__(self):
        (folder / "torn").touch()  # when the interpreter frees its modules
sys.modules["torch"] = Torn("torch")
def late():
    threading.main_thread().join()
    (folder / "thread").touch()
threading.Thread(target=late).start()
atexit.register(lambda: (folder / "atexit").touch())
from mill.cli.main import main
main()
"""


def run(folder: Path, *words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, str(folder), *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["eval"], 2), (["show", "nowhere"], 2)])
def test_threads_and_exit_functions_run_and_the_code_stays(tmp_path: Path, words: list[str], code: int) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == code
    assert bool(done.stdout) is (code == 0) and bool(done.stderr) is (code != 0)
    assert {file.name for file in tmp_path.iterdir()} == {"thread", "atexit"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written_is_still_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(tmp_path, "ls", "tasks", stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["mill: cannot write to standard output: No space left on device"]
