"""Full disks and killed drivers: reported in one line, and resumed to the end of an undisturbed run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mill.api.errors import RunError
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.cli.main import run as mill
from mill.store.record import Record
from tests.outcomes import assert_same_end, recorded
from tests.runs.faults import (
    PATIENCE_S,
    TASKS,
    TOY,
    arguments,
    computed,
    kill,
    leftovers,
    resume,
    start,
    stderr_of,
    until_first_response,
)

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Disk:
    """A small file system of its own, in memory."""

    path: Path

    @property
    def out(self) -> Path:
        return self.path / "out"

    def fill(self, pages: int = 0) -> None:
        """Leave room for so many pages."""
        filler = self.path / "filler"
        with filler.open("ab", buffering=0) as handle:
            try:
                while True:
                    handle.write(bytes(PAGE))
            except OSError:
                handle.truncate(max(0, filler.stat().st_size // PAGE - pages) * PAGE)

    def clear(self) -> None:
        (self.path / "filler").unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={256 * PAGE}", "tmpfs", str(place)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk, and not in every container")
    yield Disk(place)
    subprocess.run(["umount", "--lazy", place], check=True)


def assert_one_line(text: str, *parts: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith("mill")]
    assert len(lines) == 1 and all(part in lines[0] for part in parts), text
    assert "Traceback" not in text and "unexpected" not in text


def test_a_disk_that_is_full_at_every_possible_moment(
    undisturbed: Path, toy_here: Path, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    """One page more each time, so that each file of a run once is the one for which there is no room."""
    lacked, amounts = set(), set()
    for pages in range(200):
        disk.fill(pages)
        known = recorded(disk.out)
        toy_here.write_text("")
        code = mill(arguments(disk.out, TASKS, "--quiet"))
        disk.clear()
        assert not set(computed(toy_here)) & set(known), "a recorded answer was computed again"
        if code == 0:
            break
        text = capsys.readouterr().err
        assert_one_line(text, "cannot write", "No space left on device")
        lacked |= {place for place in ("sessions", "manifest.json", "samples") if place in text}
        amounts.add(len(recorded(disk.out)))
    assert lacked >= {"sessions", "samples"} and len(amounts) > 3, "the disk was not full in the middle of the work"
    assert_same_end(disk.out, undisturbed)
    assert not leftovers(disk.out)


def test_an_answer_for_a_part_of_which_there_is_room_is_reported_as_lost(disk: Disk) -> None:
    small, large = Request(GENERATE, "small"), Request(GENERATE, "large")
    record = Record(disk.out)
    record.put(small, Response(text="x"))
    disk.fill(pages=1)
    with pytest.raises(RunError, match=r"cannot write to .*No space left on device"):
        record.put(large, Response(text="x" * 3 * PAGE))
    record.close()
    again = Record(disk.out)
    assert again.get(small) == Response(text="x") and again.get(large) is None


def test_an_output_folder_that_is_read_only(undisturbed: Path, tmp_path: Path, disk: Disk) -> None:
    log, refused = tmp_path / "log", tmp_path / "refused"
    run = start(disk.out, log, env={"TOY_HOLD": "20"})
    until_first_response(run, log, answers=20)
    kill(run)
    disk.remount("ro")
    for out in (disk.out, disk.path / "new"):
        refused.with_name("refused.err").unlink(missing_ok=True)
        assert start(out, refused).wait(PATIENCE_S) == 2
        assert_one_line(stderr_of(refused), "cannot write to the output folder", str(out), "Read-only file system")
    assert not computed(refused)
    disk.remount("rw")
    resume(disk.out, log)
    assert_same_end(disk.out, undisturbed)


def test_a_run_killed_in_its_first_session_can_be_listed_and_scored(
    toy_here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tmp_path / "out", tmp_path / "log0"
    run = start(out, log, tasks="toy_gen", env={"TOY_HOLD": "9"})
    until_first_response(run, log, answers=9)
    kill(run)
    assert mill(["ls", "runs", "--output_dir", str(out)]) == 0
    assert "running or killed" in capsys.readouterr().out
    (folder,) = out.glob("*/*")
    assert mill(["score", str(folder), "--task_paths", str(TOY)]) == 1
    assert "not answered" in capsys.readouterr().out
