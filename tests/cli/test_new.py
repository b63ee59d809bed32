"""The files of `mill new` run as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mill.cli.main import run

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_generated_files_run_and_their_tests_pass(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    for what in ("task", "backend"):
        assert run(["new", what, f"my_{what}"]) == 0
    assert capsys.readouterr().out.startswith(
        "written: my_task.py\nwritten: test_my_task.py\ntry: mill eval MODEL my_task.py"
    )
    assert not [file for file in folder.glob("*.py") if "NAME" in file.read_text() or "CLASS" in file.read_text()]
    assert run(["eval", "my_backend.py", "my_task.py", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "my_backend" in out and "my_task" in out and "exact_match" in out
    names = [f"test_my_{what}.py" for what in ("task", "backend")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout


def test_a_new_backend_passes_the_conformance_tests_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "backend", "fresh_engine"]) == 0
    assert run(["conform", "fresh_engine.py"]) == 0
    out = capsys.readouterr().out
    assert "13 passed, 0 failed, 7 skipped" in out, out


REFUSED = [
    (["task", "mine"], "mine.py exists"),
    (["task", "other"], "test_other.py exists"),
    (["task", "gsm8k"], "there is a task gsm8k already"),
    (["backend", "vllm"], "there is a backend vllm already"),
    (["backend", "huggingface"], "there is a backend huggingface already"),
    (["backend", "smollm2_135m_instruct"], "there is a backend smollm2_135m_instruct already"),
    (["task", "x" * 65], "a name has at most 64 lower-case letters"),
    (["task", "conftest"], "conftest is a Python module"),
    (["task", "json"], "json is a Python module"),
    (["task", "Bad-name"], "a name has at most 64 lower-case letters, digits and _"),
    (["task", "../up"], "a name has at most 64 lower-case letters, digits and _"),
    (["task", "class"], "a name has at most 64 lower-case letters, digits and _"),
    (["tsk", "x"], "'tsk' is not one of"),
]


def test_what_would_overwrite_or_hide_something_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "mine.py").write_text("own")
    (folder / "test_other.py").write_text("own")
    for argv, words in REFUSED:
        assert run(["new", *argv]) == 2
        err = capsys.readouterr().err
        assert words in err and len(err.splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["mine.py", "test_other.py"]


def test_a_task_file_without_tasks_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "empty_file.py").write_text("")
    assert run(["eval", "hf[path=org/name]", "empty_file.py"]) == 2
    assert "the task file empty_file.py registers no task" in capsys.readouterr().err
