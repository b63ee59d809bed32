"""`mill export RUN... --to TARGET`: results in trackers and in the formats of other tools."""

from __future__ import annotations

from pathlib import Path

import click

from mill.api.errors import SpecError, install_command
from mill.cli.options import FilePath
from mill.export.run import select_runs
from mill.export.target import EXPORTS, Exporter, Target, known_exporters, names_taking, parse_target, write_target
from mill.export.tracker import track
from mill.support.terminal import echo

EXAMPLES = """
\b
Examples:
  mill export results --to parquet                      (runs, scores and samples, for pandas and DuckDB)
  mill export results/smollm2-1a2b3c4d/default --to mlflow:http://127.0.0.1:5000
  mill export results --to mlflow:sqlite:///mlflow.db --project quantization
  mill export results --to wandb:my-team/evals --offline
  mill export results --to trackio --no_report
  mill export results --to lm-eval --out lm_eval_results
  mill export results --to hub --out model_card
"""


def _line(exporter: Exporter) -> str:
    """What a target stores, and what installs its package."""
    name = f"{exporter.name}[:{exporter.address}]" if exporter.address else exporter.name
    install = f"; {install_command(exporter.extra)}" if exporter.extra else ""
    return f"{name}: {exporter.about.replace('`', '')}{install}"


TARGETS = known_exporters()


@click.command("export", epilog="\n\n".join(["Targets:", *map(_line, TARGETS.values()), EXAMPLES]))
@click.argument("runs", nargs=-1, required=True, type=FilePath())
@click.option("--to", required=True, metavar="TARGET", help=f"{', '.join(TARGETS)}; more below.")
@click.option("--out", type=FilePath(), default=None, help="Folder of the files. [default: exports/TARGET in RUN]")
@click.option("--project", default="", help="Project of wandb and trackio, experiment of MLflow. [default: mill]")
@click.option("--offline", is_flag=True, help="wandb: write to a folder, for `wandb sync`.")
@click.option("--no_samples", is_flag=True, help="Scores alone.")
@click.option("--no_report", is_flag=True, help="Trackers: without the HTML report.")
def command(
    runs: tuple[str, ...], to: str, out: str | None, project: str, offline: bool, no_samples: bool, no_report: bool
) -> int:
    """Export RUNS, each the folder of a run or a folder of runs, to a tracker or to files.

    A run that is exported again updates its entry or its files. The exit code is 1 when a tracker failed.
    """
    target, paths = parse_target(to), [Path(run) for run in runs]
    _check_options(target, out=out, project=project, offline=offline, no_report=no_report)
    found, left_out = select_runs(paths)
    if target.exporter.is_tracker:
        for run in found:
            where = track(run, target, project=project, offline=offline, samples=not no_samples, report=not no_report)
            echo(f"{run.name}: {where}")
    else:
        for file in write_target(found, target, Path(out) if out else _folder(paths, target), samples=not no_samples):
            echo(f"written: {file}")
    return int(left_out > 0)


def _check_options(target: Target, **given: str | bool | None) -> None:
    """Refuse options that would have no effect."""
    for option, value in given.items():
        if value and not target.exporter.takes(option):
            raise SpecError(f"--{option} is for {names_taking(option)}, not for {target.name}")
    if given["project"] and target.address and target.exporter.address == "PROJECT":
        raise SpecError(f"{target.name}:{target.address} names the project already: leave out --project")


def _folder(paths: list[Path], target: Target) -> Path:
    if len(paths) > 1:
        raise SpecError("several runs or folders are exported together: give --out FOLDER")
    return paths[0] / EXPORTS / target.name
