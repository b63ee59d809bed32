"""One run with all tasks of odd.py, which tests read and never change."""

from __future__ import annotations

import pytest

from mill.export.run import ExportedRun
from tests.export.made_runs import evaluate


@pytest.fixture(scope="session")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> ExportedRun:
    return evaluate(tmp_path_factory.mktemp("odd") / "results")
