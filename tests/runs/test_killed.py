"""`kill -9` at any moment of a run: nothing recorded is computed again, and the end is that of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOY = Path(__file__).parent.parent / "toy.py"
TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"
KILLS = 20


def start(folder: Path, log: Path, *, delay: float) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "mill",
        "eval",
        "toy[path=toy]",
        TASKS,
        "--task_paths",
        str(TOY),
        "--output_dir",
        str(folder),
    ]
    environment = {
        **os.environ,
        "TOY_N": "30",
        "TOY_LOG": str(log),
        "TOY_DELAY": str(delay),
        "PYTHONPATH": str(TOY.parent.parent),
    }
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def recorded(folder: Path) -> dict[str, dict]:
    """Whole lines of all record files, as anybody with a JSON reader sees them."""
    found = {}
    for file in folder.glob("*/*/record/*.jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            found[entry["key"]] = {name: value for name, value in entry["response"].items() if name != "seconds"}
    return found


def samples(folder: Path) -> dict[str, list[dict]]:
    found = {}
    for file in folder.glob("*/*/samples/*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["responses"] = [[{**answer, "seconds": 0} for answer in repeat] for repeat in row["responses"]]
        found[file.name] = rows
    return found


def scores(folder: Path) -> dict:
    return json.loads(next(folder.glob("*/*/results.json")).read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder / "out", folder / "log", delay=0.0).wait() == 0
    return folder / "out", len((folder / "log").read_text().splitlines())


def test_a_run_killed_twenty_times_ends_like_an_undisturbed_one(undisturbed: tuple[Path, int], tmp_path: Path) -> None:
    whole, computed = undisturbed
    folder, log = tmp_path / "out", tmp_path / "log"
    dice, kills, known_before = random.Random(5), 0, {}
    for _ in range(200):
        log.write_text("")
        process = start(folder, log, delay=0.02)
        began = time.monotonic()
        while process.poll() is None and not log.read_text() and time.monotonic() - began < 30:
            time.sleep(0.005)
        time.sleep(dice.uniform(0.0, 0.25) if kills < KILLS else 0)
        if kills < KILLS and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        code = process.wait()
        asked = set(log.read_text().split())
        assert not asked & set(known_before), "a recorded answer was computed again"
        known_before = recorded(folder)
        if code == 0:
            break
    assert kills == KILLS
    assert recorded(folder) == recorded(whole)
    assert len(recorded(folder)) == computed
    assert samples(folder) == samples(whole)
    assert scores(folder) == scores(whole)


def test_a_torn_last_line_is_computed_again_and_a_damaged_middle_is_told(
    undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    import shutil

    folder = Path(shutil.copytree(undisturbed[0], tmp_path / "out"))
    (file,) = folder.glob("*/*/record/*.jsonl")
    file.write_bytes(file.read_bytes()[:-9])
    log = tmp_path / "log"
    assert start(folder, log, delay=0.0).wait() == 0
    assert len(log.read_text().splitlines()) == 1
    assert recorded(folder) == recorded(undisturbed[0])
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], b'{"key": brok', *lines[2:]]))
    process = start(folder, log, delay=0.0)
    assert process.wait() == 2


def test_two_processes_on_one_folder_do_not_disturb_each_other(undisturbed: tuple[Path, int], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    both = [start(folder, tmp_path / f"log{i}", delay=0.002) for i in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert recorded(folder) == recorded(undisturbed[0])
    assert samples(folder) == samples(undisturbed[0])
    assert scores(folder) == scores(undisturbed[0])
    manifest = json.loads(next(folder.glob("*/*/manifest.json")).read_text())
    assert [session["ended"] for session in manifest["sessions"]] == ["finished", "finished"]


def test_a_terminated_run_says_so_and_goes_on(undisturbed: tuple[Path, int], tmp_path: Path) -> None:
    """SIGTERM is what a scheduler sends before it kills."""
    folder, log = tmp_path / "out", tmp_path / "log"
    log.write_text("")
    process = start(folder, log, delay=0.02)
    while process.poll() is None and not log.read_text():
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    manifest = json.loads(next(folder.glob("*/*/manifest.json")).read_text())
    assert [session["ended"] for session in manifest["sessions"]] == ["interrupted"]
    assert start(folder, log, delay=0.0).wait() == 0
    assert recorded(folder) == recorded(undisturbed[0])
    assert scores(folder) == scores(undisturbed[0])
