"""Logs that inspect_ai wrote, as runs of mill. `logs/make_logs.py` has the questions and answers that are expected here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mill.api.tools import ToolCall, ToolResult
from mill.cli.main import run as main
from mill.store.schema import TaskResult
from tests.view.conversion import LOGS, converted

LONG = "A long document. " * 20


def columns(result: TaskResult, metric: str) -> list[Any]:
    """Value, standard error, interval and n."""
    return list(asdict(result.metrics[metric]).values())


def test_metrics_are_those_of_inspect_ai(tmp_path: Path) -> None:
    """match is right in one epoch of the first and in one of the second sample: a mean of 1/3, and of 2/3 at best."""
    run = converted(LOGS / "epochs.eval", tmp_path / "run")
    result = run.results.tasks["sums"]
    assert columns(result, "match") == pytest.approx([1 / 3, 1 / 6, 0.0, 1.0, 3])  # Student's, within 0 and 1
    assert columns(result, "match@max") == pytest.approx([2 / 3, 1 / 3, 0.0942993, 0.9915962, 3])  # Clopper-Pearson
    assert columns(result, "style/length") == [pytest.approx(58 / 6), None, None, None, 3]  # 15, 15, 0 and 10, 8, 10
    assert result.metrics["style/length/std"].value == pytest.approx(4.0722639)
    assert result.metrics["style/polite"].value == pytest.approx(1 / 6)
    assert result.metrics["grade"].value == 0.25
    assert (result.n, result.total, result.errors) == (3, 3, 0)
    assert {name: one.n for name, one in result.flags.items() if name != "truncated_reasoning"} == {
        "token_limit": 1,
        "filtered": 1,
    }
    assert result.version == 3


def test_epochs_are_repeats(tmp_path: Path) -> None:
    run = converted(LOGS / "epochs.eval", tmp_path / "run")
    rows, samples = run.rows("sums"), run.samples("sums")
    assert list(rows) == ["first", "second", "third"]
    first, second, third = rows.values()
    assert [[response.text for response in repeat] for repeat in samples["first"].responses] == [
        ["The answer is 2"],
        ["half of it"],
    ]
    assert first["values"]["match"] == [1.0, 0.0]
    assert first["values"]["grade"] == [1.0, 0.5]  # "C" and "P"
    assert second["values"]["match"] == [0.0, 1.0]
    assert third["values"]["grade"] == [0.0, None]  # "N", and what was not scored
    assert third["values"]["style/length"] == [0.0, 10.0]
    assert (first["match"], first["target"], second["target"]) == (0.5, "2", '["4", "four"]')
    assert (first["extracted"], first["extracted_repeats"]) == ("2", ["2", ""])  # what match read
    assert third["details"][1]["grade reason"] == "grader_failed"
    assert first["doc"] == {"input": "What is 1 + 1?", "target": "2", "metadata": {"level": "easy"}}


def test_reasoning_tokens_and_finish_reasons(tmp_path: Path) -> None:
    rows = converted(LOGS / "epochs.eval", tmp_path / "run").rows("sums")
    first, third = rows["first"], rows["third"]
    assert (first["reasoning"], first["response"], first["finish_reason"]) == ("one and one", "The answer is 2", "stop")
    assert (first["prompt_tokens"], first["output_tokens"], first["reasoning_tokens"]) == (12, 9, 4)
    assert 0 < first["seconds"] < 10
    assert (third["response"], third["finish_reason"]) == ("", "length") and "truncated_reasoning" in third["flags"]
    assert json.loads(third["prompt"]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"{LONG} What is 3 + 3?"},
    ]


def test_the_manifest_has_model_settings_and_session(tmp_path: Path) -> None:
    manifest = converted(LOGS / "epochs.eval", tmp_path / "run").manifest
    assert (manifest["model"]["name"], manifest["model"]["backend"]) == ("model", "mockllm")
    assert manifest["model"]["arguments"]["api_key"] == "***"
    assert manifest["settings"]["gen_kwargs"] == {"max_tokens": 16, "temperature": 0.5}
    assert (manifest["settings"]["repeats"], manifest["settings"]["solvers"]) == (2, ["system_message", "generate"])
    assert manifest["versions"] == {"inspect_ai": "0.3.285"}
    assert manifest["source"] == {"tool": "inspect_ai", "path": str(LOGS / "epochs.eval")}
    (session,) = manifest["sessions"]
    assert (session["prompt_tokens"], session["output_tokens"], session["reasoning_tokens"]) == (140, 49, 20)
    assert (session["ended"], session["requested"]) == ("finished", 6)
    assert session["started"].endswith("Z")
    assert manifest["tasks"]["sums"]["n"] == 3


def test_tool_calls_have_their_results(tmp_path: Path) -> None:
    run = converted(LOGS / "tools.eval", tmp_path / "run")
    samples, rows = run.samples("tools"), run.rows("tools")
    call, answer = samples["1"].responses[0]
    assert call.tool_calls == (ToolCall("add", {"x": 20, "y": 22}, id="call-0"),)
    assert call.tool_results == (ToolResult("add", f"{LONG}42", "ok", "call-0"),)
    assert (call.text, call.finish_reason, call.output_tokens) == ("Let me see.", "tool_calls", 10)
    assert (answer.text, answer.reasoning) == ("The result is 42", "it is added")
    (failed,) = samples["2"].responses[0][0].tool_results
    assert (failed.outcome, failed.output) == ("error", "negative numbers are not supported")
    assert [message["role"] for message in rows["1"]["messages"][0]] == ["user", "assistant", "tool"]
    assert rows["1"]["tools"][0]["function"]["name"] == "add"
    assert (rows["1"]["prompt_tokens"], rows["1"]["output_tokens"]) == (120, 18)  # of both rounds
    assert [rows[name]["includes"] for name in ("1", "2")] == [1.0, 0.0]


def test_an_image_in_an_attachment(tmp_path: Path) -> None:
    row = converted(LOGS / "image.json", tmp_path / "run").rows("colours")["red"]
    *_, last = row["messages"][0]
    assert last["content"][0] == {"type": "text", "text": "And this?"}
    assert last["content"][1]["image"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert '{"type": "image", "image": "<image>"}' in row["prompt"]
    assert [message["role"] for message in row["messages"][0]] == ["system", "user", "assistant", "user"]
    assert (row["response"], row["includes"]) == ("It is red.", 1.0)


def test_multiple_choice(tmp_path: Path) -> None:
    run = converted(LOGS / "choices.eval", tmp_path / "run")
    first, second = run.rows("choices").values()
    assert (first["choices"], first["chosen"], first["correct"]) == (["chair", "apple", "stone"], "apple", True)
    assert (second["chosen"], second["correct"], second["target"], second["extracted"]) == ("water", False, "A", "B")
    assert run.results.tasks["choices"].metrics["choice"].value == 0.5


def test_a_sample_with_an_error(tmp_path: Path) -> None:
    run = converted(LOGS / "errors.eval", tmp_path / "run")
    result, row = run.results.tasks["errors"], run.rows("errors")["2"]
    assert (result.n, result.errors, result.metrics["includes"].n) == (3, 1, 2)
    (failure,) = result.failures
    assert failure == {"id": "2", "error": "RuntimeError('the sandbox is gone <script>alert(1)</script>')"}
    assert (row["error"], row["response"]) == (failure["error"], "1")


@pytest.mark.parametrize(
    ("name", "ended", "samples", "warning"),
    [
        ("failed.eval", "failed", 3, "the evaluation failed: RuntimeError('the sandbox is gone"),
        ("cancelled.eval", "interrupted", 2, "the evaluation was cancelled"),
        ("interrupted.eval", "unfinished", 1, "the evaluation has not ended"),
    ],
)
def test_an_evaluation_that_did_not_succeed(name: str, ended: str, samples: int, warning: str, tmp_path: Path) -> None:
    run = converted(LOGS / name, tmp_path / "run")
    assert run.manifest["sessions"][0]["ended"] == ended
    assert len(run.samples("errors")) == samples
    assert run.results.tasks["errors"].warnings[0].startswith(warning)
    assert run.results.tasks["errors"].total == 3


def test_mill_shows_the_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converted(LOGS / "tools.eval", tmp_path / "model" / "default")
    assert main(["show", str(tmp_path / "model" / "default"), "tools", "2"]) == 0
    shown = capsys.readouterr().out
    assert '[call] add({"x": -1, "y": 1})' in shown
    assert "[tool add (error)]\nnegative numbers are not supported" in shown
    assert main(["collect", "--output_dir", str(tmp_path), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["task"], row["metric"], row["value"]) == ("model", "tools", "includes", 0.5)
