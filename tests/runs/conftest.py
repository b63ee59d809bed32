"""Fixtures for tests of runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mill.tasks.load import load_files
from tests.runs.faults import TOY, N, start


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of an uninterrupted run; the file `log` beside it lists the computed requests."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder / "out", folder / "log").wait() == 0
    return folder / "out"


@pytest.fixture
def toy_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Loads the toy model in this process, with the settings of `start`; returns the path of its log."""
    for name in [name for name in sys.modules if name.startswith("mill_file_toy")]:
        del sys.modules[name]
    load_files((str(TOY),))
    monkeypatch.setenv("TOY_N", str(N))
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    return tmp_path / "log"
