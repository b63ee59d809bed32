"""A repeated command takes the scores that its folder has, and only where nothing changed that they were computed from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mill.api.registry import metrics
from mill.cli.main import run
from mill.metrics.aggregate import mean
from mill.runs import scored_from
from tests import toy  # noqa: F401  registers the model

ROWS = [{"goal": f"goal {i}", "sol1": f"one {i}", "sol2": f"two {i}", "label": i % 2} for i in range(20)]


class Runs:
    """Commands over one folder. `written` is whether the last one wrote the samples again."""

    def __init__(self, folder: Path) -> None:
        self.data, self.out = folder / "data/piqa", folder / "out"
        self.data.mkdir(parents=True)
        self.write_data(ROWS)
        self.written = False

    def write_data(self, rows: list[dict[str, object]]) -> None:
        for split in ("train", "validation"):
            (self.data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def __call__(self, *options: str, task: str = "piqa", expected: int = 0) -> float:
        """Run the command; the accuracy that results.json has then."""
        before = self._inode(task)
        assert run(["eval", "toy[path=toy]", task, "--output_dir", str(self.out), "--quiet", *options]) == expected
        self.written = self._inode(task) != before
        results = json.loads(self.file("results.json").read_text())
        return float(results["tasks"][task]["metrics"]["acc"]["value"])

    def file(self, name: str) -> Path:
        (found,) = self.out.glob(f"*/default/{name}")
        return found

    def _inode(self, task: str) -> int:
        found = list(self.out.glob(f"*/default/samples/{task}.jsonl"))
        return found[0].stat().st_ino if found else 0


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(scored_from, "imported_files", tuple)  # other tests import files
    return Runs(tmp_path)


def edit(file: Path, old: str, new: str) -> None:
    """A change that leaves the size and the time of modification as they were."""
    before, text = file.stat(), file.read_text()
    assert old in text and len(old) == len(new)
    file.write_text(text.replace(old, new))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_repeated_command_takes_the_scores(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy, first = runs(), capsys.readouterr().out
    assert runs() == accuracy and not runs.written
    table = first.splitlines()[:-2]
    again = capsys.readouterr().out.splitlines()
    assert again[: len(table)] == table
    assert again[-2].startswith("0 requests computed") and again[-2].endswith("40 read from the record")
    sessions = json.loads(runs.file("manifest.json").read_text())["sessions"]
    assert [(one["requested"], one["known"]) for one in sessions] == [(40, 0), (40, 40)]


def test_other_gold_answers_score_again(runs: Runs) -> None:
    accuracy = runs()
    runs.write_data([{**row, "label": 1 - int(str(row["label"]))} for row in ROWS])
    assert runs() == pytest.approx(1 - accuracy)


def test_other_responses_score_again(runs: Runs) -> None:
    runs()
    (file,) = runs.file("record").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "response": {"score": -1.0}}) + "\n" for line in lines))
    assert runs() == 0.5  # all solutions are equally probable, and the first one counts


CHANGES: dict[str, Callable[[Runs], object]] = {
    "samples removed": lambda runs: runs.file("samples/piqa.jsonl").unlink(),
    "samples edited": lambda runs: edit(runs.file("samples/piqa.jsonl"), "goal 11", "goal 10"),
    "digests damaged": lambda runs: runs.file(scored_from.FILE).write_text("{"),
    "digests of other values": lambda runs: runs.file(scored_from.FILE).write_text('{"piqa": {"inputs": 1}}'),
    "digests removed": lambda runs: runs.file(scored_from.FILE).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_changed_are_written_again(runs: Runs, change: str) -> None:
    runs()
    samples = runs.file("samples/piqa.jsonl").read_text()
    CHANGES[change](runs)
    runs()
    assert runs.written
    assert runs.file("samples/piqa.jsonl").read_text() == samples


def test_results_that_were_edited_or_removed_are_written_again(runs: Runs) -> None:
    accuracy = runs()
    content = runs.file("results.json").read_text()
    runs.file("results.json").write_text(content.replace(str(accuracy), "0.125"))
    assert runs() == accuracy
    runs.file("results.json").unlink()
    assert runs() == accuracy


def test_other_code_scores_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs()
    monkeypatch.setattr(scored_from, "_code_state", lambda: "another version of mill")
    runs()
    assert runs.written
    runs()
    assert not runs.written


def test_a_record_that_is_a_link_is_followed(runs: Runs, tmp_path: Path) -> None:
    accuracy = runs()
    (record,) = runs.file("record").glob("*.jsonl")
    target = tmp_path / "stored.jsonl"
    record.rename(target)
    record.symlink_to(target)
    assert runs() == accuracy
    assert runs() == accuracy and not runs.written
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    for line in lines:
        line["response"]["score"] = -1.0 / (1 + int(line["key"][:6], 16))
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert runs() != accuracy and runs.written


def test_code_of_a_user_scores_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs()
    with monkeypatch.context() as changed:
        changed.setattr(metrics, "_entries", {**metrics.entries(), "mean": lambda values: mean(values)})
        runs()
        assert runs.written
    monkeypatch.setattr(scored_from, "imported_files", lambda: ("my_task.py",))
    runs()
    assert runs.written


def test_another_part_of_the_data_is_scored(runs: Runs) -> None:
    full = runs()
    assert runs("--limit", "5") == full  # a smaller run never replaces the full one
    assert not runs.written
    runs()
    assert not runs.written


def test_failed_samples_run_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "goal 3")
    runs(expected=1)
    runs(expected=1)
    assert runs.written
    monkeypatch.delenv("TOY_FAILS")
    runs()
    assert runs.written
    runs()
    assert not runs.written


def test_the_state_of_the_code_has_every_module(tmp_path: Path) -> None:
    module = Path(scored_from.__file__)
    before = scored_from._code_state.__wrapped__()
    stat = module.stat()
    os.utime(module, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    try:
        assert scored_from._code_state.__wrapped__() != before
    finally:
        os.utime(module, ns=(stat.st_atime_ns, stat.st_mtime_ns))
