"""Evaluation runs in reports: read, as Markdown and as data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from mill.api.errors import RunError
from mill.checks.gate import RuleOutcome
from mill.checks.result import Check, Variant
from mill.cli.main import run as main
from mill.metrics.paired import rate
from mill.report.sections import (
    CheckSection,
    RunSection,
    check_about,
    find_sections,
    manifest_about,
    read_run,
    report_markdown,
)
from mill.store.folder import RunFolder, find_runs
from mill.store.schema import Results
from mill.view.offline import results_page

TOY = str(Path(__file__).parents[1] / "toy.py")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_NAME", "sk-secret-123456")


def evaluate(tasks: str, *words: str, code: int = 0, model: str = "toy[path=a,api_key=$SOME_NAME]") -> RunFolder:
    assert main(["eval", model, tasks, "--task_paths", TOY, "--output_dir", "out", "--quiet", *words]) == code
    return find_runs(Path("out"))[0]


def no_rules(_: Check) -> list[RuleOutcome]:
    return []


def as_markdown(path: Path) -> str:
    return report_markdown(find_sections(path), no_rules)


def rows(folder: RunFolder, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.samples_file(task).read_text().splitlines()]


def test_a_run_has_its_scores_samples_and_what_ran() -> None:
    folder = evaluate("toy_all,toy_choice", "--limit", "12")
    section = read_run(folder)
    assert list(section.results.tasks) == ["toy_gen", "toy_gen2", "toy_choice"]
    assert dict(section.about) | {"versions": ""} == {"model": "a", "path": "a", "backend": "toy", "versions": ""} | {
        "arguments": dict(section.about).get("arguments", "")
    }
    found = section.results.tasks["toy_choice"].metrics["acc"].value
    mean = section.results.benchmarks["toy_all"].metrics["exact_match"].value
    assert section.main_scores == f"toy_all exact_match {mean:.3f}, toy_choice acc {found:.3f}"
    text = as_markdown(folder.path)
    assert "sk-secret" not in text and text.startswith("### mill eval: a on toy\\_gen, toy\\_gen2, toy\\_choice\n")
    line = next(line for line in text.splitlines() if line.startswith("| toy\\_choice | 0 | acc |"))
    estimate = section.results.tasks["toy_choice"].metrics["acc"]
    assert f"| {estimate.value:.4f} | {estimate.stderr:.4f} | {estimate.low:.3f}–{estimate.high:.3f} | 12/40 | 0 |" in line
    assert "| toy\\_all (mean of 2) |" in text and not section.unfinished


def test_a_run_that_was_never_finished_is_shown_as_such() -> None:
    folder = evaluate("toy_gen,toy_choice", "--limit", "3")
    (folder.path / "results.json").unlink()
    section = read_run(folder)
    assert section.unfinished == (
        "This run was not finished: it has no results.json. The last session finished. The same command resumes it."
    )
    assert section.main_scores == "not finished" and json.loads(json.dumps(section.to_dict()))["finished"] is False
    assert "was not finished" in as_markdown(folder.path)


def test_a_folder_with_checks_and_runs_has_an_index() -> None:
    evaluate("toy_gen", "--limit", "3")
    compare = ["compare", "toy[path=a]", "toy[path=b]", "--tasks", "toy_gen,toy_choice", "--limit", "4"]
    assert main([*compare, "--task_paths", TOY, "--output_dir", "out", "--quiet", "--no_report"]) == 0
    assert len(find_runs(Path("out"))) == 3
    check, *runs = find_sections(Path("out"))
    assert isinstance(check, CheckSection) and all(isinstance(run, RunSection) for run in runs)
    assert [label for label, _ in check.about] == ["a", "b"] and ("path", "b") in check.about[1][1]
    text = as_markdown(Path("out"))
    index = [line.split(" | ") for line in text.splitlines()[:4]]
    assert index[0][:3] == ["| what", "name", "when"] and index[2][0] == "| [compare](#section-1)"
    assert index[3][0] == "| [eval](#section-2)" and index[3][3].startswith("toy\\_gen exact\\_match ")
    assert text.count('<a id="section-') == 4
    assert main(["report", "out", "--format", "json", "--output", "all.json"]) == 0
    assert json.loads(Path("all.json").read_text())["command"] == "compare"
    assert main(["report", str(find_runs(Path("out"))[0].path), "--format", "json", "--output", "run.json"]) == 0
    assert json.loads(Path("run.json").read_text())["tasks"]["toy_gen"]["n"] in (3, 4)


def test_the_score_of_a_judged_run_in_the_index_is_the_judges() -> None:
    section = read_run(evaluate("toy_gen", "--limit", "3"))
    (task,) = section.results.tasks.values()
    judged = dataclasses.replace(task, metrics={**task.metrics, "judge": rate(2, 3)})
    run = dataclasses.replace(section, results=Results(tasks={"toy_gen": judged}))
    assert run.main_scores == "toy_gen judge 0.667"


def test_junit_is_about_checks(capsys: pytest.CaptureFixture[str]) -> None:
    folder = evaluate("toy_gen", "--limit", "2")
    assert main(["report", str(folder.path), "--format", "junit"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "has evaluation runs and no check; junit is the form of checks" in err
    for path in (folder.path, folder.path.parent, Path("out")):
        assert main(["report", str(path), "--format", "md", "--output", "-"]) == 0
        assert "mill eval: a on toy" in capsys.readouterr().out
    assert main(["report", str(folder.path)]) == 0 and (folder.path / "report.html").is_file()


def test_a_damaged_run_is_left_out_of_a_folder_and_refused_alone(caplog: pytest.LogCaptureFixture) -> None:
    folder = evaluate("toy_gen", "--limit", "2")
    evaluate("toy_gen", "--limit", "2", model="toy[path=b]")
    (folder.path / "results.json").write_text("{")
    (section,) = find_sections(Path("out"))
    assert isinstance(section, RunSection) and section.manifest["model"]["name"] == "b"
    assert "left out: " in caplog.text and "results.json is not valid" in caplog.text
    with pytest.raises(RunError, match="not valid"):
        find_sections(folder.path)


def test_a_score_beyond_every_axis_is_in_the_table() -> None:
    run = evaluate("toy_gen", "--limit", "3", model="toy[path=b]")
    evaluate("toy_gen", "--limit", "3")
    content = json.loads((run.path / "results.json").read_text())
    task = next(iter(content["tasks"].values()))
    for metric in task["metrics"].values():
        metric.update(value=1e308, low=-1e308, high=1e308)
    (run.path / "results.json").write_text(json.dumps(content))
    assert "1.000e+308" in as_markdown(Path("out")) and results_page(Path("out"))


def test_names_and_errors_are_no_markdown() -> None:
    bad = "````\n# x <script>alert(1)</script>\n```\n| a | b |\n\x1b[31m![i](http://y)"
    folder = evaluate("toy_gen", "--limit", "2")
    content = json.loads((folder.path / "results.json").read_text())
    task = content["tasks"]["toy_gen"]
    task |= {"errors": 1, "failures": [{"id": bad, "error": bad}], "warnings": [bad]}
    task["metrics"] = {bad: next(iter(task["metrics"].values()))}
    (folder.path / "results.json").write_text(json.dumps(content))
    tokens = MarkdownIt("commonmark").enable("table").parse(as_markdown(folder.path))
    kinds = [token.type for token in tokens]
    assert (kinds.count("table_open"), kinds.count("heading_open"), kinds.count("fence")) == (1, 1, 0)
    assert "html_block" not in kinds and "\x1b" not in as_markdown(folder.path)
    inline = [child.type for token in tokens if token.type == "inline" for child in token.children or []]
    assert "html_inline" not in inline and "image" not in inline and "link_open" not in inline


def test_what_ran_is_read_from_the_manifest_of_the_run_or_else_from_the_check(tmp_path: Path) -> None:
    evaluate("toy_gen", "--limit", "2", "--seed", "3")
    folder = find_runs(Path("out"))[0]
    variant = Variant("b", model="a", backend="toy", run=str(folder.path))
    check = Check("compare", ["toy_gen"], [variant], "a", baseline_model="base", baseline_backend="hf")
    (first, known), (second, read) = check_about(check)
    assert (first, known) == ("a", [("model", "base"), ("backend", "hf")])
    assert second == "b" and ("settings", "seed=3") in read
    moved = Path("elsewhere/results")
    moved.parent.mkdir()
    Path("out").rename(moved)
    assert dict(check_about(check)[1][1]) == {"model": "a", "backend": "toy"}
    file = moved / "checks" / "compare-b" / "check.json"
    assert ("settings", "seed=3") in check_about(check, file)[1][1]  # beside the check, wherever that is


def test_what_ran_has_the_path_the_dtype_and_the_engine() -> None:
    model = {"name": "m", "backend": "hf", "arguments": {"path": "/models/m", "dtype": "auto", "revision": "x"}}
    manifest = {"model": {**model, "identity": {"dtype": "bfloat16"}}, "settings": {"n_shots": 5, "repeats": 1}}
    assert manifest_about({**manifest, "versions": {"mill": "1", "torch": "2", "numpy": "3"}}) == [
        ("model", "m"),
        ("path", "/models/m"),
        ("backend", "hf"),
        ("dtype", "bfloat16"),
        ("arguments", "revision=x"),
        ("settings", "n_shots=5"),
        ("versions", "mill 1, torch 2"),
    ]
    odd = {"model": {"name": "m", "arguments": 3, "identity": []}, "settings": {}, "versions": "none"}
    assert manifest_about(odd) == [("model", "m")]


def test_the_page_says_which_paths_gave_the_answers_and_how_they_were_verified() -> None:
    folder = evaluate("toy_choice")
    manifest = json.loads((folder.path / "manifest.json").read_text())
    path = "packed: 6 requests; verified: 2 rows, largest difference 0.04 nats (noise 0.05)"
    manifest["sessions"][-1]["paths"] = {"scoring": path}
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    assert f"- scoring: {path}" in as_markdown(folder.path)
    assert f"scoring: {path}" in results_page(folder.path).decode()
