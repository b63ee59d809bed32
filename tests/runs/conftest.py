"""Fixtures for tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.tasks.load import load_files
from tests.runs.faults import PATIENCE_S, TOY, N, start, stderr_of
from tests.shared import made_once


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of an uninterrupted run; the file `log` beside it lists the computed requests."""

    def make(folder: Path) -> None:
        assert start(folder / "out", folder / "log").wait(PATIENCE_S) == 0, stderr_of(folder / "log")

    return made_once(tmp_path_factory, "undisturbed", make) / "out"


@pytest.fixture
def toy_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Loads the toy model in this process, with the settings of `start`; returns the path of its log."""
    load_files((str(TOY),))
    monkeypatch.setenv("TOY_N", str(N))
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    return tmp_path / "log"
