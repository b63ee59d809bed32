"""Command lines in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mill.cli.main import run

Mill = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mill(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mill:
    """Run a command line in a temporary folder; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*argv: str) -> tuple[int, str, str]:
        code = run(list(argv))
        return code, *capsys.readouterr()

    return call
