"""`mill show`: what a person reads of one sample, in runs of agents, of several prompts and of plain questions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mill.api.response import Response
from mill.api.task import Sample
from mill.cli.main import run as main
from mill.cli.show import transcript
from mill.runs.rescore import score_again
from mill.store.folder import RunFolder, find_runs
from mill.store.samples import RunSample, row_of
from mill.tasks.load import load_files

TESTS = Path(__file__).parents[1]
ALIKE = "the quick brown fox jumps over the lazy dog . what is the answer ?" + " it is 42" * 9
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "what", "is", "answer", "yes"]
TEXTS_TASK = f"""
from mill.api.registry import register_task
from mill.api.request import GENERATE, Request
from mill.api.task import Sample, Task, TaskType

@register_task("begins_alike")
class BeginsAlike(Task):
    task_type, metrics = TaskType.GENERATIVE_QA, {{"length": "mean"}}
    def samples(self):
        return [Sample(word, {{"text": {ALIKE!r} + ' ' + word}}) for word in {WORDS!r}]
    def requests(self, sample, settings):
        return [Request(GENERATE, context=sample.doc["text"], options=settings.options(max_gen_toks=8))]
    def target(self, sample):
        return ""
    def score(self, sample, responses):
        return {{"length": float(len(responses[0].text or ""))}}
"""
STOPS = """
from mill.api.registry import register_model
from mill.models.hf.model import TransformersModel

@register_model("stops")
class Stops(TransformersModel):
    def stream_responses(self, kind, requests, context):
        for number, one in enumerate(super().stream_responses(kind, requests, context)):
            if number == 5:
                raise KeyboardInterrupt
            yield one
