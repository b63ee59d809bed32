"""The files that configure hooks, workflows and issue templates are valid and name commands that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", *ROOT.glob("examples/*.yml")])
WORKFLOWS = [file for file in FILES if file.parent.name in ("workflows", "examples")]
TEMPLATES = [file for file in FILES if file.parent.name == "ISSUE_TEMPLATE" and file.name != "config.yml"]


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def read(file: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(file.read_text())
    return content


def steps_of(file: Path) -> list[dict[str, Any]]:
    return [step for job in read(file)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_yaml_file_is_a_mapping(file: Path) -> None:
    assert isinstance(read(file), dict)


@pytest.mark.parametrize("file", WORKFLOWS, ids=name_of)
def test_a_workflow_has_triggers_and_jobs_with_steps(file: Path) -> None:
    workflow = read(file)
    assert workflow["name"] and workflow[True]  # YAML 1.1 reads the key `on` as true
    for job in workflow["jobs"].values():
        assert job["runs-on"] and job["timeout-minutes"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@v\d+", step["uses"]) for step in steps_of(file) if "uses" in step)


@pytest.mark.parametrize("file", WORKFLOWS, ids=name_of)
def test_the_make_commands_of_a_workflow_are_targets(file: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [step["run"].split() for step in steps_of(file) if step.get("run", "").startswith("make ")]
    assert all(command[1] in targets for command in commands)


def test_the_matrix_is_that_of_the_classifiers() -> None:
    versions = read(ROOT / ".github/workflows/check.yml")["jobs"]["check"]["strategy"]["matrix"]["python-version"]
    assert versions == re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    assert f">={versions[0]}" in (ROOT / "pyproject.toml").read_text()
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in versions


@pytest.mark.parametrize("file", TEMPLATES, ids=name_of)
def test_an_issue_template_has_the_required_fields(file: Path) -> None:
    template = read(file)
    assert template["name"] and template["description"]
    ids = [field["id"] for field in template["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["type"] in ("textarea", "input") and field["attributes"]["label"] for field in template["body"])


def test_the_pre_commit_hooks_are_valid_and_local() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib", reason="pre-commit is not installed")
    config = clientlib.load_config(str(ROOT / ".pre-commit-config.yaml"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    assert [hook["id"] for repo in config["repos"] for hook in repo["hooks"]] == ["ruff", "ruff-format", "mypy"]
