"""Logs that inspect_ai writes here, as runs of mill. The questions and answers are those of make_inspect_logs.py."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mill.api.tools import ToolCall, ToolResult
from mill.store.schema import TaskResult
from tests import forking
from tests.engines.prepared import environment
from tests.export.made_runs import ENVIRONMENT
from tests.shared import made_once
from tests.view.conversion import Converted, read_converted

LONG = "A long document. " * 20
MAKER = Path(__file__).with_name("make_inspect_logs.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        done = forking.run([str(environment("readers") / "python"), str(MAKER), str(folder)], env=ENVIRONMENT, cwd=folder)
        assert done.returncode == 0, done.stderr[-2000:]
        (folder / "stderr").write_text(done.stderr)
        (folder / "refused").write_text(done.stdout.splitlines()[-1])

    return made_once(tmp_path_factory, "inspect-logs", make)


def log(folder: Path, name: str) -> Converted:
    return read_converted(folder / "runs" / name / "default")


def columns(result: TaskResult, metric: str) -> list[Any]:
    """Value, standard error, interval and n."""
    return list(asdict(result.metrics[metric]).values())


def test_metrics_are_those_of_inspect_ai(folder: Path) -> None:
    """match is right in one epoch of the first and in one of the second sample: a mean of 1/3, and of 2/3 at best."""
    result = log(folder, "epochs").results.tasks["sums"]
    assert columns(result, "match") == pytest.approx([1 / 3, 1 / 6, 0.0, 1.0, 3])  # Student's, within 0 and 1
    assert columns(result, "match@max") == pytest.approx([2 / 3, 1 / 3, 0.0942993, 0.9915962, 3])  # Clopper-Pearson
    assert columns(result, "style/length") == [pytest.approx(58 / 6), None, None, None, 3]  # 15, 15, 0 and 10, 8, 10
    assert result.metrics["style/length/std"].value == pytest.approx(4.0722639)
    assert result.metrics["style/polite"].value == pytest.approx(1 / 6)
    assert result.metrics["grade"].value == 0.25
    assert (result.n, result.total, result.errors, result.version) == (3, 3, 0, 3)
    assert (result.flags["token_limit"].n, result.flags["filtered"].n) == (1, 1)


def test_epochs_are_repeats(folder: Path) -> None:
    run = log(folder, "epochs")
    rows, samples = run.rows("sums"), run.samples("sums")
    assert list(rows) == ["first", "second", "third"]
    first, second, third = rows.values()
    texts = [[response.text for response in repeat] for repeat in samples["first"].responses]
    assert texts == [["The answer is 2"], ["half of it"]]
    assert first["values"]["match"] == [1.0, 0.0]
    assert first["values"]["grade"] == [1.0, 0.5]  # "C" and "P"
    assert second["values"]["match"] == [0.0, 1.0]
    assert third["values"]["grade"] == [0.0, None]  # "N", and what was not scored
    assert third["values"]["style/length"] == [0.0, 10.0]
    assert (first["match"], first["target"], second["target"]) == (0.5, "2", '["4", "four"]')
    assert (first["extracted"], first["extracted_repeats"]) == ("2", ["2", ""])  # what match read
    assert third["details"][1]["grade reason"] == "grader_failed"
    assert third["details"][0]["style metadata"] == {"words": 0}
    assert first["doc"] == {"input": "What is 1 + 1?", "target": "2", "metadata": {"level": "easy"}}


def test_reasoning_tokens_and_finish_reasons(folder: Path) -> None:
    rows = log(folder, "epochs").rows("sums")
    first, third = rows["first"], rows["third"]
    assert (first["reasoning"], first["response"], first["finish_reason"]) == ("one and one", "The answer is 2", "stop")
    assert (first["prompt_tokens"], first["output_tokens"], first["reasoning_tokens"]) == (12, 9, 4)
    assert (third["response"], third["finish_reason"]) == ("", "length") and "truncated_reasoning" in third["flags"]
    question = {"role": "user", "content": f"{LONG} What is 3 + 3?"}
    assert json.loads(third["prompt"]) == [{"role": "system", "content": "Be brief."}, question]


def test_the_manifest_has_model_settings_and_session(folder: Path) -> None:
    manifest = log(folder, "epochs").manifest
    assert (manifest["model"]["name"], manifest["model"]["backend"]) == ("model", "mockllm")
    assert manifest["model"]["arguments"]["token"] == "***"
    assert manifest["settings"]["gen_kwargs"] == {"max_tokens": 16, "temperature": 0.5}
    assert (manifest["settings"]["repeats"], manifest["settings"]["solvers"]) == (2, ["system_message", "generate"])
    assert manifest["source"] == {"tool": "inspect_ai", "path": str(folder / "epochs.eval")}
    (session,) = manifest["sessions"]
    assert (session["prompt_tokens"], session["output_tokens"], session["reasoning_tokens"]) == (140, 49, 20)
    assert (session["ended"], session["requested"], session["started"][-1]) == ("finished", 6, "Z")
    assert manifest["tasks"]["sums"]["n"] == 3


def test_tool_calls_have_their_results(folder: Path) -> None:
    run = log(folder, "tools")
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


def test_a_log_without_events_has_the_tokens_of_the_last_response(folder: Path) -> None:
    row = log(folder, "silent").rows("tools")["1"]
    call, answer = row["responses"][0]
    assert (answer["output_tokens"], answer["finish_reason"], "output_tokens" in call) == (8, "stop", False)
    assert (row["keys"], row.get("tools")) == ([["1/1/0", "1/1/1"]], None)


def test_an_image_in_an_attachment(folder: Path) -> None:
    row = log(folder, "image").rows("colours")["red"]
    *_, last = row["messages"][0]
    assert last["content"][0] == {"type": "text", "text": "And this?"}
    assert last["content"][1]["image"].startswith("data:image/png;base64,iVBOR")
    assert '{"type": "image", "image": "<image>"}' in row["prompt"]
    assert [message["role"] for message in row["messages"][0]] == ["system", "user", "assistant", "user"]
    assert (row["response"], row["includes"]) == ("It is red.", 1.0)


def test_multiple_choice(folder: Path) -> None:
    run = log(folder, "choices")
    first, second = run.rows("choices").values()
    assert (first["choices"], first["chosen"], first["correct"]) == (["chair", "apple", "stone"], "apple", True)
    assert (second["chosen"], second["correct"], second["target"], second["extracted"]) == ("water", False, "A", "B")
    assert run.results.tasks["choices"].metrics["choice"].value == 0.5


def test_a_sample_with_an_error(folder: Path) -> None:
    run = log(folder, "errors")
    result, row = run.results.tasks["errors"], run.rows("errors")["2"]
    assert (result.n, result.errors, result.metrics["includes"].n) == (3, 1, 2)
    (failure,) = result.failures
    assert failure == {"id": "2", "error": "RuntimeError('the sandbox is gone <script>alert(1)</script>')"}
    assert (row["error"], row["response"], row["status"]) == (failure["error"], "1", "failed")


@pytest.mark.parametrize(
    ("name", "ended", "samples", "warning"),
    [
        ("failed", "failed", 3, "the evaluation failed: RuntimeError('the sandbox is gone"),
        ("started", "unfinished", 3, "the evaluation has not ended"),
    ],
)
def test_an_evaluation_that_did_not_succeed(folder: Path, name: str, ended: str, samples: int, warning: str) -> None:
    run = log(folder, name)
    assert run.manifest["sessions"][0]["ended"] == ended
    assert len(run.samples("errors")) == samples
    assert run.results.tasks["errors"].warnings[0].startswith(warning)
    assert run.results.tasks["errors"].total == 3


def test_a_log_without_samples_says_so(folder: Path) -> None:
    assert log(folder, "header").results.tasks["errors"].warnings[-1] == "its samples are not in the log"


def test_damaged_logs_are_one_line_each(folder: Path) -> None:
    refused = json.loads((folder / "refused").read_text())
    assert set(refused) == {"cut.eval", "empty.eval", "other.eval", "cut.json"}
    assert refused["cut.eval"] == f"{folder / 'cut.eval'} cannot be read by inspect_ai: ValueError: EOCD not found"
    assert all("cannot be read by inspect_ai: " in line and "\n" not in line for line in refused.values())
    assert "Traceback" not in (folder / "stderr").read_text()


def test_a_damaged_sample_is_counted(folder: Path) -> None:
    run = log(folder, "damaged")
    (warning,) = run.results.tasks["sums"].warnings
    assert warning.startswith("1 samples cannot be read, the first: sample second: ") and "\n" not in warning
    assert list(run.rows("sums")) == ["first", "third"]
    assert run.results.tasks["sums"].metrics["match"].value == pytest.approx(1 / 3), "scores are those of the log"
