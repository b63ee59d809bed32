"""Logs that lm-eval writes here, as runs of mill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from mill.cli.main import run as main
from mill.store.schema import BenchmarkResult, TaskResult
from mill.view.scan import scan
from tests.bridges.made_tasks import DATA, write_tasks
from tests.view.conversion import Converted, converted

TASKS = ["made_outer", "made_text", "made_repeats", "made_document", "made_last", "made_f1", "made_inputs"]
INPUTS = """
task: made_inputs
output_type: multiple_choice
doc_to_text: label
doc_to_target: "it is {{answer}}"
doc_to_choice: ["Cats say", "Dogs say"]
metric_list: [{metric: acc}]
"""


@pytest.fixture(scope="module")
def log(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results file of an evaluation on four documents of each task."""
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("lm_eval")
    tasks, data = write_tasks(folder)
    files = {split: str(data / "made/up" / f"{split}.jsonl") for split in ("test", "train")}
    source = f"dataset_path: json\ndataset_kwargs: {json.dumps({'data_files': files, 'cache_dir': str(folder)})}"
    (tasks / "made_inputs.yaml").write_text(DATA + INPUTS)
    for file in tasks.glob("*.yaml"):
        file.write_text(file.read_text().replace("dataset_path: made/up", source))
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    found: Any = simple_evaluate(
        model="hf",
        model_args=f"pretrained={tiny_model},dtype=float32",
        device="cpu",
        tasks=TASKS,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        limit=4,
        bootstrap_iters=10,
        gen_kwargs="temperature=0.5",
        log_samples=True,
        evaluation_tracker=tracker,
    )
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    for name in found["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    (file,) = (folder / "out").rglob("results_*.json")
    return file


@pytest.fixture(scope="module")
def run(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converted(log, tmp_path_factory.mktemp("converted") / "model" / "default")


def logged(log: Path, task: str) -> list[dict[str, Any]]:
    """The lines of a task in lm-eval's own file."""
    (file,) = log.parent.glob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_log_is_found_with_its_samples(log: Path) -> None:
    (found,) = scan(log.parent.parent).logs
    assert (found.path, len(found.files)) == (log, 10)  # nine tasks


def test_every_metric_is_lm_evals_own(log: Path, run: Converted) -> None:
    theirs = json.loads(log.read_text())["results"]
    compared = 0
    ours: dict[str, TaskResult | BenchmarkResult] = {**run.results.tasks, **run.results.benchmarks}
    for name, result in ours.items():
        own = {key: value for key, value in theirs[name].items() if "," in key and "_stderr," not in key}
        assert {key.removesuffix(",none"): value for key, value in own.items()} == {
            metric: estimate.value for metric, estimate in result.metrics.items()
        }
        for key in own:
            metric, filter_name = key.split(",")
            stderr = theirs[name][f"{metric}_stderr,{filter_name}"]
            assert result.metrics[key.removesuffix(",none")].stderr == (None if stderr == "N/A" else stderr)
            compared += 1
    assert compared == 15
    assert set(run.results.benchmarks) == {"made_group"}
    assert run.results.benchmarks["made_group"].tasks == ["made_choice", "made_zero"]
    assert run.results.benchmarks["made_group"].n == 8


def test_the_manifest(run: Converted, tiny_model: Path) -> None:
    manifest = run.manifest
    assert manifest["model"] == {
        "name": str(tiny_model),
        "backend": "hf",
        "arguments": {"pretrained": str(tiny_model), "dtype": "float32"},
        "identity": {},
    }
    assert (manifest["settings"]["limit"], manifest["settings"]["seed"]) == (4, 1234)
    assert manifest["settings"]["gen_kwargs"] in ({"temperature": "0.5"}, {"temperature": 0.5})
    assert manifest["tasks"]["made_choice"]["n_shots"] == 2
    assert (manifest["tasks"]["made_choice"]["n"], manifest["tasks"]["made_choice"]["total"]) == (4, 16)
    assert manifest["tasks"]["made_document"]["task_type"] == "PERPLEXITY"
    assert len(manifest["tasks"]) == 9
    assert "lm-eval" in manifest["versions"]
    (session,) = manifest["sessions"]
    assert session["seconds"] > 0
    assert session["started"].startswith("20")


@pytest.mark.parametrize("task", ["made_choice", "made_zero", "made_f1"])
def test_multiple_choice(task: str, log: Path, run: Converted) -> None:
    rows = run.rows(task)
    lines = logged(log, task)
    assert [row["id"] for row in rows.values()] == [str(line["doc_id"]) for line in lines] == ["0", "1", "2", "3"]
    for line, row in zip(lines, rows.values(), strict=True):
        scores = [float(given[0][0]) for given in line["resps"]]
        assert row["choice_logprobs"] == scores
        assert row["choices"] == (["no", "yes"] if task == "made_f1" else line["doc"]["choices"])
        assert row["chosen"] == row["extracted"] == row["choices"][scores.index(max(scores))]
        assert row["target"] == row["choices"][int(line["target"])]
        assert row["correct"] == (row["chosen"] == row["target"]) == bool(line["acc"])
        assert row["prompt"] == line["arguments"]["gen_args_0"]["arg_0"]
        assert row["acc"] == line["acc"]
        assert row["doc"] == line["doc"]
    assert run.samples(task)["0"].responses[0][0].is_greedy is False


def test_choices_that_are_scored_again_without_a_prompt(log: Path, run: Converted) -> None:
    row = run.rows("made_mutual")["0"]
    (line,) = [line for line in logged(log, "made_mutual") if line["doc_id"] == 0]
    assert row["choices"] == ["2", "1", "4"]
    assert row["choice_logprobs"] == [float(given[0][0]) for given in line["resps"][:3]]
    assert len(run.samples("made_mutual")["0"].responses[0]) == 6


def test_choices_that_are_parts_of_the_prompt(log: Path, run: Converted) -> None:
    row = run.rows("made_inputs")["0"]
    assert row["choices"] == ["Cats say", "Dogs say"]
    assert [prompt.removesuffix(" ") for prompt in row["prompts"]] == ["Cats say", "Dogs say"]
    assert row["acc"] == logged(log, "made_inputs")[0]["acc"]


def test_filters_are_metrics_of_one_sample(log: Path, run: Converted) -> None:
    lines, rows = logged(log, "made_text"), run.rows("made_text")
    assert (len(lines), len(rows)) == (8, 4)
    strict = [line for line in lines if line["filter"] == "strict-match"]
    for line, row in zip(strict, rows.values(), strict=True):
        assert set(row["values"]) == {"exact_match,strict-match", "exact_match,flexible-extract"}
        assert row["values"]["exact_match,strict-match"] == [line["exact_match"]]
        assert (row["response"], row["extracted"]) == (line["resps"][0][0], line["filtered_resps"][0])
        assert row["target"] == line["target"]


def test_repeats_and_documents(log: Path, run: Converted) -> None:
    texts = [[one.text for repeat in record.responses for one in repeat] for record in run.samples("made_repeats").values()]
    assert texts == [line["resps"][0] for line in logged(log, "made_repeats")]
    assert [len(one) for one in texts] == [3, 3, 3, 3]
    line, row = logged(log, "made_document")[0], run.rows("made_document")["0"]
    (response,) = run.samples("made_document")["0"].responses[0]
    assert response.score == float(line["resps"][0][0])
    assert row["word_perplexity"] == f"[{line['word_perplexity'][0]}, 11.0]"  # eleven words
    assert run.rows("made_last")["0"]["perplexity"] == logged(log, "made_last")[0]["perplexity"]


def test_mill_shows_and_collects_the_run(run: Converted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run.folder.path), "made_choice", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Q: What is 2 plus 2?" in shown
    assert "[choice ' 4']" in shown
    assert main(["collect", "--output_dir", str(run.folder.path.parent.parent), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["task"] for row in rows if row["benchmark"] == "made_group"} == {"made_choice", "made_zero", ""}


def test_a_log_without_samples(log: Path, tmp_path: Path) -> None:
    (tmp_path / log.name).write_bytes(log.read_bytes())
    run = converted(tmp_path / log.name, tmp_path / "run")
    assert run.results.tasks["made_zero"].warnings == ["its samples are not in the log"]
    assert (run.results.tasks["made_zero"].n, run.results.tasks["made_zero"].metrics["acc"].n) == (4, 4)
    assert not run.folder.samples_file("made_zero").exists()
