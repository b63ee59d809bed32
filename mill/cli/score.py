"""`mill score RUN`: score a recorded run again, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mill.cli.options import option, options, split_paths
from mill.cli.values import FilePath
from mill.options.definitions import refuse_unused_image
from mill.options.option import one_call
from mill.report.scores import print_outcome
from mill.runs.folder import RunFolder
from mill.runs.rescore import score_again
from mill.tasks.load import load_builtin, load_files


@click.command("score")
@click.argument("run", type=FilePath())
@option("repeat_metrics")
@option("task_paths")
@options(("confirm_run_unsafe_code", "sandbox", "sandbox_image"))
@click.pass_context
def command(
    ctx: click.Context, /, run: str, repeat_metrics: list[str] | None, task_paths: tuple[list[str], ...], **switches: Any
) -> int:
    """Score the answers recorded in the folder RUN with the tasks as they are now; this needs no model and no data.

    \b
    Example:
      mill score results/SmolLM2-135M-Instruct-1a2b3c4d/default
      mill score results/SmolLM2-135M-Instruct-1a2b3c4d/repeats-10 --repeat_metrics pass@1,pass@3,maj@5
    """
    refuse_unused_image(switches["sandbox"], switches["sandbox_image"])
    ctx.with_resource(one_call(switches))
    load_builtin()
    load_files(tuple(split_paths(task_paths)))
    outcome = score_again(RunFolder(Path(run)), repeat_metrics)
    print_outcome(outcome)
    return int(not outcome.complete)
