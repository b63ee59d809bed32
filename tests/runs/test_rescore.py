"""`mill score` on runs that are no longer whole: what is there is scored, and nothing is written over by less."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run as mill
from tests.outcomes import samples, scores
from tests.runs.faults import TASKS, TOY, N, arguments


@pytest.fixture
def run(toy_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    assert mill(arguments(tmp_path / "out", TASKS, "--quiet")) == 0
    (found,) = (tmp_path / "out").glob("*/*")
    capsys.readouterr()
    return found


def score(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = mill(["score", str(run), "--task_paths", str(TOY)])
    return code, "".join(capsys.readouterr())


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def test_a_run_whose_record_is_gone_keeps_its_answers_and_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, scored = samples(run.parents[1]), scores(run.parents[1])
    shutil.rmtree(run / "record")
    code, output = score(run, capsys)
    assert code == 0 and f"the record lacks responses of {N} of {N} samples of toy_gen" in output
    assert samples(run.parents[1]) == before and scores(run.parents[1]) == scored


def test_a_record_that_lacks_some_answers_is_filled_from_the_samples(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a question with three choices one answer is gone; of a dialog the second round."""
    before, scored = samples(run.parents[1]), scores(run.parents[1])
    gone = {
        lines(run / "samples/toy_choice.jsonl")[0]["keys"][0][0],
        lines(run / "samples/toy_dialog.jsonl")[0]["keys"][0][1],
    }
    (file,) = (run / "record").iterdir()
    kept = [line for line in file.read_bytes().splitlines(keepends=True) if json.loads(line)["key"] not in gone]
    file.write_bytes(b"".join(kept))
    code, output = score(run, capsys)
    assert code == 0 and "of 1 of" in output
    assert samples(run.parents[1]) == before and scores(run.parents[1]) == scored


def test_answers_that_the_record_has_are_taken_from_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A samples file that an interrupted run left has none."""
    before = samples(run.parents[1])
    file = run / "samples/toy_gen.jsonl"
    file.write_text("".join(json.dumps({**line, "responses": [[]], "values": {}}) + "\n" for line in lines(file)))
    assert score(run, capsys)[0] == 0
    assert samples(run.parents[1]) == before


def test_an_incomplete_list_of_answers_is_not_taken_for_the_first_ones(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which of three choices is missing cannot be seen: the sample has no answer, rather than another's."""
    shutil.rmtree(run / "record")
    file = run / "samples/toy_choice.jsonl"
    first, *others = lines(file)
    first["responses"] = [first["responses"][0][1:]]
    file.write_text("".join(json.dumps(line) + "\n" for line in [first, *others]))
    code, _ = score(run, capsys)
    assert code == 1
    again = lines(file)[0]
    assert (again["error"], again["status"]) == (None, "pending") and again["responses"] == first["responses"]


def test_two_lines_of_one_sample_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "samples/toy_gen.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines(keepends=True)[4])
    code, output = score(run, capsys)
    assert code == 2 and f"toy_gen.jsonl, line {N + 1}, is a second line of sample 4" in output
    assert file.read_bytes() != whole, "nothing was written"


@pytest.mark.parametrize("change", [lambda lines: lines[:-1], lambda lines: []])
def test_a_samples_file_that_lost_lines_is_refused(run: Path, capsys: pytest.CaptureFixture[str], change: Any) -> None:
    file, scored = run / "samples/toy_gen.jsonl", scores(run.parents[1])
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
    code, output = score(run, capsys)
    assert code == 2 and f"manifest.json says {N}" in output and "mill eval" in output
    assert scores(run.parents[1]) == scored
