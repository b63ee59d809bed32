"""`--sandbox none`: nothing that a program started or wrote is left behind, whether it ends, fails or times out."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mill.api.consent import Consent, consenting
from mill.sandbox.programs import chosen_sandbox, run_program
from mill.tasks.agent import bash_tool
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

NAME = f"mill-left-{os.getpid()}"
# Processes with a session of their own. The program continues when they have their name: each closes the pipe as it gets it.
DAEMON = f"""
import os
end, pipe = os.pipe()
if os.fork() == 0:
    os.setsid()
    for _ in range(3):
        os.fork()
    os.execv("/usr/bin/sleep", ["{NAME}", "600"])
os.close(pipe)
os.read(end, 1)
"""


@pytest.fixture(autouse=True)
def unisolated() -> Iterator[None]:
    with consenting(Consent(sandbox="none")):
        yield


def left() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_text(errors="replace").startswith(NAME):
                found.append(file.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("ending", "outcome"), [("", "passed"), ("raise ValueError", "failed"), ("while True: pass", "timed out")]
)
def test_no_process_is_left(ending: str, outcome: str) -> None:
    assert run_program(chosen_sandbox(), DAEMON + ending, timeout=2).outcome == outcome
    until(lambda: not left(), lambda: f"end of {left()}")


def test_no_process_of_a_bash_call_is_left() -> None:
    start = f"(setsid bash -c 'exec -a {NAME} sleep 600' >/dev/null 2>&1 &)"
    wait = f"until grep -qs ^{NAME} /proc/[0-9]*/cmdline; do :; done"
    assert bash_tool(timeout=60).function(command=f"{start}; {wait}; echo started") == "started\n"
    until(lambda: not left(), lambda: f"end of {left()}")


def test_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests use the common one at the same time
    program = "import os\nos.mkdir('a')\nopen('a/b', 'w').close()\nos.chmod('a', 0)\nos.chmod('.', 0)\n"
    assert run_program(chosen_sandbox(), program + "while True: pass", timeout=1).outcome == "timed out"
    assert run_program(chosen_sandbox(), program, timeout=60).passed
    assert list(tmp_path.iterdir()) == []
