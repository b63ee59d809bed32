"""vLLM in this process with its own parsers for reasoning and tool calls, by the names that its server takes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mill.runs.folder import find_runs
from tests.engines.prepared import ENVIRONMENT, ROOT, engine, with_thinking_tokens

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CASES: list[tuple[str | None, str | None, str, Any]] = [
    ("deepseek_r1", None, "a END b</think>c END d", ["a END b", "c ", []]),  # stop strings are for the answer alone
    ("deepseek_r1", None, "no end", ["no end", "", []]),
    ("deepseek_r1", None, f"plan</think>{CALL}", ["plan", "", [["add", {"a": 1}]]]),  # calls by mill
    ("deepseek_r1", "hermes", f"plan</think>{CALL}", ["plan", "", [["add", {"a": 1}]]]),
    (None, "hermes", f"<think>x</think>{CALL}", ["x", "", [["add", {"a": 1}]]]),  # reasoning by mill
    (None, "pythonic", "[add(a=1), add(a=2)]", [None, "", [["add", {"a": 1}], ["add", {"a": 2}]]]),
    (None, "hermes", "no call", [None, "no call", []]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine("vllm")
    return with_thinking_tokens(tmp_path_factory.mktemp("model") / "smollm2")


def read(folder: Path, *cases: tuple[str | None, str | None, str]) -> list[Any]:
    command = [
        str(engine("vllm") / "python"),
        str(ROOT / "tests/engines/read_with_parsers.py"),
        str(folder),
        json.dumps(cases),
    ]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


def test_texts_are_read_by_vllms_parsers(folder: Path) -> None:
    found = read(folder, *((reasoning, calls, text) for reasoning, calls, text, _ in CASES))
    assert found == [expected for *_, expected in CASES]


def test_parsers_that_do_not_exist_or_do_not_fit_are_refused(folder: Path) -> None:
    unknown, misspelled, other = read(folder, ("nosuch", None, ""), (None, "hermez", ""), (None, "llama3_json", ""))
    assert unknown.startswith("unknown reasoning parser of vLLM 'nosuch'; vLLM has ")
    assert misspelled.startswith("unknown tool call parser of vLLM 'hermez'; did you mean hermes?")
    assert other.startswith("tool_call_parser=llama3_json cannot read the answers of this model: ")


def test_an_agent_runs_with_parsers(folder: Path, tmp_path: Path) -> None:
    spec = f"vllm[path={folder},dtype=float32,max_model_len=1024,enforce_eager=true"
    spec += ",reasoning_parser=deepseek_r1,tool_call_parser=hermes]"
    questions = tmp_path / "data/openai/gsm8k/main"
    questions.mkdir(parents=True)
    row = {"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}
    for split in ("train", "test"):
        (questions / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    options = ["--limit", "1", "--max_tokens", "16", "--max_rounds", "2", "--output_dir", str(tmp_path / "out")]
    command = [str(engine("vllm") / "python"), "-m", "mill", "eval", spec, "gsm8k_python", *options]
    done = subprocess.run(
        command, env={**ENVIRONMENT, "MILL_DATA": str(tmp_path / "data")}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    (run,) = find_runs(tmp_path / "out")
    row = json.loads(run.samples_file("gsm8k_python").read_text())
    # The small model never ends its reasoning: by the rules of this parser there is no answer.
    assert "truncated_reasoning" in row["flags"] and row["reasoning"] and row["response"] == ""
    assert "inside its reasoning" in done.stdout
