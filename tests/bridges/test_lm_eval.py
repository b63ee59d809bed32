"""Tasks of lm-evaluation-harness: scores, errors and prompts equal those of its own evaluator on the same model."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from datasets import Dataset
from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from mill.api.errors import DataError, MillError, SpecError, UnknownName
from mill.api.request import GENERATE, LOGLIKELIHOOD
from mill.api.response import Response
from mill.api.task import RenderSettings, Task
from mill.bridges.lm_eval import library, scoring
from mill.bridges.lm_eval.library import local_first
from mill.cli.main import run as main
from mill.runs.rescore import score_again
from mill.score.results import _own_estimate
from mill.score.run_scores import Outcome
from mill.store.samples import RunSample
from mill.tasks import load
from mill.tasks.load import load_files, make_task, select
from tests.bridges.hash_model import HashLM
from tests.bridges.made_tasks import ROWS, TASKS, YAML, write_tasks
from tests.plans import prepare


@pytest.fixture(autouse=True)
def made_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of YAML tasks with their data on the search path, and an lm-eval source that knows no other ones."""
    folder, data = write_tasks(tmp_path)
    monkeypatch.setenv("MILL_DATA", str(data))
    monkeypatch.setattr(scoring, "BOOTSTRAP", 200)
    monkeypatch.setattr(library, "tasks_folder", lambda: folder)
    monkeypatch.setattr(load, "_opened", {})
    yield folder


def of_lm_eval(folder: Path, names: list[str], model: Any = None, **options: Any) -> dict[str, Any]:
    with library.quiet(), local_first():
        manager = TaskManager(include_defaults=False, include_path=[str(folder)])
        found = evaluator.simple_evaluate(
            model or HashLM(), tasks=names, bootstrap_iters=200, task_manager=manager, **options
        )
    assert found is not None
    return dict(found)


def of_mill(names: str, out: Path, settings: RenderSettings | None = None, **options: Any) -> Outcome:
    run = prepare("hash-model", select(names.split(",")), settings or RenderSettings(), output_dir=out, **options)
    return run.execute(quiet=True)


def metrics_of(outcome: Outcome) -> dict[str, dict[str, tuple[float, float | None]]]:
    found = {one.task: one.metrics for one in outcome.tasks} | {one.benchmark: one.metrics for one in outcome.benchmarks}
    return {name: {key: (value.value, value.stderr) for key, value in metrics.items()} for name, metrics in found.items()}


def expected(results: dict[str, Any]) -> dict[str, dict[str, tuple[float, float | None]]]:
    """lm-eval's results in the form of `metrics_of`."""
    found = {}
    for task, metrics in results["results"].items():
        pairs = {key.partition(",")[::2]: value for key, value in metrics.items() if "," in key}
        found[f"lm-eval:{task}"] = {
            scoring.metric_name(name, key): (value, None if (err := pairs[f"{name}_stderr", key]) == "N/A" else err)
            for (name, key), value in pairs.items()
            if not name.endswith("_stderr")
        }
    return found


def close(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12))


@pytest.mark.parametrize("names", [TASKS, ["made_outer"]], ids=["tasks", "groups"])
def test_metrics_and_errors_equal_those_of_lm_eval(names: list[str], made_tasks: Path, tmp_path: Path) -> None:
    theirs = expected(of_lm_eval(made_tasks, names))
    ours = metrics_of(of_mill(",".join(f"lm-eval:{name}" for name in names), tmp_path / "out"))
    assert set(ours) == {task for task, metrics in theirs.items() if metrics}
    for task, metrics in ours.items():
        assert set(metrics) == set(theirs[task])
        for metric, (value, stderr) in metrics.items():
            assert close(value, theirs[task][metric][0]) and close(stderr, theirs[task][metric][1]), (task, metric)


