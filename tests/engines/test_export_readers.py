"""Exported runs in the packages that they are for: inspect_ai, and the validator and converters of Every Eval Ever."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mill.export.run import ExportedRun
from tests import forking
from tests.engines.prepared import environment
from tests.export.made_runs import ENVIRONMENT, evaluate, leaks, mill
from tests.export.odd import ESCAPED

EXAM = Path(__file__).parents[1] / "toy_exam.py"
READER = Path(__file__).with_name("read_exports.py")


@pytest.fixture(scope="module")
def python() -> str:
    return str(environment("readers") / "python")


@pytest.fixture(scope="module")
def run(python: str, tmp_path_factory: pytest.TempPathFactory) -> ExportedRun:
    return evaluate(tmp_path_factory.mktemp("odd") / "results", python=python)


@pytest.fixture(scope="module")
def folder(python: str, run: ExportedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of a run that was exported twice."""
    folder = tmp_path_factory.mktemp("inspect")
    for _ in range(2):
        done = mill("export", str(run.folder.path), "--to", "inspect", "--out", str(folder), python=python)
        assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def logs(python: str, folder: Path) -> dict[str, Any]:
    """What inspect_ai reads, by task."""
    command = [python, str(READER), str(folder)]
    done = forking.run(command, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    return {log["task"]: log for log in json.loads(done.stdout)}


def samples(log: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {sample["id"]: sample for sample in log["samples"]}


def roles(sample: dict[str, Any]) -> list[str]:
    return [message["role"] for message in sample["messages"]]


def test_inspect_reads_one_log_of_each_task(run: ExportedRun, folder: Path, logs: dict[str, Any]) -> None:
    assert set(logs) == set(run.tasks) and len(list(folder.glob("*.eval"))) == 5
    assert {log["status"] for log in logs.values()} == {"success"}
    assert {log["model"] for log in logs.values()} == {"odd/org/odd"}
    assert logs["odd_text"]["args"] == {"path": "org/odd", "api_key": "***"} and leaks(folder) == []


def test_inspect_reads_the_metrics_of_the_run(run: ExportedRun, logs: dict[str, Any]) -> None:
    for task, result in run.results.tasks.items():
        scores = {score["name"]: score for score in logs[task]["results"]["scores"]}
        assert set(scores) == set(result.metrics)
        for name, estimate in result.metrics.items():
            found = {key: metric["value"] for key, metric in scores[name]["metrics"].items()}
            expected = {"mean": estimate.value, "stderr": estimate.stderr, "low": estimate.low, "high": estimate.high}
            assert found == {key: value for key, value in expected.items() if value is not None}
            assert scores[name]["scored_samples"] == estimate.n
    results = logs["odd_text"]["results"]
    assert (results["total_samples"], results["completed_samples"], results["metadata"]["failed"]) == (4, 3, 1)
    assert logs["odd_text"]["usage"]["odd/org/odd"]["input_tokens"] == 21  # three answers of seven tokens


def test_inspect_reads_the_texts_of_the_run(logs: dict[str, Any]) -> None:
    found = samples(logs["odd_text"])
    assert set(found) == {"plain", "hostile", "fails", "long"} and logs["odd_text"]["summaries"] == 4
    assert found["hostile"]["completion"] == ESCAPED
    assert (found["plain"]["input"], found["plain"]["target"]) == ("plain", "plain answer")
    assert {name: score["value"] for name, score in found["plain"]["scores"].items()} == {
        "exact_match": 1.0,
        "speed": math.inf,
    }
    assert found["fails"]["error"]["message"] == "the server said \x1b[2J no" and found["fails"]["scores"] is None
    assert found["long"]["stop_reason"] == "max_tokens"
    (answer,) = found["long"]["messages"][1:]
    assert [part["type"] for part in answer["content"]] == ["reasoning", "text"]
    assert answer["content"][0]["reasoning"] == "first I think"
    choice = samples(logs["odd:choice,x"])["plain"]
    assert (choice["choices"], choice["completion"]) == (["yes", "no", "maybe"], "yes")
    assert choice["metadata"]["logprobs"][:2] == [-1.5, -2.25]


def test_inspect_reads_dialogs_and_tools(logs: dict[str, Any]) -> None:
    dialog = samples(logs["odd_dialog"])["long"]
    assert roles(dialog) == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert [message.get("source") for message in dialog["messages"] if message["role"] == "assistant"] == [
        "input",
        "generate",
        "generate",
    ]
    assert dialog["messages"][4]["content"][0]["reasoning"] == "first I think"
    agent = samples(logs["odd_agent"])["plain"]
    assert roles(agent) == ["user", "assistant", "tool", "tool", "assistant"]
    good, broken = agent["messages"][1]["tool_calls"]
    assert (good["function"], good["arguments"]) == ("add", {"a": "1", "b": "2"})
    assert "no JSON object" in broken["parse_error"]
    assert [message["tool_call_id"] for message in agent["messages"][2:4]] == [good["id"], broken["id"]]
    assert (agent["messages"][2]["content"], agent["messages"][3]["error"]["type"]) == ("12", "parsing")


@pytest.mark.parametrize(("option", "limit"), [("--sample", None), ("--limit", 60)])
def test_inspect_reads_what_was_sampled(option: str, limit: int | None, python: str, tmp_path: Path) -> None:
    """A limit is the first rows: a random sample has none."""
    options = ["--task_paths", str(EXAM), "--output_dir", str(tmp_path / "run"), option, "60", "--quiet"]
    done = mill("eval", "exam[name=org/a,accuracy=0.65]", "toy_exam_art", *options, python=python)
    assert done.returncode == 0, done.stderr
    done = mill("export", str(tmp_path / "run"), "--to", "inspect", "--out", str(tmp_path / "inspect"), python=python)
    assert done.returncode == 0, done.stderr
    done = forking.run([python, str(READER), str(tmp_path / "inspect")], env=ENVIRONMENT)
    (log,) = json.loads(done.stdout)
    first = "first 60 of 300; first 60 rows, not a random sample (--sample draws one)"
    drawn = "random 60 of 300, seed 0; random sample (seed 0, stratified by 3 categories): "
    drawn += "the intervals are about the score of the whole test set"
    sampled = drawn if limit is None else first
    assert (log["limit"], log["metadata"]["mill"]["sampled"], len(log["samples"])) == (limit, sampled, 60)


@pytest.mark.parametrize("target", ["lm-eval", "inspect"])
def test_the_converters_of_every_eval_ever_read_exported_logs(target: str, python: str, tmp_path: Path) -> None:
    """A reader that neither mill nor the owner of the format wrote."""
    tasks = evaluate(tmp_path / "run", "odd_dialog,odd_document", python=python)
    manifest = tasks.folder.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"backend": "odd"', '"backend": "hf"'))  # one that they know
    done = mill("export", str(tasks.folder.path), "--to", target, "--out", str(tmp_path / "logs"), python=python)
    assert done.returncode == 0
    words = ["--source_organization_name=mill", "--evaluator_relationship=other", f"--output_dir={tmp_path / 'data'}"]
    if target == "lm-eval":
        (file,) = (tmp_path / "logs").rglob("results_*.json")
        words = ["convert", "lm_eval", "--log_path", str(file), "--include_samples", "--eval_library_version", "0", *words]
    else:
        words = ["convert", "inspect", "--log_path", str(tmp_path / "logs"), *words]
    done = forking.run([python, "-m", "every_eval_ever", *words], env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    scores = [
        result["score_details"]["score"]
        for file in (tmp_path / "data").rglob("*[0-9a-f].json")
        for result in json.loads(file.read_text())["evaluation_results"]
    ]
    assert {0.5, tasks.results.tasks["odd_document"].metrics["word_perplexity"].value} <= set(scores)
