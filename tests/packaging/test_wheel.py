"""The sdist and the wheel contain what mill's commands need: the wheel is installed and run outside the repository."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

import mill

ROOT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv*", ".demo", ".engines", ".hypothesis", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "results"
)


def outside() -> dict[str, str]:
    """The environment variables of a user who has no checkout."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MILL", "VIRTUAL"))}
    return inherited | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


class Built(NamedTuple):
    sdist: Path
    wheel: Path


class Installed(NamedTuple):
    bin: Path
    package: Path

    def run(self, cwd: Path, program: str, *arguments: str) -> str:
        """What a program of the environment prints; the repository is on no path."""
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, cwd=cwd, env=outside(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy, so that files of an earlier build cannot hide a missing one; the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT, folder / "source", ignore=NOT_SOURCE)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An empty environment with the wheel. Its dependencies are those of this environment, read through a .pth file."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    install = [*pip, "install", "-q", "--no-deps", "--no-index", str(built.wheel)]
    subprocess.run(install, cwd=folder, env=outside(), check=True, timeout=300)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return Installed(folder / "bin", site / "mill")


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_file_of_the_package(built: Built) -> None:
    source = {str(file.relative_to(ROOT)) for file in (ROOT / "mill").rglob("*") if file.is_file()}
    source = {name for name in source if "__pycache__" not in name}
    with zipfile.ZipFile(built.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == source
    assert {"mill/py.typed", "mill/tasks/imagenet_classes.tsv", "mill/view/static/app.js"} <= packed
    assert "mill/models/configs/clip/shapes/open_clip_model.safetensors" in packed


def test_the_sdist_has_what_make_test_needs(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    folders = ["tests", "docs", "examples", "scripts", "benchmarks", ".ci", ".github"]
    wanted = {str(file.relative_to(ROOT)) for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    assert wanted <= packed
    assert {"Makefile", "constraints.txt", ".pre-commit-config.yaml"} <= packed
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "LICENSE"} <= packed


def test_the_metadata_is_complete(built: Built) -> None:
    found = metadata(built.wheel)
    assert (found["Name"], found["Version"], found["License-Expression"]) == ("mill", mill.__version__, "Apache-2.0")
    assert found["Requires-Python"] == ">=3.10" and found["License-File"] == "LICENSE"
    assert "Typing :: Typed" in (found.get_all("Classifier") or [])
    assert found["Author"] is None and found["Author-email"] is None


def test_the_changelog_begins_with_this_version() -> None:
    """With its date, or as unreleased while it is in development."""
    version, in_development, _ = mill.__version__.partition(".dev")
    when = "unreleased" if in_development else r"\d{4}-\d\d-\d\d"
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert re.fullmatch(rf"## {re.escape(version)} \({when}\)", first)


def test_the_installed_package_is_the_one_that_runs(installed: Installed, tmp_path: Path) -> None:
    printed = installed.run(tmp_path, "python", "-c", "import mill, sys; print(mill.__file__, *sys.path, sep='\\n')")
    file, *paths = printed.splitlines()
    assert file == str(installed.package / "__init__.py")
    assert str(ROOT) not in paths and str(ROOT / "tests") not in paths
    for program in ("mill", "infer-check"):
        assert mill.__version__ in installed.run(tmp_path, program, "--version")


def test_the_installed_commands_evaluate_compare_and_report(installed: Installed, tmp_path: Path) -> None:
    listed = installed.run(tmp_path, "mill", "ls", "tasks")
    assert "hellaswag" in listed and "structured-output" in listed
    model = str(installed.package / "models/configs/clip/shapes.py")
    printed = installed.run(tmp_path, "mill", "eval", model, "shapes", "--limit", "8")
    assert "acc5" in printed and "8/512" in printed
    pair = [model, f"{model}[batch_size=2]"]
    installed.run(tmp_path, "mill", "compare", *pair, "--tasks", "shapes", "--limit", "8")
    installed.run(tmp_path, "mill", "report", "results")
    (page,) = (tmp_path / "results").glob("*.html")
    assert "<style>" in page.read_text() and "<script>" in page.read_text()