class Listening(HashLM):
    """Remembers the prompts, and has a chat template that writes the roles out."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Any] = []

    def generate_until(self, requests: list[Any]) -> list[str]:
        self.prompts += [request.args[0] for request in requests]
        return super().generate_until(requests)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        self.prompts += [request.args[0] for request in requests]
        return super().loglikelihood(requests)

    tokenizer_name = "none"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return "\n".join(f"<{turn['role']}> {turn['content']}" for turn in chat_history)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"n_shots": 3, "seed": 7}, {"num_fewshot": 3, "fewshot_random_seed": 7}),
        ({"apply_chat_template": True, "n_shots": 2}, {"apply_chat_template": True, "num_fewshot": 2}),
        (
            {"apply_chat_template": True, "n_shots": 2, "fewshot_as_multiturn": False, "system_prompt": "Be kind."},
            {
                "apply_chat_template": True,
                "num_fewshot": 2,
                "fewshot_as_multiturn": False,
                "system_instruction": "Be kind.",
            },
        ),
    ],
)
def test_prompts_equal_those_of_lm_eval(
    settings: dict[str, Any], options: dict[str, Any], made_tasks: Path, tmp_path: Path
) -> None:
    """lm-eval sends all requests of one kind first."""
    model, names = Listening(), ["made_text", "made_choice", "made_zero", "made_prefix"]
    of_lm_eval(made_tasks, names, model, limit=5, **options)
    tasks = select([f"lm-eval:{name}" for name in names])
    run = prepare("hash-model", tasks, RenderSettings(**settings), output_dir=tmp_path, limit=5)
    assert sorted(request.text for state in run.states for request in state.requests) == sorted(model.prompts)


def test_an_answer_that_the_prompt_begins_is_the_last_message(tmp_path: Path) -> None:
    settings = RenderSettings(apply_chat_template=True)
    run = prepare("hash-model", select(["lm-eval:made_prefix"]), settings, output_dir=tmp_path, limit=1)
    (request,) = run.states[0].requests
    assert request.continues_answer and not isinstance(request.context, str)
    assert [(turn.role, turn.text) for turn in request.context][-1] == ("assistant", "The answer is")


def test_few_shot_draws_do_not_depend_on_limits_or_on_other_tasks(tmp_path: Path) -> None:
    def prompts(names: str, limit: int | None) -> list[str]:
        run = prepare("hash-model", select(names.split(",")), RenderSettings(n_shots=3), output_dir=tmp_path, limit=limit)
        (plan,) = [plan for plan in run.tasks if plan.task.name == "lm-eval:made_text"]
        return [state.requests[0].text for state in plan.states]

    whole = prompts("lm-eval:made_text", None)
    assert prompts("lm-eval:made_text", 4) == whole[:4]
    assert prompts("lm-eval:made_choice,lm-eval:made_text", None) == whole
    assert len(set(whole)) == 16


def test_options_without_effect_are_dropped_and_others_are_refused(made_tasks: Path, tmp_path: Path) -> None:
    run = prepare("hash-model", select(["lm-eval:made_text"]), RenderSettings(), output_dir=tmp_path, limit=1)
    assert run.states[0].requests[0].options == {"until": ("\n\n",), "max_gen_toks": 12, "temperature": 0.0}
    file = made_tasks / "made_text.yaml"
    file.write_text(file.read_text().replace("num_beams: 1", "num_beams: 4"))
    load._opened.clear()
    with pytest.raises(DataError, match="made_text cannot be rendered: unknown decoding option 'num_beams'"):
        prepare("hash-model", select(["lm-eval:made_text"]), RenderSettings(), output_dir=tmp_path, limit=1)


def test_a_task_that_asks_for_several_answers_gets_several(tmp_path: Path) -> None:
    run = prepare("hash-model", select(["lm-eval:made_repeats"]), RenderSettings(repeats=2), output_dir=tmp_path, limit=1)
    requests = run.states[0].requests
    assert [request.draw for request in requests] == [0, 2, 4]
    keys = {clone.key for request in requests for clone in request.clones()}
    assert len(keys) == 6  # three answers in each of two repeats


def test_targets_and_answers_are_shown_as_texts(tmp_path: Path) -> None:
    task = make_task("lm-eval:made_choice")
    sample = task.samples()[0]
    answer = task.extracted(sample, [Response(score=-2.0), Response(score=-1.0), Response(score=-3.0)])
    assert (task.target(sample), answer) == (ROWS[0]["choices"][0], ROWS[0]["choices"][1])
    text = make_task("lm-eval:made_text")
    assert text.extracted(text.samples()[0], [Response(text="so #### 18")]) == "18"


def test_a_run_is_scored_again_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ",".join(f"lm-eval:{name}" for name in [*TASKS, "made_group"])
    outcome = of_mill(names, tmp_path / "out")
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "tasks"))
    monkeypatch.setattr(load, "_opened", {})
    again = score_again(outcome.folder)
    assert metrics_of(again) == metrics_of(outcome)


def test_a_task_that_is_not_here_is_left_out_of_scoring_again(
    made_tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = of_mill("lm-eval:made_zero,lm-eval:made_text", tmp_path / "out")
    (made_tasks / "made_text.yaml").unlink()
    monkeypatch.setenv("MILL_CACHE", str(tmp_path / "another cache"))
    monkeypatch.setattr(load, "_opened", {})
    assert main(["score", str(outcome.folder.path)]) == 1
    printed = capsys.readouterr().out
    assert "lm-eval:made_text is not scored again: lm-eval:made_text is not known here" in printed
    assert "lm-eval:made_zero" in printed
    assert set(outcome.folder.results().tasks) == {"lm-eval:made_zero", "lm-eval:made_text"}


def test_include_path_adds_folders_of_yaml_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "own.yaml").write_text(YAML["made_zero"].replace("made_zero", "own_task"))
    options = ["--include_path", str(mine), "--output_dir", str(tmp_path / "out"), "--limit", "3", "--quiet"]
    assert main(["eval", "hash-model", "lm-eval:own_task", *options]) == 0
    assert "lm-eval:own_task" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lm-eval:made_choise", "did you mean made_choice"),
        ("lm-eval:nothing_*", "no task of lm-eval matches 'nothing_*'"),
        ("made_choice", "lm-eval:made_choice is known"),
    ],
)
def test_unknown_names_are_refused_with_what_is_near(name: str, message: str) -> None:
    with pytest.raises((UnknownName, DataError)) as caught:
        select([name])
    assert message in str(caught.value)


def changed(folder: Path, name: str, old: str, new: str) -> None:
    file = folder / f"{name}.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "made/up",
            "made/down",
            "the dataset made/down is not on MILL_DATA, and the hub does not give it",
        ),
        ("test_split: test", "test_split: exam", r"lm-eval:made_text: no data for made/up \(exam\), which is evaluated"),
        ("{{question}}", "{{question", "cannot be loaded"),
        ("metric: exact_match", "metric: no_such_metric", "needs the metric no_such_metric"),
    ],
)
def test_what_a_task_lacks_is_one_line(
    old: str, new: str, message: str, made_tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(made_tasks, "made_text", old, new)
    assert main(["eval", "hash-model", "lm-eval:made_text", "--output_dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1 and error.startswith("mill: ")
    assert re.search(message, error), error


def test_examples_need_the_split_that_they_are_drawn_from(made_tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "made" / "up" / "train.jsonl").unlink()
    of_mill("lm-eval:made_zero", tmp_path / "out", limit=2)  # no examples, no train split
    with pytest.raises(DataError, match=r"no data for made/up \(train\), which its examples are drawn from"):
        of_mill("lm-eval:made_choice", tmp_path / "out", limit=2)


def test_code_of_models_needs_consent(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="lm-eval:made_code executes code that the model wrote: --confirm_run_unsafe_code"):
        of_mill("lm-eval:made_code", tmp_path / "out")


CLASS_TASK = """
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask


