"""Runs as files in the formats of other tools, each in a folder that is written again by the next export."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from mill.api.errors import MillError, RunError
from mill.api.storage import write_atomically
from mill.export.run import ExportedRun
from mill.export.target import Target, failure
from mill.view.scan import EXPORT_MARKER

EXPORTS = "exports"  # the default folder, in that of the runs
_WRITERS = {
    "hub": ("mill.export.hub", "write_hub"),
    "lm-eval": ("mill.export.lm_eval", "write_lm_eval"),
    "inspect": ("mill.export.inspect_log", "write_inspect"),
    "every-eval-ever": ("mill.export.every_eval_ever", "write_every_eval_ever"),
    "parquet": ("mill.export.parquet", "write_parquet"),
}


def write_target(runs: Sequence[ExportedRun], target: Target, folder: Path, *, samples: bool) -> list[Path]:
    """The files that were written. A marker says to `mill view` that these are runs of mill, not further ones."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, and a folder is needed")
    module, function = _WRITERS[target.name]
    try:
        written: list[Path] = getattr(importlib.import_module(module), function)(runs, folder, samples=samples)
    except MillError:
        raise
    except Exception as error:  # packages that write a format may refuse anything
        raise failure(target, error) from error
    write_atomically(folder / EXPORT_MARKER, "Written by `mill export`.\n", root=folder)
    return written
