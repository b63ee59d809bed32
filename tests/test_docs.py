"""Docs match the program: commands, options, paths and links exist, examples run, the site builds."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
import yaml

from mill.api.identity import constructor_parameters
from mill.api.registry import models, tasks
from mill.checks.glossary import METRICS
from mill.checks.subjects import CHECK_RUNS
from mill.cli.main import COMMANDS, cli, run
from mill.models.hf.model import TransformersModel
from mill.models.spec.backends import builtin_backends
from mill.models.spec.open import described_arguments
from mill.models.spec.parse import Spec, make_spec, parse_spec, split_list
from mill.schedule import CELLS, LOGS, Cluster
from mill.store.folder import MANIFEST, RESULTS, SAMPLES
from mill.store.record import DISTRIBUTIONS
from mill.store.record import FOLDER as RECORD
from mill.store.session import SESSIONS
from mill.tasks.load import load_builtin, make_task

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
# mkdocs with sockets that cannot connect: the site must build without network.
BUILD = (
    "import socket, sys\n"
    "def connect(*_): raise OSError('the build used the network')\n"
    "socket.socket.connect = connect\n"
    "from mkdocs.__main__ import cli\n"
    "cli(['build', '--strict', '--quiet', '--site-dir', sys.argv[1]])\n"
)
TAKE_MODELS = ("eval", "schedule", "compare", "sweep", "diff", "determinism", "stress", "conform")
PROVIDERS = (
    "openai",
    "anthropic",
    "gemini",
    "groq",
    "mistral",
    "deepseek",
    "openrouter",
    "xai",
)  # of hosted models, in LiteLLM
EXTERNAL = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^>]*>|url\(["']?https?:|@import"""
)


def blocks(page: str | Path) -> list[tuple[str, str]]:
    """(language, code) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def code_blocks(page: str | Path, language: str) -> list[str]:
    return [code for name, code in blocks(page) if name == language]


def named_blocks(page: str | Path, language: str) -> dict[str, str]:
    """Blocks whose first line is a comment with a file name."""
    by_comment = {code.split("\n", 1)[0].removeprefix("# ").split(":")[0]: code for code in code_blocks(page, language)}
    return {name: code for name, code in by_comment.items() if re.fullmatch(r"\w+\.\w+", name)}


def spans(page: Path) -> list[str]:
    """Inline code, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `mill` of every command line: in blocks without a language or of a console, and in inline code."""
    lines = [line.removeprefix("$ ") for name, code in blocks(page) if name in ("", "console") for line in code.splitlines()]
    for line in [*lines, *spans(page)] if page.name != "cli.md" else []:
        if re.match(r"(?:mill|infer-check|torchrun .* -m mill|accelerate .* -m mill) [a-z]", line):
            words = shlex.split(line, comments=True)
            yield words[words.index("mill" if "mill" in words else "infer-check") + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    for words in commands(page):
        command = cli.get_command(None, words[0])  # type: ignore[arg-type]
        assert words[0] in COMMANDS and command is not None, words
        if command.context_settings.get("ignore_unknown_options"):  # it passes them on
            continue
        known = {
            option.replace("-", "_")
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        given = {word.lstrip("[").split("=")[0].replace("-", "_") for word in words if word.lstrip("[").startswith("--")}
        assert given <= known, (words, given - known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target
    for span in spans(page):
        if re.fullmatch(r"(?:mill|tests|benchmarks|scripts|docs|examples)/[\w./-]+", span):
            assert (ROOT / span).exists(), span


def test_the_generated_references_are_current() -> None:
    spec = importlib.util.spec_from_file_location("write_cli_docs", ROOT / "scripts/write_cli_docs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/cli.md").read_text() == module.render(), "run: python scripts/write_cli_docs.py"
    assert (ROOT / "docs/models.md").read_text() == module.render_models(), "run: python scripts/write_cli_docs.py"
    assert (ROOT / "docs/export.md").read_text() == module.render_targets(), "run: python scripts/write_cli_docs.py"


def test_the_readme_shows_what_its_command_prints(
    demo_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command on two samples: every line is the same but for its numbers and the width of columns."""
    _, command, *shown = code_blocks("README.md", "console")[0].splitlines()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILL_DATA", str(ROOT / ".demo/data"))
    words = shlex.split(command.removeprefix("$ mill "))
    assert run([{"50": "2"}.get(word, word) for word in words]) == 0

    def outline(lines: list[str]) -> list[str]:
        plain = [re.sub(r"─+", "─", re.sub(r"\d[\d.,]*", "#", " ".join(line.split()))) for line in lines]
        return [line for line in plain if line]

    assert outline(shown) == outline(capsys.readouterr().out.splitlines())


def test_the_metrics_of_checks_are_those_of_the_glossary() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", (ROOT / "docs/checks.md").read_text(), re.MULTILINE)
    assert rows == [(name, metric.title, metric.about) for name, metric in METRICS.items()]


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_every_model_spec_can_be_parsed(page: str) -> None:
    table = re.findall(r"^\| (`.*?) \|", (ROOT / page).read_text().split("| --- |", 1)[1].split("\n\n")[0], re.MULTILINE)
    specs = [spec for row in table for spec in re.findall(r"`([^`]+)`", row)]
    assert len(specs) > 10
    for spec in specs:
        if not spec.startswith("my-backend"):
            parse_spec(spec)


