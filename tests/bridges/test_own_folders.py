"""Folders of the user's own YAML tasks: what is broken in them is named, with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from mill.api.errors import DataError, UnknownName
from mill.api.registry import tasks
from mill.api.task import RenderSettings
from mill.bridges.lm_eval import library
from mill.cli.main import run as main
from mill.options.option import one_call
from mill.tasks import load
from mill.tasks.load import load_files, select
from tests.bridges.hash_model import HashModel  # noqa: F401  registers the model
from tests.bridges.made_tasks import ROWS, YAML, write_tasks
from tests.plans import prepare

TASK_FILE = """
from mill.api.registry import tasks
from mill.api.task import Benchmark

tasks.add("own_python_benchmark", Benchmark("own_python_benchmark", ("toy_gen",)))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, beside an lm-eval with made tasks."""
    made, data = write_tasks(tmp_path)
    monkeypatch.setenv("MILL_DATA", str(data))
    monkeypatch.setattr(library, "tasks_folder", lambda: made)
    monkeypatch.setattr(load, "_opened", {})
    own = tmp_path / "own"
    own.mkdir()
    return own


def own_task(folder: Path, text: str = "", name: str = "own") -> None:
    (folder / f"{name}.yaml").write_text(YAML["made_zero"].replace("made_zero", name) + text)


def test_a_file_that_does_not_parse_is_left_out_with_its_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    own_task(folder)
    (folder / "broken.yaml").write_text("task: [broken\nmetric_list: x\n")
    own_task(folder, "generation_kwargs: [1, 2\nother: 3\n", name="own_too")
    load_files((str(folder),))
    assert "a task file is left out" in caplog.text and "broken.yaml, line 2" in caplog.text
    assert "own_too.yaml, line " in caplog.text
    assert [task.name for task in select(["lm-eval:own"]).tasks] == ["lm-eval:own"]
    with pytest.raises(UnknownName):
        select(["lm-eval:own_too"])


@pytest.mark.parametrize("included", ["missing.yaml", "own.yaml"])
def test_an_include_that_cannot_be_read_is_named(folder: Path, included: str, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "own.yaml").write_text(f"include: {included}\ntask: own\n")
    load_files((str(folder),))
    assert f"own.yaml includes {folder.resolve() / included}" in caplog.text


def test_groups_that_contain_each_other_are_refused(folder: Path) -> None:
    (folder / "a.yaml").write_text("group: group_a\ntask: [group_b]\n")
    (folder / "b.yaml").write_text("group: group_b\ntask: [group_a]\n")
    load_files((str(folder),))
    with pytest.raises(DataError, match="contains itself"):
        select(["lm-eval:group_a"])


def test_an_empty_split_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "made" / "up" / "test.jsonl").write_text("")
    own_task(folder)
    load_files((str(folder),))
    with pytest.raises(DataError, match=r"test\.jsonl has no rows"):
        select(["lm-eval:own"])


def test_gold_answers_that_are_no_choice_are_counted(folder: Path, tmp_path: Path) -> None:
    rows = [{**row, "gold": gold} for row, gold in zip(ROWS, (0, 9, 1, 7), strict=False)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "data" / "made" / "up" / "test.jsonl").write_text(lines)
    own_task(folder)
    load_files((str(folder),))
    run = prepare("hash-model", select(["lm-eval:own"]), RenderSettings(), output_dir=tmp_path / "out")
    (result,) = run.execute(quiet=True).tasks
    assert result.n == 4 and result.warnings == [
        "2 samples have a gold answer that is none of the choices: wrong, as in lm-eval"
    ]


def test_code_that_exits_while_it_scores_fails_its_samples(folder: Path, tmp_path: Path) -> None:
    (folder / "utils.py").write_text("import sys\n\ndef score(doc, results):\n    sys.exit(0)\n")
    own_task(folder, "process_results: !function utils.score\n")
    load_files((str(folder),))
    run = prepare("hash-model", select(["lm-eval:own"]), RenderSettings(), output_dir=tmp_path / "out", limit=2)
    (result,) = run.execute(quiet=True).tasks
    assert result.errors == 2 and "SystemExit" in result.failures[0]["error"]


def test_python_tasks_beside_a_yaml_file_without_tasks_are_registered(folder: Path) -> None:
    (folder / "cluster.yaml").write_text("nodes: 3\n")
    (folder / "tasks.py").write_text(TASK_FILE)
    load_files((str(folder),))
    assert "own_python_benchmark" in tasks


def test_an_exception_of_a_task_has_the_line_of_its_code(folder: Path) -> None:
    (folder / "utils.py").write_text("def process(docs):\n    raise AttributeError\n")
    own_task(folder, "process_docs: !function utils.process\n")
    load_files((str(folder),))
    with pytest.raises(DataError, match=r"lm-eval:own.*AttributeError \(utils\.py, line 2\)"):
        select(["lm-eval:own"]).tasks[0].samples()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric_list: []\n", "has an empty metric_list"),
        ("filter_list: []\n", "has an empty filter_list"),
    ],
)
def test_settings_that_would_measure_nothing_are_refused(folder: Path, text: str, message: str) -> None:
    given = YAML["made_zero"].replace("made_zero", "own")
    key = text.partition(":")[0]
    kept = "".join(line for line in given.splitlines(keepends=True) if not line.startswith(key))
    (folder / "own.yaml").write_text(kept + text)
    load_files((str(folder),))
    with pytest.raises(DataError, match=message):
        select(["lm-eval:own"])


def test_a_yaml_file_in_place_of_a_task_names_the_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_task(folder)
    assert main(["eval", "hash-model", str(folder / "own.yaml")]) == 2
    assert "--include_path DIR" in capsys.readouterr().err


def test_a_group_lists_its_members(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "tasks", "lm-eval:made_tag", "--format", "csv"]) == 0
    listed = capsys.readouterr().out
    assert listed.splitlines()[1:] == [
        "lm-eval:made_tag,tag of 2",
        'lm-eval:made_choice,"task, in made_tag"',
        'lm-eval:made_zero,"task, in made_tag"',
    ]


def test_an_edited_file_is_read_again_by_the_next_call(folder: Path) -> None:
    versions = []
    for version in (1, 2):
        own_task(folder, f"metadata:\n  version: {version}\n")
        with one_call({}):
            load_files((str(folder),))
            versions += [str(task.version).rpartition(" ")[2] for task in select(["lm-eval:own"]).tasks]
    assert versions == ["1", "2"]
    with one_call({}), pytest.raises(UnknownName):
        select(["lm-eval:own"])
