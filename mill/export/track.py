"""Stores a run in a tracker: `mill export --to mlflow`, and the end of a run that is logged while it runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mill.api.errors import MillError
from mill.export.parquet import write_samples
from mill.export.run import ExportedRun
from mill.export.target import MLFLOW, Target, failure
from mill.export.tracker import Tracker, tracked
from mill.report.html import report_page
from mill.report.runs import read_run
from mill.runs.folder import RESULTS
from mill.support.files import read_bytes, write_atomically

DEFAULT_PROJECT = "mill"


def open_tracker(target: Target, *, project: str = "", offline: bool = False) -> Tracker:
    """A tracker for one run; nothing is connected yet. `project` is the experiment of MLflow."""
    if target.name == MLFLOW:
        from mill.export.mlflow_tracker import MlflowTracker

        return MlflowTracker(target.address, project or DEFAULT_PROJECT)
    from mill.export.wandb_tracker import WandbTracker

    return WandbTracker(target.name, target.address or project or DEFAULT_PROJECT, offline=offline)


def track(
    run: ExportedRun, target: Target, *, project: str = "", offline: bool = False, samples: bool = True, report: bool = True
) -> str:
    """Store a run, or what has changed of it. Returns where it is."""
    try:
        tracker, entry = open_tracker(target, project=project, offline=offline), tracked(run)
        tracker.start(entry)
        with tempfile.TemporaryDirectory() as folder:
            write_files(run, Path(folder), samples=samples, report=report)
            return tracker.finish(entry, Path(folder))
    except MillError:
        raise
    except Exception as error:  # packages of trackers raise anything
        raise failure(target, error) from error


def write_files(run: ExportedRun, folder: Path, *, samples: bool, report: bool) -> None:
    """results.json, samples.parquet and report.html of a run."""
    results = run.folder.path / RESULTS
    if results.exists():
        write_atomically(folder / RESULTS, read_bytes(results), root=folder, sync=False)
    if samples:
        write_samples([run], folder / "samples.parquet", folder)
    if report:
        write_atomically(folder / "report.html", report_page([read_run(run.folder)]), root=folder, sync=False)
