"""Code tasks: prompts, extraction, scores of runs, and on published data the verdicts about known programs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mill
from mill.api.consent import Consent, consenting
from mill.api.errors import SpecError
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.cli.main import run as main
from mill.sandbox.programs import Execution, chosen_sandbox, run_programs
from mill.tasks.code import CodeTask, extract_code
from mill.tasks.load import load_builtin, make_task

DATA = os.environ.get("MILL_DATA", "")  # before the fixture that hides it
published = pytest.mark.skipif(
    not any((Path(root) / "evalplus" / "mbppplus").exists() for root in DATA.split(os.pathsep) if root),
    reason="MILL_DATA has no evalplus/mbppplus",
)
isolated = pytest.mark.skipif(bool(chosen_sandbox().problem), reason="bubblewrap is not installed or does not work here")
CHAT = RenderSettings(apply_chat_template=True)

PROMPT = 'from typing import List\n\n\ndef half(x: int) -> List[int]:\n    """ Half of x, twice. """\n'
TEST = "def check(candidate):\n    assert candidate(4) == [2, 2]\n    assert candidate(3) == [1, 1]\n"
HUMANEVAL = [
    {
        "task_id": f"H/{n}",
        "prompt": PROMPT,
        "entry_point": "half",
        "canonical_solution": "    return [x // 2] * 2\n",
        "test": TEST,
    }
    for n in range(5)
]
ADD = {"text": "Add two numbers.", "code": "def add(a, b):\r\n  return a + b", "test_setup_code": "", "test_list": ["assert add(1, 2) == 3"] * 3}  # fmt: skip  # noqa: E501
MBPP: dict[str, list[dict[str, Any]]] = {
    "test": [{"task_id": n, **ADD} for n in (11, 12)],
    "prompt": [{"task_id": n, **ADD} for n in range(1, 11)],
}

ANSWERS = [  # of the five samples
    "    return [x // 2] * 2\n",
    "    return [x / 2] * 2\n",
    "    while True: pass\n",
    "    import os; os._exit(0)\n",
    "Sure:\n```python\ndef half(x: int) -> List[int]:\n    return [x // 2, x // 2]\n```\nThat is all.",
]
BACKEND = f"""
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model