"""
TOY = ("--task_paths", str(TESTS / "toy.py"))
Show = Callable[..., str]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    def shown(folder: RunFolder, *words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["show", str(folder.path), *words]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    return shown


def session_of(folder: RunFolder) -> dict[str, Any]:
    (session,) = folder.manifest()["sessions"]
    return dict(session)


def evaluate(*words: str) -> RunFolder:
    assert main(["eval", *words, "--output_dir", "out", "--quiet"]) == 0
    (folder,) = find_runs(Path("out"))
    return folder


def agent(*words: str) -> RunFolder:
    return evaluate("toy-agent[path=toy]", "toy_agent", "--limit", "12", "--task_paths", str(TESTS / "toy_agent.py"), *words)


def rows(folder: RunFolder, task: str) -> dict[str, dict[str, Any]]:
    lines = folder.samples_file(task).read_text().splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def test_an_agent_has_its_tools_rounds_calls_and_results(show: Show) -> None:
    folder = agent()
    for name, row in rows(folder, "toy_agent").items():
        text = show(folder, "toy_agent", name)
        assert "[tools]\nadd(a, b): Adds.\ntick(): Counts.\n" in text
        responses = row["responses"][0]
        for number, response in enumerate(responses, 1):
            assert f"[round {number}: assistant]" in text
            for call, result in zip(response.get("tool_calls", []), response.get("tool_results", []), strict=True):
                assert f"[call] {call['name']}({call['arguments']})" in text
                outcome = "" if result["outcome"] == "ok" else f" ({result['outcome']})"
                assert f"[tool {call['name']}{outcome}]\n{result['output']}" in text
        assert "[reasoning]\nthree tools were enough\n[end of reasoning]" in text
        assert f"exact_match: {row['values']['exact_match'][0]}" in text


def test_each_repeat_of_a_dialog_has_the_results_of_its_own_calls(show: Show) -> None:
    folder = agent("--repeats", "3", "--gen_kwargs", "temperature=1")
    row = next(
        row
        for row in rows(folder, "toy_agent").values()
        if len({json.dumps([one.get("tool_results") for one in repeat]) for repeat in row["responses"]}) == 3
    )
    for repeat, responses in enumerate(row["responses"]):
        text = show(folder, "toy_agent", row["id"], "--repeat", str(repeat))
        results = [result for response in responses for result in response.get("tool_results", [])]
        assert text.count("\n[tool ") == len(results)
        at = 0
        for result in results:
            at = text.index(f"]\n{result['output']}\n", at) + 1
    assert "--repeat 3: sample" in show(folder, "toy_agent", row["id"], "--repeat", "3", code=2)


def test_a_dialog_that_ended_at_the_limit_of_rounds_says_so(show: Show, capsys: pytest.CaptureFixture[str]) -> None:
    folder = agent("--max_rounds", "2")
    printed = capsys.readouterr().out
    limited = "12 of 12 samples have a dialog that ended at the limit of rounds before it was over: raise --max_rounds"
    assert f"{limited} (samples 0, 1, 2, 3, 4, ...)" in printed
    assert "[max rounds reached]" in show(folder, "toy_agent", "0")
    assert folder.results().tasks["toy_agent"].flags["max_rounds_reached"].samples == [str(number) for number in range(12)]
    load_files((str(TESTS / "toy_agent.py"),))
    assert score_again(folder).tasks[0].flags["max_rounds_reached"].samples == [str(number) for number in range(12)]


MODEL = '''
import re

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model


@register_model("lettered")
class Lettered(MillModel):
    """Answers with the letter of the second choice and its text."""

    capabilities = ModelCapabilities(supports_chat_template=True)
    model_name = "lettered"

    def _generate_batch(self, batch, gen_kwargs):
        return [f"B. {re.search(r'^B. (.*)$', request.text, flags=re.MULTILINE)[1]}" for request in batch]
'''


def test_each_order_of_choices_has_its_prompt_and_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    data = tmp_path / "data/ai2_arc/ARC-Easy/test.jsonl"
    data.parent.mkdir(parents=True)
    choices = {"text": ["milk", "stone", "air"], "label": ["A", "B", "C"]}
    data.write_text(json.dumps({"question": "What is hard?", "choices": choices, "answerKey": "B"}) + "\n")
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "data"))
    (tmp_path / "model.py").write_text(MODEL)
    folder = evaluate("lettered", "arc_easy_gen", "--permutations", "3", "--task_paths", "model.py")
    text = show(folder, "arc_easy_gen", "0")
    parts = text.split("[prompt ")[1:]
    assert [part[:6] for part in parts] == ["1 of 3", "2 of 3", "3 of 3"]
    for part in parts:
        second = part.partition("\nB. ")[2].partition("\n")[0]
        assert f"[response]\nB. {second}\n" in part
    assert 'chosen_by_order: ["' in text
    assert sorted(rows(folder, "arc_easy_gen")["0"]["details"][0]["chosen_by_order"]) == ["air", "milk", "stone"]


def test_without_an_id_the_samples_are_listed_and_an_id_alone_is_enough_where_the_run_has_one_task(show: Show) -> None:
    folder = agent()
    lines = show(folder).splitlines()
    assert lines[0].split() == ["id", "exact_match", "tool_calls", "failed_calls", "response"]
    assert [line.split()[0] for line in lines[2:]] == [str(number) for number in range(12)]
    assert show(folder, "3") == show(folder, "toy_agent", "3")
    assert "limit of rounds" not in show(folder, "3") and folder.results().tasks["toy_agent"].flags == {}
    assert "toy_agents" in show(folder, "toy_agents", "3", code=2)
    assert "`mill show" in show(folder, "toy_agent", "no-such-sample", code=2)


def test_messages_of_a_server_are_shown_by_role() -> None:
    sent = json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def f():\n    pass"}])
    record = RunSample(Sample("1", {}), None, "", [], [["k"]], [[Response(text="yes")]], sent=sent)
    text = transcript(row_of({}, "t", record))
    assert "[prompt: system]\nBe brief." in text and "[prompt: user]\ndef f():\n    pass\n" in text
    for odd in ('[{"role": "user"}, 5]', '[{"role": "user", "content": [1]}]', '[{"role": '):
        assert f"[prompt]\n{odd}\n" in transcript(row_of({}, "t", structs.replace(record, sent=odd)))


def test_timing_has_the_phases_of_the_last_session(show: Show, tiny_model: Path) -> None:
    folder = evaluate(f"hf[path={tiny_model},dtype=float32]", "toy_choice", "--limit", "6", *TOY)
    shown = show(folder, "--timing")
    assert "forward passes" in shown and "saved by sharing prefixes" in shown and "FLOP/s on " in shown
    session = session_of(folder)
    assert sum(session["timing"].values()) >= session["seconds"] > session["timing"]["forward passes"] > 0
    assert 0 < session["computed_tokens"] < session["prompt_tokens"] + session["output_tokens"]


def test_timing_counts_prompts_of_texts_too(show: Show, tiny_model: Path) -> None:
    """All but the last token of each prompt, once where prompts have a prefix in common."""
    from transformers import AutoTokenizer

    Path("texts.py").write_text(TEXTS_TASK)
    spec = f"hf[path={tiny_model},dtype=float32]"
    folder = evaluate(spec, "begins_alike,toy_choice", "--limit", "12", "--task_paths", f"texts.py,{TOY[1]}")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    begin, *prompts = (tokenizer(text)["input_ids"] for text in (ALIKE, *(f"{ALIKE} {word}" for word in WORDS)))
    assert all(prompt[: len(begin)] == begin for prompt in prompts)
    distinct = len(begin) + sum(len(prompt) - 1 - len(begin) for prompt in prompts)
    both = session_of(folder)
    shutil.rmtree("out")
    scored = session_of(evaluate(spec, "toy_choice", "--limit", "12", *TOY))
    assert both["computed_tokens"] == scored["computed_tokens"] + distinct
    assert both["scored"] == scored["scored"] == scored["computed"] == both["computed"] - 12
    assert both["scored_tokens"] == scored["scored_tokens"] == scored["output_tokens"] < both["output_tokens"]
    shutil.rmtree("out")
    shown = show(evaluate(spec, "begins_alike", "--limit", "12", "--task_paths", "texts.py"), "--timing")
    whole = sum(len(prompt) - 1 for prompt in prompts)
    assert f"{distinct:,} tokens of prompts and choices computed of {whole:,} in all requests" in shown


def test_an_interrupted_run_has_its_phases_and_counts(show: Show, tiny_model: Path) -> None:
    Path("texts.py").write_text(TEXTS_TASK)
    Path("stops.py").write_text(STOPS)
    words = ["eval", f"stops[path={tiny_model},dtype=float32]", "toy_choice", "--task_paths", f"stops.py,{TOY[1]}"]
    assert main([*words, "--output_dir", "out", "--quiet"]) == 130
    (folder,) = find_runs(Path("out"))
    session = session_of(folder)
    assert session["ended"] == "interrupted" and session["computed"] == 5 and session["computed_tokens"] > 0
    assert session["timing"]["forward passes"] > 0 and session["answering_s"] == session["scoring_s"] > 0
    assert "forward passes" in show(folder, "--timing")


def test_a_run_without_phases_says_so(show: Show) -> None:
    folder = agent()
    for file in (folder.path / "manifest.json", *(folder.path / "sessions").glob("*.json")):
        file.write_text(file.read_text().replace('"timing"', '"unknown"'))
    assert "leave out TASK, ID and --repeat" in show(folder, "toy_agent", "--timing", code=2)
    assert "no session of this run has recorded its phases" in show(folder, "--timing", code=2)
