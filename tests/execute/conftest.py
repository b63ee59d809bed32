"""Runs in one process, with which those of workers and ranks are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import run, toy
from tests.shared import made_once
from tests.toy import TASKS


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder; the file `log` beside it lists the computed requests."""

    def make(folder: Path) -> None:
        code, stderr = run(toy(folder / "out", TASKS), TOY_LOG=str(folder / "log"))
        assert code == 0, stderr

    return made_once(tmp_path_factory, "alone", make) / "out"