class TwoKinds(ConfigurableTask):
    def __init__(self, config=None):
        super().__init__(config={"metadata": {"version": 2}, **{k: v for k, v in (config or {}).items() if k != "class"}})
        self.OUTPUT_TYPE = None

    def construct_requests(self, doc, ctx, **kwargs):
        kwargs.pop("apply_chat_template", None), kwargs.pop("chat_template", None)
        return [
            Instance(request_type="generate_until", doc=doc, arguments=(ctx, {"until": ["\\n"]}), idx=0, **kwargs),
            Instance(request_type="loglikelihood", doc=doc, arguments=(ctx, " unanswerable"), idx=1, **kwargs),
        ]

    def process_results(self, doc, results):
        text, (score, greedy) = results
        return {"length": len(text), "score": score}

    def aggregation(self):
        return {"length": mean, "score": mean}

    def higher_is_better(self):
        return {"length": True, "score": True}
"""


def test_a_class_may_send_requests_of_two_kinds(made_tasks: Path, tmp_path: Path) -> None:
    (made_tasks / "two.py").write_text(CLASS_TASK)
    config = "dataset_path: made/up\ntest_split: test\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
    (made_tasks / "two.yaml").write_text(f"task: two_kinds\nclass: !function two.TwoKinds\n{config}")
    task = make_task("lm-eval:two_kinds")
    assert task.kinds == {GENERATE, LOGLIKELIHOOD}
    theirs = expected(of_lm_eval(made_tasks, ["two_kinds"]))["lm-eval:two_kinds"]
    ours = metrics_of(of_mill("lm-eval:two_kinds", tmp_path / "out"))["lm-eval:two_kinds"]
    assert ours.keys() == theirs.keys() and all(close(ours[name][0], theirs[name][0]) for name in ours)
    with pytest.raises(MillError, match="is scored by loglikelihood requests"):
        prepare("litellm[model=openai/gpt-4o]", select(["lm-eval:two_kinds"]), RenderSettings(), output_dir=tmp_path)


def test_slow_scoring_in_processes_gives_the_same(made_tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes know neither the fixture's patches nor its source, only the folder that was added. They are forked: each
    new one would take ten seconds to import lm-eval."""
    from mill.score import run_scores as pool

    load_files((str(made_tasks),))
    here = metrics_of(of_mill("lm-eval:made_text", tmp_path / "here"))
    monkeypatch.setattr(pool, "PATIENCE_S", -1.0)
    monkeypatch.setattr(pool, "_TRIED", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (nothing := tmp_path / "nothing").mkdir()

    def start(*given: Any) -> None:
        load._opened.clear()
        library.tasks_folder = lambda: nothing
        pool._start(*given)

    def forked(count: int, *, initializer: Any, initargs: Any, **how: Any) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, multiprocessing.get_context("fork"), start, initargs)

    monkeypatch.setattr(pool, "ProcessPoolExecutor", forked)
    counts: list[int] = []
    real = pool._in_processes

    def counted(task: Task, records: Sequence[RunSample], settings: RenderSettings) -> list[RunSample]:
        counts.append(len(records))
        return real(task, records, settings)

    monkeypatch.setattr(pool, "_in_processes", counted)
    assert metrics_of(of_mill("lm-eval:made_text", tmp_path / "there")) == here
    assert counts == [14]


