"""The index: what it finds, that it follows changes, and that nothing in a folder makes it fail."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from mill.view.index import ResultsIndex
from mill.view.overview import summed
from mill.view.queries import SampleFilter, files_of, list_samples, read_sample
from mill.view.run_info import RunInfo, run_labels
from mill.view.scan import scan
from tests.view.conftest import lines_of, uid_of_model

Copy = tuple[Path, ResultsIndex]


def status_counts(index: ResultsIndex, run: str, task: str = "") -> dict[str, int]:
    return summed(files_of(index, run, task).values())


@pytest.fixture
def copy(results: Path, tmp_path: Path) -> Iterator[Copy]:
    """A copy of the results that a test may change, and its index."""
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    index = ResultsIndex(folder, cache=tmp_path / "index")
    yield folder, index
    index.close()


def samples_file(results: Path, model: str, task: str) -> Path:
    (file,) = results.glob(f"{model}-*/default/samples/{task}.jsonl")
    return file


def test_all_runs_are_found_with_their_counts(index: ResultsIndex, results: Path) -> None:
    assert sorted(run.model for run in index.runs.values()) == ["one", "two"]
    counts = status_counts(index, uid_of_model(index, "two"))
    lines = [line for task in ("toy_gen", "toy_choice", "toy_text") for line in lines_of(results, "two", task)]
    assert counts["failed"] == sum(line["error"] is not None for line in lines) == 11
    assert counts["right"] == sum(line.get("exact_match", line.get("acc")) == 1.0 for line in lines)
    assert counts["graded"] == 40  # perplexities
    assert counts["damaged"] == counts["pending"] == 0


def test_a_second_sync_reads_nothing(results: Path, tmp_path: Path) -> None:
    first = ResultsIndex(results, cache=tmp_path)
    assert first.sync()
    assert not first.sync()
    first.close()
    second = ResultsIndex(results, cache=tmp_path)
    second.sync()
    assert second.state.bytes_total == 0  # all files are as the cached index knows them
    assert len(second.runs) == 2
    second.close()


def test_a_line_without_its_end_waits_for_it(copy: Copy) -> None:
    folder, index = copy
    index.sync()
    file, uid = samples_file(folder, "one", "toy_gen"), uid_of_model(index, "one")
    added = json.dumps({**lines_of(folder, "one", "toy_gen")[0], "id": "added"}) + "\n"
    for part, total in ((added[:40], 40), (added[40:], 41)):
        with file.open("a") as handle:
            handle.write(part)
        assert index.sync()
        assert list_samples(index, SampleFilter(uid, "toy_gen"))["total"] == total
        assert status_counts(index, uid, "toy_gen")["damaged"] == 0
    assert read_sample(index, uid, "toy_gen", "added")["id"] == "added"


@pytest.mark.parametrize("kind", ["device", "folder", "link"])
def test_one_bad_samples_file_does_not_hide_the_others(copy: Copy, kind: str) -> None:
    folder, index = copy
    file = samples_file(folder, "one", "toy_gen")
    file.unlink()
    if kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero" if kind == "device" else samples_file(folder, "two", "toy_gen"))
    index.sync()
    assert status_counts(index, uid_of_model(index, "two"))["failed"] == 11
    assert status_counts(index, uid_of_model(index, "one"))["right"] > 0  # of its other tasks
    assert any("toy_gen.jsonl" in warning for warning in index.state.warnings)


def test_removed_runs_and_folders_are_forgotten(copy: Copy) -> None:
    folder, index = copy
    index.sync()
    shutil.rmtree(next(folder.glob("one-*")))
    assert index.sync()
    assert [run.model for run in index.runs.values()] == ["two"]
    shutil.rmtree(folder)
    assert index.sync()
    assert index.runs == {}
    assert index.database.connection().execute("SELECT count(*) FROM samples").fetchone()[0] == 0


def test_damaged_lines_and_second_lines_of_a_sample_are_counted(copy: Copy) -> None:
    folder, index = copy
    file, lines = samples_file(folder, "one", "toy_gen"), lines_of(folder, "one", "toy_gen")
    second = "".join(json.dumps({**line, "values": {"exact_match": [1.0]}, "means": {}}) + "\n" for line in lines[:5])
    file.write_text("not json\n[1, 2]\n{}\n" + '{"id": {"a": 1}}\n' + file.read_text() + "\0\n" + second)
    index.sync()
    uid = uid_of_model(index, "one")
    counts = status_counts(index, uid, "toy_gen")
    assert (counts["damaged"], counts["right"]) == (10, sum(line["exact_match"] == 1.0 for line in lines))
    assert list_samples(index, SampleFilter(uid, "toy_gen"))["total"] == 40


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"model": 1}', "\0" * 100, '{"model": {"name": "x"}, "tasks": {"a": 1}}']
)
def test_a_run_that_cannot_be_read_is_listed_with_the_reason(copy: Copy, content: str) -> None:
    folder, index = copy
    next(folder.glob("one-*/default/manifest.json")).write_text(content)
    index.sync()
    (broken,) = [run for run in index.runs.values() if run.error]
    assert broken.path.parent.name.startswith("one-")
    assert len(index.runs) == 2


@pytest.mark.parametrize("damage", ["bytes", "version"])
def test_an_index_that_is_damaged_or_of_another_version_is_made_anew(results: Path, tmp_path: Path, damage: str) -> None:
    first = ResultsIndex(results, cache=tmp_path)
    first.sync()
    first.close()
    path = first.database.path
    if damage == "bytes":
        path.write_bytes(b"\xff" * path.stat().st_size)
    else:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA user_version = 99")
            connection.execute("DROP TABLE samples")
    second = ResultsIndex(results, cache=tmp_path)
    second.sync()
    assert list_samples(second, SampleFilter(uid_of_model(second, "one"), "toy_gen"))["total"] == 40
    second.close()


def test_a_read_only_folder_can_be_viewed(copy: Copy) -> None:
    folder, index = copy
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        index.sync()
        assert len(index.runs) == 2
    finally:
        for path in [folder, *folder.rglob("*")]:
            os.chmod(path, path.stat().st_mode | 0o700)  # noqa: PTH101
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before  # nothing was written there


def test_labels_of_runs_are_different() -> None:
    """Models of two organisations with the same name, and two folders with runs of the same model and settings."""
    names = {"a/x/default": "org1/name", "a/y/default": "org2/name", "b/x/default": "org1/name", "c/default": "org3/other"}
    runs = [
        RunInfo(path, path, Path(path), (), manifest={"model": {"name": name}, "settings": {}})
        for path, name in names.items()
    ]
    assert run_labels(runs) == {
        "a/x/default": "org1/name (a/x/default)",
        "a/y/default": "org2/name",
        "b/x/default": "org1/name (b/x/default)",
        "c/default": "other",
    }


def test_exported_runs_count_where_there_is_no_run(tmp_path: Path) -> None:
    """Beside their runs they would be copies."""
    for folder in ("logs/copy", "model/run"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "manifest.json").write_text("{}")
    (tmp_path / "logs/.mill-export").touch()
    assert scan(tmp_path).runs == [tmp_path / "model/run"]
    (tmp_path / "model/run/manifest.json").unlink()
    assert scan(tmp_path).runs == [tmp_path / "logs/copy"]
