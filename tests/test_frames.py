"""mill from Python: the same metrics as on the command line, as data frames."""

from __future__ import annotations

import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mill
from mill.api.errors import MillError, SpecError
from mill.api.model import MillModel, ModelCapabilities
from mill.api.request import Request
from mill.api.response import Response
from mill.models.spec.open import open_model
from mill.report.collect import collect
from tests.fixed_answers import FixedModel, FixedTask, FixedText

EXAM = Path(__file__).with_name("toy_exam.py")
SHORT: dict[str, Any] = {"limit": 3, "gen_kwargs": {"max_gen_toks": 6}}


def spec(model: Path, dtype: str = "float32") -> str:
    return f"hf[path={model},dtype={dtype}]"


class Colours(MillModel):
    """Answers blue, and prefers the choice that comes first in the alphabet."""

    model_name = "colours"
    capabilities = ModelCapabilities(supports_logprobs=True)

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        if any("fails" in request.text for request in batch):
            raise ValueError("no answer")
        return ["Blue."] * len(batch)

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        return [(-float(ord(request.continuation.strip()[0])), False) for request in batch]


QUESTIONS = "question,answer,category\nSky?,blue,nature\nGrass?,green,\nIt fails?,red,\n"


def test_frames_have_the_rows_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "qa.csv").write_text(QUESTIONS)
    (tmp_path / "exam.csv").write_text("question,choices,answer\nSky?,blue|red,A\nGrass?,blue|green,B\n")
    tasks = [str(tmp_path / "qa.csv"), str(tmp_path / "exam.csv")]
    found = mill.evaluate(Colours(), tasks, output_dir=tmp_path / "out", gen_kwargs={"temperature": 1.0}, repeats=2)
    run = found.outcome.folder
    lines = [json.loads(line) for task in tasks for line in run.samples_file(task).read_text().splitlines()]
    assert [
        {name: None if value is pd.NA or value != value else value for name, value in row.items() if name in line}
        for row, line in zip(found.samples.to_dict("records"), lines, strict=True)
    ] == lines
    assert set(found.samples.columns) == {"status", *(name for line in lines for name in line)}
    assert list(found.samples.status) == ["right", "wrong", "failed", "right", "wrong"]
    assert {"model", "settings", "category", "response", "extracted", "choices", "chosen"} <= set(found.samples.columns)
    collected = collect(tmp_path / "out")
    assert sorted(map(str, found.scores.to_dict("records"))) == sorted(map(str, collected))
    by_metric = found.scores.set_index(["task", "metric"])
    assert by_metric.loc[(tasks[0], "exact_match"), "failed"] == 1 and by_metric.loc[(tasks[1], "acc"), "failed"] == 0
    assert "failed" in repr(found) and "errors" not in repr(found)


