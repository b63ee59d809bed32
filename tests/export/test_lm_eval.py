"""Files in lm-eval's format, read by lm-eval, by `datasets`, and by mill's own reader of lm-eval's logs."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from mill.export.lm_eval import file_date, write_lm_eval
from mill.export.run import ExportedRun
from tests.export.made_runs import evaluate, leaks, lines
from tests.export.odd import ESCAPED
from tests.view.conversion import Converted, converted

NAMES = {"odd:choice,x": "odd__choice,x"}  # those that cannot be in the name of a file


@pytest.fixture(scope="module")
def folder(odd_run: ExportedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm_eval")
    assert len(write_lm_eval([odd_run], folder)) == 6  # five tasks and the results
    return folder / "org__odd"


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("results_*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    (file,) = folder.glob(f"samples_{task}_*.jsonl")
    return lines(file)


@pytest.fixture(scope="module")
def back(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    (file,) = folder.glob("results_*.json")
    return converted(file, tmp_path_factory.mktemp("back") / "model" / "default")


def test_results_have_values_errors_and_filters(results: dict[str, Any]) -> None:
    text = results["results"]["odd_text"]
    assert (text["exact_match,none"], text["exact_match_stderr,none"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert text["speed,none"] == math.inf and text["speed_stderr,none"] == "N/A"
    assert results["results"]["odd__choice,x"]["pass@1,strict"] == 0.5
    assert results["results"]["odd__choice,x"]["pass@1_stderr,strict"] == pytest.approx(0.2886751)
    assert results["higher_is_better"]["odd_document"] == {"word_perplexity": False}
    assert results["n-samples"]["odd_text"] == {"original": 4, "effective": 4}
    assert results["mill"]["samples"]["odd_text"] == {"n": 4, "failed": 1, "unanswered": 0}
    assert (results["model_name"], results["model_source"]) == ("org/odd", "odd")


def test_samples_without_a_score_are_left_out(folder: Path) -> None:
    assert [line["doc"]["question"] for line in samples(folder, "odd_text")] == ["plain", "hostile", "long"]
    assert [line["doc_id"] for line in samples(folder, "odd_text")] == [0, 1, 3]


def test_each_kind_of_request(folder: Path) -> None:
    plain, hostile, _ = samples(folder, "odd_text")
    assert (plain["arguments"]["gen_args_0"]["arg_0"], plain["resps"]) == ("plain", [["plain answer"]])
    assert (hostile["filtered_resps"], hostile["exact_match"], hostile["speed"]) == ([ESCAPED], 0.0, math.inf)
    strict = [line for line in samples(folder, "odd__choice,x") if line["filter"] == "strict"]
    none = [line for line in samples(folder, "odd__choice,x") if line["filter"] == "none"]
    assert [line["pass@1"] for line in strict] == [line["acc"] for line in none] == [1.0, 1.0, 0.0, 0.0]
    assert none[0]["arguments"]["gen_args_1"] == {"arg_0": "plain", "arg_1": " no"}
    assert none[0]["resps"] == [[["-1.5", "True"]], [["-2.25", "False"]], [["-inf", "False"]]]
    assert [line["target"] for line in none] == ["0", "0", "1", "1"]
    document = samples(folder, "odd_document")[0]
    assert (document["arguments"], document["resps"]) == ({"gen_args_0": {"arg_0": "plain"}}, [["-10.0"]])
    assert document["word_perplexity"] == [-10.0, 5.0]
    assert samples(folder, "odd_dialog")[0]["resps"] == [["plain answer"]]


def test_hashes_are_those_of_lm_eval(folder: Path, results: dict[str, Any]) -> None:
    found = samples(folder, "odd_document")
    assert found[0]["prompt_hash"] == hashlib.sha256(b"plain").hexdigest()
    joined = "".join(line["doc_hash"] + line["prompt_hash"] + line["target_hash"] for line in found)
    assert results["task_hashes"]["odd_document"] == hashlib.sha256(joined.encode()).hexdigest()


def test_mills_own_reader_finds_the_run_again(odd_run: ExportedRun, back: Converted) -> None:
    for task, result in odd_run.results.tasks.items():
        for metric, estimate in result.metrics.items():
            assert back.results.tasks[NAMES.get(task, task)].metrics[metric].value == estimate.value
    rows = back.rows("odd__choice,x")
    assert [row["target"] for row in rows.values()] == ["yes", "yes", "no", "no"]
    assert rows["0"]["choice_logprobs"] == [-1.5, -2.25, None]
    assert back.manifest["model"]["name"] == "org/odd"


def test_an_extended_run_replaces_its_files(tmp_path: Path) -> None:
    write_lm_eval([evaluate(tmp_path / "run", "odd_text", "--limit", "1")], tmp_path / "out")
    files = sorted(file.name for file in (tmp_path / "out").rglob("*.json*"))
    longer = evaluate(tmp_path / "run", "odd_text")
    write_lm_eval([longer], tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").rglob("*.json*")) == files
    assert len(samples(tmp_path / "out" / "org__odd", "odd_text")) == 3
    assert file_date(longer) in files[0]


def test_repeats_are_draws(tmp_path: Path) -> None:
    run = evaluate(tmp_path / "run", "odd_text", "--repeats", "2", "--limit", "1", "--gen_kwargs", "temperature=0.5")
    write_lm_eval([run], tmp_path / "out")
    line, *others = samples(tmp_path / "out" / "org__odd", "odd_text")
    assert [(one["filter"], one["exact_match"]) for one in others] == [("pass@2", 1.0), ("maj@2", 1.0)]
    assert line["resps"] == [["plain answer", "plain answer"]] and line["exact_match"] == 1.0
    assert line["arguments"]["gen_args_0"]["arg_1"]["temperature"] == 0.5


def test_no_keys(folder: Path) -> None:
    assert leaks(folder) == []


def test_lm_evals_own_functions_read_them(folder: Path, results: dict[str, Any]) -> None:
    utils = pytest.importorskip("lm_eval.utils")
    names = [f"org__odd/{file.name}" for file in folder.iterdir()]
    assert len(utils.get_results_filenames(names)) == 1
    assert {utils.get_file_task_name(Path(name).name) for name in utils.get_sample_results_filenames(names)} == {
        "odd_text", "odd__choice,x", "odd_document", "odd_dialog", "odd_agent",
    }  # fmt: skip
    table = utils.make_table(results)
    assert [cell.strip() for cell in next(row for row in table.splitlines() if "pass@1" in row).split("|")][3] == "strict"
    assert "0.3333" in table and "7.3891" in table
