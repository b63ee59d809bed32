"""Runs of the exam of `toy_exam.py`."""

from __future__ import annotations

from pathlib import Path

from mill.cli.main import run
from tests import toy_exam  # noqa: F401  registers the model and the tasks


def run_exam(folder: Path, model: str, *options: object, tasks: str = "toy_exam") -> Path:
    """The folder of the run that these options of `mill eval` make."""
    assert run(["eval", f"exam[{model}]", tasks, "--output_dir", str(folder), *map(str, options)]) == 0
    (manifest,) = folder.glob("*/*/manifest.json")
    return manifest.parent
