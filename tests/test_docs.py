"""What the documents say is what the program does: commands exist, help is current, worked examples run."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from mill.checks.glossary import METRICS
from mill.cli.main import COMMANDS, cli, run

ROOT = Path(__file__).parent.parent


def code_blocks(file: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / file).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [block for name, block in fenced if name == language]


def test_the_command_line_reference_is_current() -> None:
    spec = importlib.util.spec_from_file_location("write_cli_docs", ROOT / "scripts/write_cli_docs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/cli.md").read_text() == module.render(), "run: python scripts/write_cli_docs.py"


def test_the_two_commands_of_the_readme_are_targets_and_ci_runs_the_second() -> None:
    first = code_blocks("README.md", "")[0]
    commands = [line.split("#")[0].strip() for line in first.splitlines()]
    assert commands == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo:", makefile, re.MULTILINE) and re.search(r"^test:", makefile, re.MULTILINE)
    ci = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert ci[-1] == "make test"


def test_every_option_the_readme_uses_exists() -> None:
    for line in "\n".join(code_blocks("README.md", "")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["mill"]:
            command = cli.get_command(None, words[1])  # type: ignore[arg-type]
            assert words[1] in COMMANDS and command is not None
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known


def test_the_figures_of_checks_are_those_of_the_glossary() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", (ROOT / "docs/checks.md").read_text(), re.MULTILINE)
    assert rows == [(name, figure.title, figure.about) for name, figure in METRICS.items()]


def test_the_commands_of_the_document_on_checks_exist() -> None:
    for line in "".join(code_blocks("docs/checks.md", "")).splitlines():
        words = shlex.split(line, comments=True)
        command = cli.get_command(None, words[1])  # type: ignore[arg-type]
        assert words[0] == "mill" and command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.replace("-", "_")[2:] for word in words if word.startswith("--")} <= {
            option.replace("-", "_")[2:] for option in known
        }


def test_the_worked_examples_of_contributing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in code_blocks("CONTRIBUTING.md", "python"):
        (tmp_path / block.split("\n", 1)[0].removeprefix("# ")).write_text(block)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["backend.py", "metric.py", "task.py"]
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("mill_file_")]:
        monkeypatch.delitem(sys.modules, name)
    for line in "\n".join(code_blocks("CONTRIBUTING.md", "")).splitlines():
        assert run([*shlex.split(line)[1:], "--output_dir", "out"]) == 0
    assert "exact_match" in capsys.readouterr().out
    results = [json.loads(file.read_text())["tasks"]["shout"]["metrics"] for file in Path("out").glob("*/*/results.json")]
    assert [(found["exact_match"]["value"], found["longest"]["value"]) for found in results] == [(1.0, 5.0)]


def test_nothing_names_a_machine_or_a_registry_host() -> None:
    words = re.compile(r"/work/|pypi\.org|files\.pythonhosted|registry\.npmjs|deb\.debian\.org")
    for file in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*"),
        *ROOT.glob("mill/**/*.py"),
        *ROOT.glob("scripts/*"),
        ROOT / "Makefile",
    ]:
        assert not file.is_file() or not words.search(file.read_text()), file