def models_of(words: list[str]) -> Iterator[Spec]:
    """The models that a command line names, parsed as the command does; words in capitals stand for any."""
    command = cli.get_command(None, words[0]) if words[0] in TAKE_MODELS else None  # type: ignore[arg-type]
    if command is None:
        return
    parsed, _, _ = command.make_parser(click.Context(command)).parse_args(words[1:])
    given = {name.partition(" ")[0]: value for name, value in parsed.items()}  # an option has its spelling after its name
    named = [given.get(name) for name in ("models", "model", "a", "b", "spec", "judge", "reuse")]
    for text in [part for value in named if isinstance(value, str) for part in split_list(value)]:
        name = re.sub(r"^\w+=", "", text)  # a label
        if not re.fullmatch("[A-Z]+", name) and "..." not in name and not name.startswith("my-backend"):
            yield make_spec(name, backend=given.get("backend") or "", base_url=given.get("base_url") or "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_models_of_hosted_providers_are_those_of_litellm(page: Path) -> None:
    """`openai/NAME` by itself is a model of the hub."""
    for words in commands(page):
        for spec in models_of(words):
            name = str(spec.arguments.get("path") or spec.arguments.get("model") or "")
            assert (name.partition("/")[0] in PROVIDERS) == (spec.backend == "litellm"), (words, spec)


@pytest.mark.parametrize("name", sorted({backend.name for backend in builtin_backends().values()}))
def test_a_backend_describes_each_of_its_arguments(name: str) -> None:
    parameters = constructor_parameters(models.get(name)).values()
    takes = ["..." if parameter.kind is parameter.VAR_KEYWORD else parameter.name for parameter in parameters]
    described = described_arguments(name)
    assert [argument for argument, _, _ in described] == takes and all(about for _, _, about in described)


def test_every_documented_task_exists() -> None:
    load_builtin()
    table = (ROOT / "docs/tasks.md").read_text().split("| --- |", 1)[1].split("\n\n")[0]
    missing = [name for name in re.findall(r"`([^`]+)`", table) if name not in tasks]
    assert not missing


def test_the_table_of_the_tasks_page_is_a_multiple_choice_task(tmp_path: Path) -> None:
    file = tmp_path / "qa.csv"
    file.write_text(code_blocks("docs/tasks.md", "text")[0])
    task = make_task(str(file))
    assert [task.target(sample) for sample in task.samples()] == ["Jupiter", "carbon dioxide"]
    assert [task.category(sample) for sample in task.samples()] == ["astronomy", "biology"]


def test_run_and_cluster_files_have_known_keys() -> None:
    command = cli.get_command(None, "eval")  # type: ignore[arg-type]
    assert command is not None
    run_file = yaml.safe_load(named_blocks("docs/run-files.md", "yaml")["run.yaml"])
    assert run_file.keys() <= {parameter.name for parameter in command.params}
    cluster = yaml.safe_load(named_blocks("docs/distributed.md", "yaml")["cluster.yaml"])
    assert cluster.keys() == {field.name for field in fields(Cluster)}


def test_every_file_of_a_result_folder_is_in_the_table_of_the_results_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs of every kind that the toy model can make. Whole distributions need a real model: that name is checked alone."""
    table = (ROOT / "docs/results.md").read_text().split("| file | contents |", 1)[1].split("\n\n")[0]
    patterns = [row.replace("RUN", "<model>/<settings>") for row in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)]
    known = [re.compile(re.sub(r"<\w+>", "[^/]+", re.sub(r"[.]", r"\\.", row)).replace("//", "/")) for row in patterns]
    for name in (MANIFEST, RESULTS, SAMPLES, RECORD, DISTRIBUTIONS, SESSIONS, CHECK_RUNS, CELLS, LOGS):
        assert any(name in row.split("/") for row in patterns), name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TOY_N", "2")
    toy = ["--task_paths", str(ROOT / "tests/toy.py")]
    Path("qa.csv").write_text("question,answer\nWhy?,Because\nHow?,So\n")
    (tmp_path / "results/schedule/sessions").mkdir(parents=True)  # as while jobs are submitted to SLURM
    (tmp_path / "results/schedule/sessions/1.json").touch()
    for command in (
        ["eval", "toy[path=a]", "toy_gen,toy_choice", "--apply_chat_template"],
        ["eval", "toy[path=a]", "qa.csv", "--judge", "toy[path=j]"],
        ["eval", "toy[path=a]", "qa.csv", "--judge", "toy[path=j]", "--fresh"],
        ["eval", "toy[path=a]", "qa.csv", "--judge", "toy[path=j]", "--fresh"],
        ["compare", "toy[path=a]", "toy[path=b]", "--tasks", "toy_gen"],
        ["determinism", "--model", "toy[path=a]", "--tasks", "toy_gen", "--runs", "2"],
    ):
        assert run([*command, *toy]) in (0, 1), capsys.readouterr().err
    files = [str(file.relative_to("results")) for file in sorted(Path("results").rglob("*")) if file.is_file()]
    folders = {part for file in files for part in file.split("/")[:-1]}
    assert {"record", "sessions", "samples", "judge", "checks", "runs", "schedule"} <= folders
    assert any(folder.startswith("apply_chat_template=True-") for folder in folders)
    undocumented = [file for file in files if not any(row.match(file) for row in known)]
    assert not undocumented


def test_the_worked_examples_of_contributing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = named_blocks("CONTRIBUTING.md", "python")
    assert sorted(examples) == ["backend.py", "metric.py", "task.py"]
    for name, code in examples.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    for line in "\n".join(code_blocks("CONTRIBUTING.md", "")).splitlines():
        assert not line.startswith("mill eval") or run([*shlex.split(line)[1:], "--output_dir", "out"]) == 0
    assert "exact_match" in capsys.readouterr().out
    scores = [json.loads(file.read_text())["tasks"]["shout"]["metrics"] for file in Path("out").glob("*/*/results.json")]
    assert [(metrics["exact_match"]["value"], metrics["longest"]["value"]) for metrics in scores] == [(1.0, 5.0)]
    # A package with the description of a backend: its name, alias, prefix and address.
    package = Path("my_package")
    package.mkdir()
    (package / "__init__.py").write_text(
        next(code for code in code_blocks("CONTRIBUTING.md", "python") if "BACKEND =" in code)
    )
    model = (
        examples["backend.py"]
        .replace('@register_model("my-backend")\n', "")
        .replace("path: str", "path, host=None, fast='false'")
    )
    (package / "model.py").write_text(model)
    Path("my_package-1.dist-info").mkdir()
    Path("my_package-1.dist-info/entry_points.txt").write_text("[mill.models]\nmy-backend = my_package:BACKEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(models, "_plugins_read", False)
    for spec in ("my-backend:demo", "mine[path=demo]", "turbo:demo"):
        command = [
            "eval",
            spec,
            "shout",
            "--task_paths",
            "task.py,metric.py",
            "--base_url",
            "http://engine",
            "--output_dir",
            spec,
        ]
        assert run(command) == 0, capsys.readouterr().err


def test_the_python_of_the_pages_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    api = named_blocks("docs/api.md", "python")
    groups = re.findall(r"^## .*?(?=^## |\Z)", (ROOT / "docs/api.md").read_text(), re.DOTALL | re.MULTILINE)
    assert groups and all("```python\n# " in group and "\n::: " in group for group in groups)
    for page, name in (
        *(("docs/api.md", name) for name in api),
        ("docs/results.md", "read_samples.py"),
        ("docs/models.md", "my_model.py"),
    ):
        Path(name).write_text(named_blocks(page, "python")[name])
        defined = runpy.run_path(name)
    printed = capsys.readouterr().out
    assert "answered" in printed and "reasoning" in printed
    assert "5 of 5 texts differ" in printed and "True 16 ('\\n',)" in printed and "0.75 (0.19 to 0.99)" in printed
    arguments = {name for name in defined["model"] if name != "type"}
    assert arguments <= constructor_parameters(TransformersModel).keys()


def test_the_python_of_every_page_compiles() -> None:
    blocks = [(page, code) for page in PAGES for code in code_blocks(page, "python")]
    assert blocks and all(compile(code, str(page), "exec") for page, code in blocks)


def test_the_path_of_a_request_names_what_the_code_defines() -> None:
    section = (ROOT / "docs/design.md").read_text().partition("## The path of one request")[2].partition("## Decisions")[0]
    named = {part for name in re.findall(r"`([A-Za-z_.]+)`", section) for part in name.split(".")}
    code = "\n".join(file.read_text() for file in ROOT.glob("mill/**/*.py"))
    modules = {part for file in ROOT.glob("mill/**/*.py") for part in file.relative_to(ROOT).with_suffix("").parts}
    defined = set(re.findall(r"^\s*(?:async def|def|class) (\w+)", code, flags=re.MULTILINE))
    fields = {"resps", "context", "continuation", "loglikelihood", "acc"}
    assert len(named) > 20 and named - defined - modules - fields == set()


def test_the_site_builds_without_network_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    done = subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "MillModel" in (tmp_path / "api.html").read_text() and "A backend" in (tmp_path / "contributing.html").read_text()
    for file in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]:
        assert not EXTERNAL.findall(file.read_text()), file


def test_nothing_names_a_machine_or_a_registry_host() -> None:
    words = re.compile(r"/work/|pypi\.org|files\.pythonhosted|registry\.npmjs|deb\.debian\.org")
    for file in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*"),
        *ROOT.glob("mill/**/*.py"),
        *ROOT.glob("scripts/*"),
        ROOT / "Makefile",
        ROOT / "mkdocs.yml",
    ]:
        assert not file.is_file() or not words.search(file.read_text()), file