@register_model("scripted")
class Scripted(MillModel):
    def __init__(self, path: str):
        self.batch_size = 8
        self.capabilities = ModelCapabilities(modalities={{"text"}}, max_context_length=4096, supports_logprobs=False)

    @property
    def model_name(self):
        return "scripted"

    def _generate_batch(self, batch, gen_kwargs):
        return [{ANSWERS!r}[int(request.context.split("#")[1])] for request in batch]
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made data of both benchmarks; the prompts of HumanEval have their index in a comment."""
    rows = [{**row, "prompt": f"#{number}#\n{row['prompt']}"} for number, row in enumerate(HUMANEVAL)]
    splits: dict[str, list[dict[str, Any]]] = {"openai/openai_humaneval/openai_humaneval/test": rows}
    splits |= {f"google-research-datasets/mbpp/full/{split}": docs for split, docs in MBPP.items()}
    for name, docs in splits.items():
        file = tmp_path / "data" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(CodeTask, "timeout", 2.0)
    (tmp_path / "backend.py").write_text(BACKEND)
    return tmp_path


def task_of(name: str) -> CodeTask:
    load_builtin()
    task = make_task(name)
    assert isinstance(task, CodeTask)
    return task


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("    return 1\n", "    return 1\n"),
        ("```python\ndef f(): pass\n```", "def f(): pass\n"),
        ("```python\ndef f(): return 1\n```\nBetter:\n```python\ndef f(): return 2\n```", "def f(): return 2\n"),
        ("```python\ndef f(): return 1\n```\nUse:\n```python\nprint(f())\n```", "def f(): return 1\n"),
        ("1. Code:\n   ```python\n   def f():\n       return 1\n   ```\n", "def f():\n    return 1\n"),
        ("```python\ndef f():\n    return 1", "def f():\n    return 1"),  # cut at the token limit
        ("```python\ndef ff(): pass\n```\n```python\nclass f: pass\n```", "class f: pass\n"),
        ("", ""),
    ],
)
def test_the_code_of_an_answer(text: str, code: str) -> None:
    assert extract_code(text, "f") == code


def test_prompts_are_continued_or_instructions(data: Path) -> None:
    humaneval, mbpp = task_of("humaneval"), task_of("mbpp")
    (plain,) = humaneval.requests(humaneval.samples()[0], RenderSettings())
    assert plain.context == f"#0#\n{PROMPT}"
    assert plain.options["until"] == ("\nclass", "\ndef", "\n#", "\nif", "\nprint") and plain.options["max_gen_toks"] == 1024
    (chat,) = humaneval.requests(humaneval.samples()[0], CHAT)
    assert chat.options["until"] == () and "one Python code block.\n\n```python\n#0#\nfrom typing" in chat.context[-1].text  # type: ignore[union-attr]
    question = (
        "You are an expert Python programmer, and here is your task: Add two numbers. Your code should pass these tests:\n\n"
        "assert add(1, 2) == 3\nassert add(1, 2) == 3\nassert add(1, 2) == 3\n[BEGIN]\n"
    )
    (plain,) = mbpp.requests(mbpp.samples()[0], RenderSettings())
    assert plain.context == f"{question}def add(a, b):\r\n  return a + b\n[DONE]\n\n" * 3 + question
    (turns,) = mbpp.requests(mbpp.samples()[0], RenderSettings(apply_chat_template=True, fewshot_as_multiturn=True))
    assert [message.role for message in turns.context] == ["user", "assistant"] * 3 + ["user"]  # type: ignore[union-attr]
    (one,) = mbpp.requests(mbpp.samples()[0], CHAT)
    assert one.context[0].text.count("```python\ndef add(a, b):\r\n  return a + b\n```") == 3  # type: ignore[union-attr]


def test_no_example_is_the_task_itself(data: Path) -> None:
    mbpp = task_of("mbpp")
    own = Sample("0", {**MBPP["test"][0], "task_id": 3})
    assert [shot["task_id"] for shot in mbpp.shots(own, RenderSettings())] == [2, 4, 5]
    assert [shot["task_id"] for shot in mbpp.shots(mbpp.samples()[0], RenderSettings())] == [2, 3, 4]


@isolated
def test_a_run_scores_programs_once_and_says_why_they_failed(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def counted(sources: Sequence[str], **options: Any) -> list[Execution]:
        ran.extend(sources)
        return run_programs(sources, **options)

    monkeypatch.setattr("mill.tasks.code.run_programs", counted)
    command = ["eval", f"{data / 'backend.py'}[path=x]", "humaneval", "--output_dir", str(data / "out")]
    assert main(command) == 0
    assert len(ran) == 5
    (results,) = (data / "out").glob("**/results.json")
    manifest = json.loads(results.with_name("manifest.json").read_text())
    assert manifest["sandbox"] == "bubblewrap"
    result = json.loads(results.read_text())["tasks"]
    (result,) = result.values() if isinstance(result, dict) else result
    assert result["metrics"]["pass@1"]["value"] == 0.4 and result["warnings"] == []
    samples = results.parent / "samples" / "humaneval.jsonl"
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [row["pass@1"] for row in rows] == [1, 0, 0, 0, 1]
    assert [row["details"] for row in rows] == [
        [{"outcome": "passed"}],
        [{"outcome": "failed", "reason": "AssertionError"}],
        [{"outcome": "timed out"}],
        [{"outcome": "failed", "reason": "ended early with exit code 0"}],
        [{"outcome": "passed"}],
    ]
    assert rows[0]["extracted"] == f"#0#\n{PROMPT}    return [x // 2] * 2\n" and rows[0]["target"] == rows[0]["extracted"]
    before = samples.read_text()
    assert main(["score", str(results.parent)]) == 0
    assert len(ran) == 10 and samples.read_text() == before
    assert "0.4" in capsys.readouterr().out


def test_without_a_sandbox_consent_is_needed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", f"{data / 'backend.py'}[path=x]", "humaneval", "--output_dir", str(data / "out"), "--sandbox", "none"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error == "mill: humaneval executes code that the model wrote: --confirm_run_unsafe_code allows it\n"
    assert main([*command, "--confirm_run_unsafe_code"]) == 0
    assert main(command) == 2  # the next command of this process
    assert capsys.readouterr().err.endswith(error)
    (results,) = (data / "out").glob("**/results.json")
    assert json.loads(results.with_name("manifest.json").read_text())["sandbox"] == "none"
    assert "programs ran without isolation (--sandbox none)" in results.read_text()
    assert '"value": 0.4' in results.read_text()


def test_consent_in_python_is_an_argument_of_one_call(data: Path) -> None:
    def evaluate(**options: Any) -> float:
        spec, folder = f"{data / 'backend.py'}[path=x]", str(data / "python")
        return float(mill.evaluate(spec, "humaneval", sandbox="none", output_dir=folder, **options).scores["value"][0])

    for options in ({}, {"confirm_run_unsafe_code": False}):
        assert evaluate(confirm_run_unsafe_code=True) == 0.4
        with pytest.raises(SpecError, match="--confirm_run_unsafe_code allows it"):
            evaluate(**options)


@published
@isolated
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_prompts_and_scores_are_those_of_lm_eval(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For answers that continue the prompt: right ones, wrong ones, and such that do not parse."""
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("MILL_DATA", DATA)
    with consenting(Consent(confirm_run_unsafe_code=True)):  # lm-eval's own code runs a program when it is loaded
        ours, theirs = task_of(name), make_task(f"lm-eval:{name}")
    samples, settings = list(ours.samples())[:24], RenderSettings()
    theirs.prepare(theirs.samples()[:24], settings)
    for number, (sample, other) in enumerate(zip(samples, theirs.samples()[:24], strict=True)):
        (prompt,), (expected,) = ours.requests(sample, settings), theirs.requests(other, settings)
        assert prompt.context == expected.context and set(prompt.options["until"]) <= set(expected.options["until"])
        right = ours.answer_text(sample.doc).removesuffix("\n[DONE]")
        wrong = re.sub(r"return .*", "return None", right)
        responses = [Response(text=(right, wrong, f"{right}\n  )", "", f"{right}\nraise SystemExit(0)")[number % 5])]
        with consenting(Consent(confirm_run_unsafe_code=True)):
            scores = theirs.score(other, responses)
        assert list(ours.score(sample, responses).values()) == list(scores.values()), number
