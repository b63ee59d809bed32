"""vLLM in this process with its own parsers for reasoning and tool calls, by the names that its server takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mill.store.folder import find_runs
from tests import forking
from tests.engines.conftest import InProcess
from tests.engines.prepared import ENVIRONMENT, ROOT

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


def read(python: str, folder: Path, *cases: tuple[str | None, str | None, str]) -> list[Any]:
    command = [python, str(ROOT / "tests/engines/read_with_parsers.py"), str(folder), json.dumps(cases)]
    done = forking.run(command, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


def test_texts_are_read_by_vllms_parsers(vllm_python: str, small: Path) -> None:
    found = read(vllm_python, small, *((reasoning, calls, text) for reasoning, calls, text, _ in CASES))
    assert found == [expected for *_, expected in CASES]


def test_parsers_that_do_not_exist_or_do_not_fit_are_refused(vllm_python: str, small: Path) -> None:
    unknown, misspelled, other = read(
        vllm_python, small, ("nosuch", None, ""), (None, "hermez", ""), (None, "llama3_json", "")
    )
    assert unknown.startswith("unknown reasoning parser of vLLM 'nosuch'; vLLM has ")
    assert misspelled.startswith("unknown tool call parser of vLLM 'hermez'; did you mean hermes?")
    assert other.startswith("tool_call_parser=llama3_json cannot read the answers of this model: ")


def test_an_agent_runs_with_parsers(vllm_in_process: InProcess) -> None:
    printed = vllm_in_process.printed("agent")
    (run,) = find_runs(vllm_in_process.folder / "agent")
    row = json.loads(run.samples_file("gsm8k_python").read_text())
    # The small model never ends its reasoning: by the rules of this parser there is no answer.
    assert "truncated_reasoning" in row["flags"] and row["reasoning"] and row["response"] == ""
    assert "inside its reasoning" in printed
