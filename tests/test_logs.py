"""What processes wrote is beside the failure of a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.logs import LINES, Logs


def test_the_last_lines_of_processes_and_of_their_files_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs()
    monkeypatch.setattr(subprocess.Popen, "communicate", lambda *given, **options: logs.communicate(*given, **options))
    (tmp_path / "server.err").write_text("out of memory\n")
    subprocess.run([sys.executable, "-c", "print(*range(100), sep='\\n')"], capture_output=True)
    output, *files = logs.sections(tmp_path)  # those of servers that all tests share may be among the files
    assert output[0].endswith("(exit code 0)") and output[1].splitlines() == [str(100 - LINES + row) for row in range(LINES)]
    assert (f"end of {tmp_path}/server.err", "out of memory") in files
