"""A samples file is written again where its content changes, and only there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mill.api.response import Response
from mill.api.task import Sample
from mill.runs.folder import RunFolder
from mill.runs.samples import SampleRecord, ScoredSample, read_samples
from mill.runs.written_samples import SamplesWriter


def scored(**changes: Any) -> ScoredSample:
    record = SampleRecord(
        Sample("a", {"question": "1 + 1?"}), "2", "1 + 1?", [], [["key"]], [[Response(text="2", seconds=0.5)]]
    )
    return replace(ScoredSample(record, {"acc": [1.0]}, None, extracted="2", aggregations={"acc": "mean"}), **changes)


def write(folder: RunFolder, one: ScoredSample, task: str = "sums") -> int:
    """The inode of the file: another one where it was written."""
    writer = SamplesWriter(folder, "model")
    writer.write(task, [one])
    writer.save()
    return folder.samples_file(task).stat().st_ino


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "model-1/default", tmp_path)


def test_the_same_samples_are_written_once(folder: RunFolder) -> None:
    assert write(folder, scored()) == write(folder, scored())
    assert [one.target for one in read_samples(folder.samples_file("sums"))] == ["2"]


CHANGES = {
    "a value": lambda one: replace(one, values={"acc": [0.0]}),
    "NaN": lambda one: replace(one, values={"acc": [math.nan]}),
    "no value": lambda one: replace(one, values={"acc": [None]}),
    "the target": lambda one: replace(one, record=replace(one.record, target="3")),
    "the row": lambda one: replace(one, record=replace(one.record, sample=Sample("a", {"question": "2 + 2?"}))),
    "the prompt": lambda one: replace(one, record=replace(one.record, sent="<s>1 + 1?")),
    "the time": lambda one: replace(one, record=replace(one.record, responses=[[Response(text="2", seconds=0.6)]])),
    "details": lambda one: replace(one, details=[{"why": "right"}]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_written(folder: RunFolder, change: str) -> None:
    first = write(folder, scored())
    changed = CHANGES[change](scored())
    second = write(folder, changed)
    assert second != first and write(folder, changed) == second
    assert write(folder, scored()) != second


def test_no_value_is_not_the_same_as_nan(folder: RunFolder) -> None:
    assert write(folder, CHANGES["NaN"](scored())) != write(folder, CHANGES["no value"](scored()))


FILES: dict[str, Callable[[Path], Any]] = {
    "edited": lambda file: os.utime(file, ns=(file.write_text("{}\n"), file.stat().st_mtime_ns)),
    "removed": Path.unlink,
    "a link": lambda file: file.symlink_to(file.rename(file.with_suffix(".old"))),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_not_as_it_was_written_is_written_again(folder: RunFolder, what: str) -> None:
    write(folder, scored())
    file = folder.samples_file("sums")
    FILES[what](file)
    write(folder, scored())
    assert not file.is_symlink() and [one.target for one in read_samples(file)] == ["2"]


@pytest.mark.parametrize("content", ["", "[]", '{"sums.jsonl": {"digest": 1}}', "\0"])
def test_a_damaged_list_of_files_costs_time_alone(folder: RunFolder, content: str) -> None:
    first = write(folder, scored())
    (folder.path / "samples/.written.json").write_text(content)
    second = write(folder, scored())
    assert second != first and write(folder, scored()) == second


def test_values_without_a_digest_are_written_each_time(folder: RunFolder) -> None:
    odd = scored(extracted=object())
    assert write(folder, odd) != write(folder, odd)


def test_each_task_has_its_own_file(folder: RunFolder) -> None:
    sums, other = write(folder, scored(), "sums"), write(folder, scored(), "other")
    assert (write(folder, scored(), "sums"), write(folder, scored(), "other")) == (sums, other)
