"""Logs of lm-eval are found by name and first bytes; files that are damaged or hostile are one line, or are counted."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import RunError
from mill.view.scan import LM_EVAL, ToolLog, scan
from tests.view.conversion import Converted, converted

DATE = "2026-01-02T03-04-05.678901"
RESULTS: dict[str, Any] = {
    "results": {"sums": {"alias": "sums", "acc,none": 0.5, "acc_stderr,none": float("nan")}},
    "n-samples": {"sums": {"original": 2, "effective": 2}},
    "config": {"model": "hf", "model_args": {"pretrained": "a", "token": "secret"}},
}
LINE: dict[str, Any] = {
    "doc_id": 0,
    "doc": {"text": "What?"},
    "target": "2",
    "arguments": {"gen_args_0": {"arg_0": "What?", "arg_1": {"until": []}}},
    "resps": [["2"]],
    "filtered_resps": ["2"],
    "acc": 1.0,
}


def write_log(folder: Path, results: Any, *lines: Any) -> Path:
    file = folder / f"results_{DATE}.json"
    file.write_text(json.dumps(results))
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / f"samples_sums_{DATE}.jsonl").write_text(text)
    return file


def run_of(tmp_path: Path, *lines: Any) -> Converted:
    return converted(write_log(tmp_path, RESULTS, *lines), tmp_path / "run")


def test_logs_are_found_by_their_name_and_content(tmp_path: Path) -> None:
    (tmp_path / f"f_{DATE}.json").write_text('{\n "results": {"sums": {}}}')
    (tmp_path / f"g_{DATE}.json").write_text('{"tasks": {}}')
    (tmp_path / "results.json").write_text('{"results": {}}')
    assert [log.path.name for log in scan(tmp_path).logs] == [f"f_{DATE}.json"]
    assert scan(tmp_path / f"g_{DATE}.json").logs == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    log = write_log(outside, RESULTS, LINE)
    (inside / f"linked_{DATE}.json").symlink_to(log)
    (inside / "folder").symlink_to(outside)
    (inside / f"results_{DATE}.json").write_text(json.dumps(RESULTS))
    (inside / f"samples_sums_{DATE}.jsonl").symlink_to(outside / f"samples_sums_{DATE}.jsonl")
    (found,) = scan(inside).logs
    assert found.files == (inside / f"results_{DATE}.json",)


def test_the_smallest_log(tmp_path: Path) -> None:
    run = run_of(tmp_path, LINE)
    assert run.rows("sums")["0"]["acc"] == 1.0
    estimate = run.results.tasks["sums"].metrics["acc"]
    assert (estimate.value, estimate.stderr, estimate.low, estimate.n) == (0.5, None, None, 2)
    assert run.manifest["model"]["arguments"] == {"pretrained": "a", "token": "***"}


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"results": []}, "results: expected object, got array"),
        ({"results": {"a": 1}}, r"results\[\.\.\.\]: expected object, got int"),
        ({"results": {}, "n-samples": {"a": {"original": "x"}}}, "original: expected int, got str"),
        ([], "expected object, got array"),
    ],
)
def test_a_broken_results_file_is_one_line(results: Any, message: str, tmp_path: Path) -> None:
    file = write_log(tmp_path, results)
    with pytest.raises(RunError, match=f"results_{DATE}.json is not valid: .*{message}"):
        ToolLog(LM_EVAL, (file,)).convert(tmp_path / "run")


def test_files_that_vanish_or_are_cut(tmp_path: Path) -> None:
    results = write_log(tmp_path, RESULTS)
    missing = tmp_path / f"samples_other_{DATE}.jsonl"
    with pytest.raises(RunError, match=r"samples_other_.*: there is no such file"):
        ToolLog(LM_EVAL, (results, missing)).convert(tmp_path / "run")
    with pytest.raises(RunError, match=r"missing\.json: there is no such file"):
        ToolLog(LM_EVAL, (tmp_path / "missing.json",)).convert(tmp_path / "run")
    results.write_text(results.read_text()[:-20])
    with pytest.raises(RunError, match=r"results_.*\.json is not valid JSON"):
        ToolLog(LM_EVAL, (results,)).convert(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.jsonl"))
    assert not list((tmp_path / "run").rglob(".2*")), "a draft is left"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ([], "expected object, got array"),
        ({**LINE, "doc_id": None}, "doc_id: expected"),
        ({**LINE, "doc_id": 1, "resps": []}, "resps: a list of responses"),
        (LINE, "is a second line of its document"),
    ],
)
def test_a_broken_line_is_counted(line: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(tmp_path, LINE, line)
    (warning,) = run.results.tasks["sums"].warnings
    assert warning.startswith("1 samples cannot be read, the first: ")
    assert reason in warning
    assert f"sums: {warning}" in caplog.text
    assert list(run.samples("sums")) == ["0"]


def test_odd_lines(tmp_path: Path) -> None:
    """Texts and numbers that JSON does not have, and documents of other shapes."""
    message = ['[{"role": "user", "content": "What?"}]']
    run = run_of(
        tmp_path,
        {**LINE, "doc": "no object", "acc": float("nan"), "resps": [["\ud800"]]},
        {**LINE, "doc_id": 1, "acc": 10**400, "arguments": [["What?", {"until": []}]]},
        {**LINE, "doc_id": 2, "acc": {"a": 1, "b": [2]}},
        {**LINE, "doc_id": 4, "arguments": {"gen_args_0": {"arg_0": message, "arg_1": {}}}},
    )
    samples, rows = run.samples("sums"), run.rows("sums")
    assert list(samples) == ["0", "1", "2", "4"]
    assert samples["0"].responses[0][0].text == "\ud800"
    assert rows["0"]["values"]["acc"] == ["NaN"]
    assert rows["0"]["doc"] == {"doc": "no object"}
    assert rows["4"]["prompt"] == '[{"role": "user", "content": "What?"}]'
    assert run.results.tasks["sums"].warnings == []


def test_the_name_of_a_task_is_no_path(tmp_path: Path) -> None:
    results = {**RESULTS, "results": {"../../x": {"acc,none": 0.5}}, "configs": {"../../x": {}}}
    file = tmp_path / f"results_{DATE}.json"
    file.write_text(json.dumps(results))
    samples = tmp_path / f"samples_..\\..\\x_{DATE}.jsonl"
    samples.write_text(json.dumps(LINE) + "\n")
    run = converted(file, tmp_path / "deep" / "run")
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} - {
        file.name, samples.name,
    }  # fmt: skip
    assert files >= {"deep/run/manifest.json", "deep/run/results.json"}
    assert all(name.startswith("deep/run/") for name in files)
    assert set(run.results.tasks) == {"../../x", "..\\..\\x"}


def test_a_large_log_is_not_held_in_memory(tmp_path: Path) -> None:
    """Twenty lines of 2 MB take the memory of one document, which has two of them."""
    text = "word " * 400_000
    lines = [{**LINE, "doc_id": number % 10, "filter": "ab"[number // 10], "resps": [[text]]} for number in range(20)]
    file = write_log(tmp_path, RESULTS, *lines)
    tracemalloc.start()
    run = converted(file, tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 << 20
    assert [list(record.values) for record in run.samples("sums").values()] == [["acc,a", "acc,b"]] * 10