@pytest.mark.parametrize(
    ("name", "metric", "limits"),
    [
        ("made_document", "word_perplexity", (1.0, math.inf)),
        ("made_f1", "f1", (0.0, 1.0)),
        ("made_f1", "acc", (0.0, 1.0)),
        ("made_text", "rouge1_max", (0.0, 100.0)),
        ("made_text", "some_metric", (-math.inf, math.inf)),
    ],
)
def test_intervals_of_aggregated_metrics_end_at_possible_values(
    name: str, metric: str, limits: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = select([f"lm-eval:{name}"]).tasks
    assert task.limits(metric) == limits
    value = 1.5 if limits[0] == 1.0 else 0.5
    monkeypatch.setattr(task, "aggregate", lambda metric, values: (value, 0.9))
    wide = _own_estimate(task, metric, [[0.1], [0.2], [0.3]])
    monkeypatch.setattr(task, "aggregate", lambda metric, values: (value, 0.0))
    equal = _own_estimate(task, metric, [[0.1], [0.2], [0.3]])
    assert wide.low == max(limits[0], wide.low or 0.0) and wide.high == min(limits[1], wide.high or 0.0)
    assert equal.low is None and equal.high is None


def test_a_file_of_a_repository_is_found_where_the_search_path_has_it(made_tasks: Path, tmp_path: Path) -> None:
    rows = "{data_files: {test: hf://datasets/made/up/test.jsonl, train: hf://datasets/made/up/train.jsonl}}"
    changed(made_tasks, "made_zero", "dataset_path: made/up", f"dataset_path: json\ndataset_kwargs: {rows}")
    (task,) = select(["lm-eval:made_zero"]).tasks
    assert [sample.doc for sample in task.samples()] == ROWS[:16]


def test_data_that_was_saved_to_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = metrics_of(of_mill("lm-eval:made_zero", tmp_path / "files"))
    for split, rows in (("test", ROWS[:16]), ("train", ROWS[16:])):
        Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved" / "made" / "up" / split))
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "saved"))
    monkeypatch.setattr(load, "_opened", {})
    assert metrics_of(of_mill("lm-eval:made_zero", tmp_path / "folders")) == expected