def test_samples_that_a_budget_left_out_have_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 samples of four tokens run, of which each 25th fails; `mill.load` shows them in the same way."""
    monkeypatch.setenv("EXAM_FAILS", "25")
    how: dict[str, Any] = {"task_paths": [str(EXAM)], "output_dir": tmp_path, "max_tokens_total": 4 * 48}
    found = mill.evaluate("exam[name=a,accuracy=0.65]", "toy_exam_art", **how)
    for samples in (found.samples, mill.load(tmp_path).samples()):
        counts = samples.status.value_counts().to_dict()
        assert (counts["failed"], counts["pending"], counts["right"] + counts["wrong"]) == (2, 252, 46)
        assert samples.error.notna().sum() == 2 and samples[samples.status == "pending"].acc.isna().all()
        assert (samples[samples.status == "right"].acc == 1.0).all() and (
            samples[samples.status == "wrong"].acc == 0.0
        ).all()
    written = found.outcome.folder.samples_file("toy_exam_art").read_text()
    assert written.count('"status": "pending"') == 252


def test_tasks_of_one_name_are_refused_and_one_task_given_twice_runs_once(tmp_path: Path) -> None:
    model, task = FixedModel("m", {"quiz 0": "right", "quiz 1": "right"}), FixedTask("quiz", 2)
    with pytest.raises(SpecError, match="2 tasks are called 'quiz', and results are stored by name: rename all but one"):
        mill.evaluate(model, [task, FixedTask("quiz", 1)], output_dir=tmp_path)
    with pytest.raises(SpecError, match="2 tasks are called 'numerics'"):
        mill.compare(model, FixedModel("n", {}), tasks=["numerics", FixedTask("numerics", 1)], output_dir=tmp_path)
    assert not any(tmp_path.iterdir())
    assert len(mill.evaluate(model, [task, task], output_dir=tmp_path).samples) == 2


class Scorer(FixedModel):
    """Scores documents, and reports so many tokens."""

    def _loglikelihood_rolling_single(self, request: Request) -> Response:  # type: ignore[override]
        score, tokens = self.answers[request.text]
        return Response(score=score, prompt_tokens=tokens)


@pytest.mark.parametrize(
    ("tokens", "metric", "unit", "units"), [(4, "ppl_ratio", "token", 4), (5, "word_ppl_ratio", "word", 10)]
)
def test_the_perplexity_ratio_names_its_unit(tmp_path: Path, tokens: int, metric: str, unit: str, units: int) -> None:
    """Ten words, of 4 tokens for the first model; the second loses 2 nats."""
    first, second = Scorer("a", {"text 0": (-10.0, 4)}), Scorer("b", {"text 0": (-12.0, tokens)})
    found = mill.compare(first, second, tasks=FixedText("text", 1), output_dir=tmp_path)
    values = found.metrics.set_index("metric")["value"]
    assert values[metric] == pytest.approx(math.exp(2 / units))
    assert f"perplexity ratio per {unit} {values[metric]:.4f}" in found.check.variants[0].verdict


def test_compare_gives_metrics_samples_and_a_page(tiny_model: Path, tmp_path: Path) -> None:
    others: list[Any] = [spec(tiny_model, "float16"), open_model(spec(tiny_model, "bfloat16"))]
    found = mill.compare(spec(tiny_model), others, labels=["f32", "f16", "bf16"], output_dir=tmp_path, **SHORT)
    kl = found.metrics[found.metrics["metric"] == "kl_mean"].set_index("label")["value"]
    assert 0 < kl["f16"] < kl["bf16"]
    assert found.samples.groupby("label").size().to_dict() == {"bf16": 3, "f16": 3}
    assert '"command": "sweep"' in found.save_html(tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": -1}, "a whole count of at least 1"),
        ({"limt": 1}, "unknown argument 'limt'; did you mean limit"),
        ({"exact": "no"}, "exact must be true or false, not the text 'no'"),
        ({"gen_kwargs": {"temprature": 1}}, "unknown decoding option 'temprature'; did you mean temperature"),
        ({"max_tokens": 3, "max_gen_toks": 3}, "max_tokens is given twice"),
        ({"max_tokens": 3, "gen_kwargs": {"max_gen_toks": 3}}, "max_tokens and max_gen_toks in gen_kwargs are one option"),
    ],
)
def test_what_the_command_line_refuses_is_refused_here_too(
    settings: dict[str, Any], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(MillError, match=re.escape(message)):
        mill.evaluate(spec(tiny_model), **{"tasks": "numerics", "output_dir": tmp_path, **settings})
    assert not list(tmp_path.rglob("*.jsonl"))


def test_options_of_the_command_line_are_arguments_under_any_of_their_names(tiny_model: Path, tmp_path: Path) -> None:
    options = {"limit": 2, "max_new_tokens": 4, "gen_kwargs": "until=[a,b]", "batch_size": "auto"}
    found = mill.evaluate(spec(tiny_model), "numerics", output_dir=tmp_path, **options)
    settings = json.loads((found.outcome.folder.path / "manifest.json").read_text())["settings"]
    assert len(found.samples) == 2 and settings["gen_kwargs"] == {"until": ["a", "b"], "max_gen_toks": 4}
    assert {"limit", "n_shots", "max_tokens", "workers"} <= set(inspect.signature(mill.evaluate).parameters)
    assert {"prompts", "forced_tokens", "labels"} <= set(inspect.signature(mill.compare).parameters)


def test_an_open_model_takes_no_options_about_opening_it(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="batch_size is for a model that mill opens"):
        mill.evaluate(open_model(spec(tiny_model)), "numerics", output_dir=tmp_path, batch_size=2)


def test_compare_refuses_what_it_would_drop(tiny_model: Path, tmp_path: Path) -> None:
    own = spec(tiny_model)
    for more, message in (
        ({"b": []}, "needs a model"),
        ({"b": own, "labels": ["a"]}, "1 labels for 2 models"),
        ({"b": own, "prompts": "numerics", "tasks": "reasoning"}, "not both"),
        ({"b": own, "limit": -1}, "a whole count of at least 1"),
    ):
        with pytest.raises(SpecError, match=message):
            mill.compare(own, output_dir=tmp_path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mill.evaluate(None, "gsm8k"), "a model is a spec"),  # type: ignore[arg-type]
        (
            lambda: mill.evaluate("toy[path=a]", None),  # type: ignore[arg-type]
            "tasks are names or Task objects, not NoneType",
        ),
        (lambda: mill.evaluate("toy[path=a]", "gsm8k", output_dir=5), "output_dir must be a path, not 5"),
        (lambda: mill.evaluate("toy[path=a]", "gsm8k", output_dir="a\0b"), "path"),
        (lambda: mill.evaluate("toy[path=a]", "gsm8k", reuse="b"), "reuse was removed, .*: use --sample N"),
        (lambda: mill.compare("toy[path=a]", None), "a model is a spec"),  # type: ignore[arg-type]
        (
            lambda: mill.compare("toy[path=a]", "toy[path=b]", prompts=5),
            "prompts must be a comma-separated text or a list of texts, not 5",
        ),
    ],
)
def test_odd_arguments_are_refused_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(MillError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)


class Worded(MillModel):
    """Answers with the word that it was made with."""

    model_name = "worded"

    def __init__(self, word: Any, *more: str, **named: str) -> None:
        self._word = word

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        return [self._word() if callable(self._word) else self._word] * len(batch)


def test_models_made_in_python_are_identified_by_their_arguments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def score(*arguments: Any, **named: str) -> float:
        found = mill.evaluate(Worded(*arguments, **named), FixedTask("right", 4), output_dir=str(tmp_path), quiet=True)
        return float(found.scores["value"][0])

    assert score("right") == 1.0 and score("zzz") == 0.0 and score("zzz", "more") == 0.0 and score("zzz", named="x") == 0.0
    assert len(list(tmp_path.iterdir())) == 4 and not caplog.records
    assert score(lambda: "right") == 1.0 and score(lambda: "zzz") == 0.0
    assert "the argument word of Worded cannot be read: no answer of an earlier call is reused" in caplog.text
    score("x", api_key="sk-SECRETKEY123")
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and "SECRETKEY" in file.read_text()]
