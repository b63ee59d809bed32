"""Fixtures of the tests of workers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import run, toy
from tests.ray_cluster import TASKS, Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.kill()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert run(toy(folder, TASKS))[0] == 0
    return folder
