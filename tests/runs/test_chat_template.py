"""The chat template by flag and by spec: one meaning, one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mill
from mill.api.message import Message
from mill.api.registry import register_task
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.cli.main import run
from mill.tasks.load import Selection
from tests.plans import prepare


class Plain(Task):
    """Sends its prompts as plain text, without `RenderSettings.frame`."""

    task_type = TaskType.GENERATIVE_QA
    metrics = {"answered": "mean"}

    def __init__(self, name: str, kind: str = GENERATE) -> None:
        self.kind = kind
        super().__init__(name)

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(n), {"n": n}) for n in range(2)]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        options = settings.options(max_gen_toks=2) if self.kind == GENERATE else {}
        continuation = "" if self.kind != LOGLIKELIHOOD else " yes"
        return [Request(self.kind, f"yes {sample.id} ?", continuation, options=options)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"answered": 1.0}


@pytest.mark.parametrize("task", ["qa.csv", "plain"])
def test_the_flag_and_the_spec_are_one_run(
    tmp_path: Path, tiny_model: Path, task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("qa.csv").write_text("question,answer\nwhat ?,42\nyes ?,no\n")
    register_task("plain")(Plain)
    plain = f"path={tiny_model},dtype=float32,device_map=cpu"
    options = ["--output_dir", "out", "--quiet", "--max_tokens", "2"]
    assert run(["eval", f"hf[{plain}]", task, "--apply_chat_template", *options]) == 0
    (first,) = Path("out").glob("*/*")
    samples = next((first / "samples").iterdir()).read_text()
    assert all(row["prompt"].startswith("<|user|>") for row in map(json.loads, samples.splitlines()))
    for name in ("use_chat_template", "apply_chat_template"):
        for flag in ([], ["--apply_chat_template"]):
            capsys.readouterr()
            assert run(["eval", f"hf[{plain},{name}=true]", task, *flag, *options]) == 0
            assert "0 requests computed" in capsys.readouterr().out
    assert [folder for folder in Path("out").glob("*/*") if folder.is_dir()] == [first]
    assert next((first / "samples").iterdir()).read_text() == samples


def test_prompts_that_a_task_gives_as_text_are_chat_messages_and_documents_are_not(tmp_path: Path, tiny_model: Path) -> None:
    for kind, context in ((GENERATE, (Message("user", "yes 0 ?"),)), (LOGLIKELIHOOD, (Message("user", "yes 0 ?"),)),
                          (ROLLING, "yes 0 ?")):  # fmt: skip
        ready = prepare(
            f"hf[path={tiny_model},use_chat_template=true]",
            Selection((Plain("plain", kind),), ()),
            RenderSettings(),
            output_dir=tmp_path,
        )
        assert ready.states[0].first_request.context == context
        assert ready.config.settings.apply_chat_template and not ready.model.use_chat_template


CONTRADICTIONS: dict[str, tuple[list[str], str]] = {
    "hf": (["eval", "hf[path=x,use_chat_template=false]", "qa.csv", "--apply_chat_template"],
           "hf[use_chat_template=false] contradicts --apply_chat_template: leave one of them out"),
    "a run file": (["eval", "hf[path=x,use_chat_template=true]", "qa.csv", "--config", "run.yaml"],
                   "hf[use_chat_template=true] contradicts apply_chat_template=false: leave one of them out"),
    "a config file": (["eval", "model.py", "qa.csv", "--apply_chat_template"],
                      "hf[use_chat_template=false] contradicts --apply_chat_template: leave one of them out"),
    "a server": (["eval", "openai-compat[model=m,base_url=http://127.0.0.1:1,chat=false]", "qa.csv",
                  "--apply_chat_template"],
                 "openai-compat[chat=false] contradicts --apply_chat_template: leave one of them out"),
    "a check with the template": (
        ["compare", "hf[path=x,use_chat_template=false]", "hf[path=y]", "--chat"],
        "hf[use_chat_template=false] contradicts --chat (--no_chat switches it off): leave one of them out"),
    "a check without": (["compare", "hf[path=x,use_chat_template=true]", "hf[path=y]", "--no_chat"],
                        "hf[use_chat_template=true] contradicts --no_chat: leave one of them out"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_flag_that_contradicts_the_spec_is_refused_in_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("qa.csv").write_text("question,answer\nwhat ?,42\n")
    Path("run.yaml").write_text("apply_chat_template: false\n")
    Path("model.py").write_text('model = {"type": "hf", "path": "x", "use_chat_template": False}\n')
    argv, message = CONTRADICTIONS[case]
    assert run([*argv, "--output_dir", "out"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"mill: {message}"]
    assert not Path("out").exists()


def test_a_check_applies_the_template_where_the_spec_says_so(tmp_path: Path, tiny_model: Path) -> None:
    """By default a suite uses the template of every model; where a spec sets it, each model has its own setting."""
    own = f"path={tiny_model},dtype=float32,device_map=cpu"
    limits: dict[str, Any] = {"limit": 1, "gen_kwargs": {"max_gen_toks": 2}, "forced_tokens": 0, "output_dir": tmp_path}
    check = mill.compare(f"hf[{own}]", f"hf[{own},use_chat_template=false]", labels=["a", "b"], **limits)
    assert "apply_chat_template" not in check.check.settings
    check = mill.compare(
        f"hf[{own}]", f"hf[{own},use_chat_template=true]", labels=["a", "b"], tasks="numerics", chat=None, **limits
    )
    assert "apply_chat_template" not in check.check.settings
    assert any("only b applied a chat template" in warning for warning in check.check.warnings)
    check = mill.compare(f"hf[{own}]", f"hf[{own}]", labels=["a", "b"], tasks="numerics", chat=None, **limits)
    assert check.check.settings["apply_chat_template"] is True
