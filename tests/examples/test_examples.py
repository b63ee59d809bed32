"""Every file in examples/ runs, without a network."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mill.cli.main import run
from tests.conftest import make_tiny_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CORPUS = "".join(
    f"The capital of {country} is {capital}.\n"
    for country, capital in {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Oslo"}.items()
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a copy of the examples."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def open_clip() -> Any:
    return pytest.importorskip("open_clip", reason="open_clip is not installed")


def results(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("results/*/*/results.json")
    tasks: dict[str, Any] = json.loads(file.read_text())["tasks"]
    return tasks


def test_the_examples_are_those_that_are_tested() -> None:
    names = {"custom_backend.py", "custom_task.py", "evaluate.py", "quantization_gate.yml", "sweep.sh"}
    assert {file.name for file in EXAMPLES.iterdir() if file.is_file()} == names


def test_the_custom_task_on_the_custom_backend(folder: Path) -> None:
    """The corpus has three of six capitals right and one wrong; the others get the shortest choice, Lima."""
    Path("corpus.txt").write_text(CORPUS)
    assert run(["eval", "custom_backend.py[path=corpus.txt,order=12]", "capitals", "--task_paths", "custom_task.py"]) == 0
    metrics = results(folder)["capitals"]["metrics"]
    assert (metrics["acc"]["value"], metrics["acc"]["n"]) == (0.5, 6)


def test_the_custom_backend_passes_the_conformance_checks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("corpus.txt").write_text(CORPUS + (ROOT / "README.md").read_text())
    code = run(["conform", "custom_backend.py[path=corpus.txt]"])
    printed = capsys.readouterr().out
    assert code == 0 and " 0 failed" in printed, printed


def test_evaluate_from_python(folder: Path, open_clip: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("evaluate.py", run_name="example")["main"]()
    printed = capsys.readouterr().out
    assert re.search(r"^ *shapes +acc +1\.0", printed, re.MULTILINE) and "0 of 32 samples are wrong" in printed, printed


def test_the_sweep_and_its_report(
    folder: Path, open_clip: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script in bash, which prints the words of its commands instead of running them; then these."""
    printed = "mill() { printf '%s\\0' \"$@\" ''; }; export -f mill; ./sweep.sh"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", printed], env=environment, capture_output=True, text=True, check=True)
    sweep, report = (words.split("\0") for words in done.stdout.removesuffix("\0\0").split("\0\0"))
    assert run(sweep) == 0 and "bf16" in (shown := capsys.readouterr().out) and "f16" in shown
    assert run(report) == 0 and "<html" in Path("results/report.html").read_text()


def workflow_commands() -> list[str]:
    """The mill commands of the workflow, in order."""
    steps = yaml.safe_load((EXAMPLES / "quantization_gate.yml").read_text())["jobs"]["gate"]["steps"]
    return [step["run"] for step in steps if step.get("run", "").startswith("mill ")]


@pytest.mark.parametrize(("seed", "codes"), [(0, [0, 0]), (1, [0, 3])], ids=["same weights in bfloat16", "other weights"])
def test_the_quantization_gate(
    folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, seed: int, codes: list[int]
) -> None:
    quantized = make_tiny_model(folder / "models/quantized", bos=True, seed=seed)
    monkeypatch.setenv("BASELINE", f"hf[path={tiny_model},dtype=float32,device_map=cpu]")
    monkeypatch.setenv("CANDIDATE", f"hf[path={quantized},dtype={'bfloat16' if seed == 0 else 'float32'},device_map=cpu]")
    assert [run(shlex.split(os.path.expandvars(command))[1:]) for command in workflow_commands()] == codes
    assert "<testsuite" in Path("gate.xml").read_text() and len(list(Path("results/checks").glob("*/report.html"))) == 1
