"""Workflows name commands and versions of Python that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted([*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("examples/*.yml")])


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def read(file: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(file.read_text())
    return content


def steps_of(file: Path) -> list[dict[str, Any]]:
    return [step for job in read(file)["jobs"].values() for step in job["steps"]]


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
