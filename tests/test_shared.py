"""What testing processes share is made once, and served for as long as one of them is there."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.shared import join, made_once
from tests.waiting import until


def test_a_folder_is_made_once_and_a_failed_one_again(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / f"file{len(made)}").touch()
        if len(made) == 1:
            raise ValueError

    name = f"made-{id(request)}"
    with pytest.raises(ValueError):
        made_once(tmp_path_factory, name, make)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: made_once(tmp_path_factory, name, make), range(4)))
    assert folders == set(made) and len(made) == 2
    assert [file.name for file in made[0].iterdir()] == ["file2"]


PROGRAM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("ended", flush=True)))
print("started", flush=True)
signal.pause()
"""


def test_a_program_is_started_once_and_ends_with_its_last_user(tmp_path: Path) -> None:
    def keeper(descriptor: int) -> list[str]:
        return [sys.executable, "-m", "tests.shared", str(descriptor), sys.executable, "-c", PROGRAM]

    log = tmp_path / "program/log"
    with join(tmp_path / "program", keeper, {}):
        join(tmp_path / "program", keeper, {}).close()
        until(lambda: log.read_text() == "started\n", "program")
        join(tmp_path / "program", keeper, {}).close()
    until(lambda: log.read_text() == "started\nended\n", log.read_text)
