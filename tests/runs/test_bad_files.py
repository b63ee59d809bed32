"""Samples files and records with contents that no run writes: each is refused in one line with file and field, and where the
two disagree, the record counts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run as mill
from tests.outcomes import samples, scores
from tests.runs.faults import ROOT, arguments

AGENT = ROOT / "tests/toy_agent.py"
RESULT = {"name": "add", "output": "3", "outcome": "ok"}
FIRST = ("responses", 0, 0)


@pytest.mark.parametrize("spelled", ["NaN", '"NaN"'])
def test_a_nan_in_a_record_is_no_score(tmp_path: Path, capsys: pytest.CaptureFixture[str], spelled: str) -> None:
    assert mill(arguments(tmp_path, "toy_choice", "--quiet", "--limit", "4")) == 0
    (file,) = tmp_path.glob("*/*/record/*.jsonl")
    first, *others = file.read_text().splitlines(keepends=True)
    score = json.loads(first)["response"]["score"]
    file.write_text("".join([first.replace(f'"score": {score}', f'"score": {spelled}'), *others]))
    capsys.readouterr()
    assert mill(["score", str(file.parents[1]), "--task_paths", str(ROOT / "tests/toy.py")]) == 2
    assert f"{file} is damaged" in (message := capsys.readouterr().err) and "NaN" in message
    assert mill(arguments(tmp_path, "toy_choice", "--quiet", "--limit", "4")) == 1 and "NaN" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    for name in [name for name in sys.modules if name.startswith("mill_file_")]:  # to be loaded again
        del sys.modules[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_N", "6")
        assert mill(arguments(out, "toy_agent", "--quiet", model="toy-agent[path=toy]", file=AGENT)) == 0
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    shutil.copytree(whole, tmp_path / "out")
    (found,) = (tmp_path / "out").glob("*/*")
    capsys.readouterr()
    return found


def commands(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[int, str]]:
    """Exit code and standard error of the commands that read samples."""
    found = {}
    for name, words in {
        "list": ["show", str(run)],
        "show": ["show", str(run), "toy_agent", "0"],
        "score": ["score", str(run), "--task_paths", str(AGENT)],
    }.items():
        code = mill(words)
        found[name] = code, capsys.readouterr().err
    return found


def edit(file: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    change(lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def put(target: Any, path: tuple[str | int, ...], value: Any) -> None:
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("tools", 0, "function", "parameters"), 1, "tools[0].function.parameters: "),
        (("messages", 0, 0, "content"), [{"type": "text", "text": 3}], "messages[0][0].content[0].text: "),
        (("messages", 0, 0, "content"), [{"type": "program", "text": "x"}], "messages[0][0].content[0].type: "),
        (("keys",), [], "keys: "),
        ((*FIRST, "tool_calls", 0, "arguments"), {"a": 1}, "responses[0][0].tool_calls[0].arguments: "),
        ((*FIRST, "tool_results"), [{**RESULT, "outcome": "great"}], "responses[0][0].tool_results[0].outcome: "),
        ((*FIRST, "tool_results"), [{**RESULT, "output": 5}], "responses[0][0].tool_results[0].output: "),
        ((*FIRST, "tool_results"), [RESULT] * 5, "responses[0][0].tool_results: a result for each of the calls"),
        (("values", "exact_match"), 1.0, "values[...]: "),
        (("values", "exact_match"), [{"a": {"b": 1}}], "values[...][0][...]: "),
        (("values", "exact_match"), [float("nan")], "NaN is no number of JSON"),
        (("judgements",), [["a"], ["b"]], "judgements: a list for each repeat is needed"),
    ],
)
def test_a_samples_file_that_no_run_writes_is_refused(
    path: tuple[str | int, ...], value: Any, field: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "samples/toy_agent.jsonl"
    edit(file, lambda lines: put(lines[0], path, value))
    for name, (code, output) in commands(run, capsys).items():
        assert code == 2 and len(output.splitlines()) == 1, (name, code, output)
        assert output.startswith(f"mill: {file}, line 1, is not valid") and field in output, (name, output)


@pytest.mark.parametrize(
    ("field", "path", "value", "message"),
    [
        ("tool_results", ("tool_results", 0, "outcome"), "great", "tool_results[0].outcome: "),
        ("tool_results", ("tool_results", 0, "output"), 5, "tool_results[0].output: "),
        ("tool_results", ("tool_results",), [RESULT] * 5, "the record has 5 tool_results for the "),
        ("tool_calls", ("tool_calls", 0, "arguments"), 5, "tool_calls[0].arguments: "),
        ("tool_calls", ("error",), {"a": 1}, "error: "),
    ],
)
def test_a_record_that_no_run_writes_is_refused(
    field: str, path: tuple[str | int, ...], value: Any, message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = (run / "record").iterdir()
    before = samples(run.parents[1]), scores(run.parents[1])

    def change(lines: list[dict[str, Any]]) -> None:
        put(next(line for line in lines if line["response"].get(field))["response"], path, value)

    edit(file, change)
    code, output = commands(run, capsys)["score"]
    assert code == 2 and len(output.splitlines()) == 1 and message in output, output
    assert (samples(run.parents[1]), scores(run.parents[1])) == before


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*FIRST[:2], -1, "text"), "edited"),
        ((*FIRST[:2], -1, "reasoning"), "edited"),
        ((*FIRST, "tool_results", 0, "output"), "edited"),
    ],
)
def test_the_record_counts_where_the_samples_file_has_another_response(
    path: tuple[str | int, ...], value: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = samples(run.parents[1]), scores(run.parents[1])
    edit(run / "samples/toy_agent.jsonl", lambda lines: put(lines[0], path, value))
    assert commands(run, capsys)["score"][0] == 0
    assert (samples(run.parents[1]), scores(run.parents[1])) == before
