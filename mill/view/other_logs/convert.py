"""Converts the log of another tool to a run's folder."""

from __future__ import annotations

from pathlib import Path

from mill.api.errors import RunError
from mill.runs.folder import RunFolder
from mill.view.other_logs.find import LM_EVAL, OtherLog
from mill.view.other_logs.inspect_run import convert_inspect
from mill.view.other_logs.lm_eval_run import convert_lm_eval


def convert_log(log: OtherLog, target: Path) -> None:
    """Write manifest.json, results.json and the samples of a log to the folder `target`, in mill's own format.

    Scores are the tool's own. A file that cannot be read is a RunError; a sample that cannot be read is counted and
    reported with its task.
    """
    convert = convert_lm_eval if log.tool == LM_EVAL else convert_inspect
    try:
        convert(log, RunFolder(target))
    except FileNotFoundError as error:
        raise RunError(f"cannot read {error.filename or log.path}: there is no such file") from error
