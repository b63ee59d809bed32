"""mill's models in lm-eval answer like lm-eval's own, on the same weights; failures end a run after the rest is recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from mill.api.errors import RunError, SpecError
from mill.api.registry import register_model
from mill.bridges.lm_eval.model import MillLM
from mill.bridges.recorded_model import rejoined
from mill.cli.main import run as main
from tests import forking
from tests.bridges.hash_model import HashModel
from tests.bridges.made_tasks import write_tasks
from tests.launching import TESTS, environment
from tests.runs.faults import computed

TEXTS = ["the quick brown fox", "what is the answer ? it is 42 ,", "yes no A B", "the lazy dog . what is"]
TURNS = [{"role": "user", "content": "what is the answer ?"}]


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]


@pytest.mark.weights
def test_answers_equal_those_of_lm_eval_on_the_same_weights(tiny_model: Path, tmp_path: Path) -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    theirs = huggingface.HFLM(pretrained=str(tiny_model), dtype="float32", device="cpu", batch_size=2)
    ours = MillLM(f"hf[path={tiny_model},dtype=float32]", output_dir=str(tmp_path))
    choices = instances("loglikelihood", *((text, f" {word}") for text in TEXTS for word in ("dog", "42", "lazy brown")))
    pairs = list(zip(ours.loglikelihood(choices), theirs.loglikelihood(choices), strict=True))
    assert all(mine[0] == pytest.approx(other[0], abs=1e-4) and mine[1] == other[1] for mine, other in pairs)
    options = {"until": ["dog"], "max_gen_toks": 8, "do_sample": False}
    prompts = instances("generate_until", *((text, options) for text in TEXTS))
    assert ours.generate_until(prompts) == theirs.generate_until(prompts)


@pytest.mark.weights
def test_documents_score_as_in_lm_eval(tiny_model_without_bos: Path, tmp_path: Path) -> None:
    """Where the tokenizer adds a BOS lm-eval has it twice before a document, and mill once."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    theirs = huggingface.HFLM(pretrained=str(tiny_model_without_bos), dtype="float32", device="cpu")
    ours = MillLM(f"hf[path={tiny_model_without_bos},dtype=float32]", output_dir=str(tmp_path))
    documents = instances("loglikelihood_rolling", *((text * 3,) for text in TEXTS))
    assert ours.loglikelihood_rolling(documents) == pytest.approx(theirs.loglikelihood_rolling(documents), abs=1e-3)


@pytest.mark.weights
@pytest.mark.parametrize("last", [[], [{"role": "assistant", "content": "it is"}]])
def test_chats_are_rendered_as_by_lm_eval(tiny_model: Path, tmp_path: Path, last: list[dict[str, str]]) -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    theirs = huggingface.HFLM(pretrained=str(tiny_model), dtype="float32", device="cpu")
    ours = MillLM(f"hf[path={tiny_model},dtype=float32]", output_dir=str(tmp_path))
    expected = theirs.apply_chat_template([*TURNS, *last], add_generation_prompt=not last)
    assert ours.apply_chat_template([*TURNS, *last], add_generation_prompt=not last) == expected


class Broken(HashModel):
    """Fails on prompts with a word, until it is mended."""

    broken = True

    def _generate_batch(self, batch: list[Any], gen_kwargs: dict[str, Any]) -> list[Any]:
        if type(self).broken and any("fox" in request.text for request in batch):
            raise RuntimeError("the fox ran away")
        return super()._generate_batch(batch, gen_kwargs)


def test_failures_end_the_run_once_the_rest_is_recorded(tmp_path: Path) -> None:
    register_model("broken-model")(Broken)
    model = MillLM("broken-model[batch_size=1]", output_dir=str(tmp_path))
    requests = instances("generate_until", *((text, {"until": ["x"]}) for text in TEXTS))
    with pytest.raises(RunError, match=r"1 of 4 requests failed, the first with: RuntimeError: the fox ran away"):
        model.generate_until(requests)
    (file,) = tmp_path.glob("*/*/record/*.jsonl")
    answered = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum("text" in entry["response"] for entry in answered) == 3
    Broken.broken = False
    again = MillLM("broken-model[batch_size=1]", output_dir=str(tmp_path))
    assert len(again.generate_until(requests)) == 4
    assert again.recorded.plan.folder.path == file.parent.parent


def test_repeated_requests_are_draws(tmp_path: Path) -> None:
    model = MillLM("hash-model", output_dir=str(tmp_path))
    (one,) = instances("generate_until", ("the quick", {"until": ["x"], "do_sample": True, "temperature": 0.9}))
    model.generate_until([one, one, one])
    (file,) = tmp_path.glob("*/*/record/*.jsonl")
    assert len({json.loads(line)["key"] for line in file.read_text().splitlines()}) == 3


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({"spec": "hf[path=a", "dtype": "float32]", "output_dir": "out"}, "hf[path=a,dtype=float32]"),
        ({"spec": "hf[path=a", "exact": True, "max_context_length": 64, "revision": "b]"}, None),
        ({"spec": "org/name"}, "org/name"),
    ],
)
def test_a_spec_that_lm_eval_split_at_its_commas_is_joined(given: Mapping[str, Any], spec: str | None) -> None:
    found = rejoined(given)
    assert found["spec"] == (spec or "hf[path=a,exact=true,max_context_length=64,revision=b]")
    assert set(found) == ({"spec", "output_dir"} if "output_dir" in given else {"spec"})


def test_a_missing_spec_and_a_device_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SpecError, match="no model is given"):
        MillLM()
    with caplog.at_level("WARNING", logger="mill"):
        MillLM("hash-model", output_dir=str(tmp_path), device="cpu", batch_size=1, max_batch_size=8)
    assert "--device cpu has no effect" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model_args", "spc=hash-model"], "unknown model argument 'spc'"),
        (["--model_args", "wait=3", "output_dir=out"], "no model is given"),
        (["--model_args=spec=hf[path"], "hf[path"),
    ],
)
def test_model_arguments_are_checked_before_lm_eval_reads_its_tasks(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: pytest.fail("lm-eval was started"))
    assert main(["lm-eval", "run", "--model", "mill", *arguments, "--tasks", "x"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_run_of_lm_eval_with_a_model_of_mill_is_recorded_and_resumed(tmp_path: Path) -> None:
    """`mill lm-eval run --model mill` on the toy model."""
    tasks, data = write_tasks(tmp_path)
    log, scores = tmp_path / "log", []
    model = f"spec=toy[path=toy],output_dir={tmp_path / 'out'},task_paths={TESTS / 'toy.py'}"
    command = [sys.executable, str(TESTS / "bridges/without_tasks.py"), "lm-eval", "run", "--model", "mill"]
    command += ["--model_args", model, "--include_path", str(tasks), "--tasks", "made_text,made_choice,made_document"]
    for number in range(2):
        log.write_text("")
        results = tmp_path / f"results{number}"
        env = environment(MILL_DATA=str(data), TOY_LOG=str(log))
        done = forking.run([*command, "--output_path", str(results)], env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        (file,) = results.rglob("results_*.json")
        scores.append(json.loads(file.read_text())["results"])
        assert bool(computed(log)) == (number == 0), "the second command computes nothing"
    assert scores[0] == scores[1] and set(scores[0]) == {"made_text", "made_choice", "made_document"}
