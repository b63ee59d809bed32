"""`mill plot FOLDER`: scores, cost and calibration of runs as SVG, PNG and PDF files."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from pathlib import Path

import click

from mill.api.errors import RunError, SpecError
from mill.checks.glossary import counted
from mill.cli.options import FilePath, option
from mill.options.definitions import DEFAULT_OUTPUT_DIR
from mill.options.option import make_price
from mill.report.plots import FORMS, check_installed, draw, plotted_runs
from mill.report.tables import REMOVED
from mill.score.recorded_run import read_runs
from mill.support.files import slug, write_atomically
from mill.support.terminal import echo

LONGEST_NAME = 80
PLOTS = "plots"


@click.command("plot")
@click.argument("folder", type=FilePath(), default=DEFAULT_OUTPUT_DIR)
@click.option("--out", type=FilePath(), default=None, help=f"Folder of the files. [default: {PLOTS} in FOLDER]")
@click.option("--format", "forms", default="svg,png", show_default=True, help=f"Formats, by commas: {', '.join(FORMS)}.")
@click.option("--model", default="", help="Keep models whose name contains this.")
@click.option("--task", default="", help="Tasks and benchmarks whose name contains this, also tasks inside of a benchmark.")
@option("price", help="Dollars for a million tokens: in=0.15,out=0.60. Shows cost instead of tokens.")
def command(folder: str, out: str | None, forms: str, model: str, task: str, price: dict[str, float] | None) -> int:
    """Draw the runs of FOLDER, an output folder or a run. For each benchmark, and each task that is in none:

    \b
    scores-NAME        the scores of every model with their 95 % intervals
    cost-NAME          the score against the tokens of a sample, or against dollars with --price
    calibration-NAME   of multiple choice by log-probability: how often answers of a probability are right, and the
                       expected calibration error (ECE)

    \b
    Examples:
      mill plot results
      mill plot results --format svg --out paper/plots --task mmlu
      mill plot results --price "in=0.15,out=0.60"
    """
    chosen, prices, path = _read_forms(forms), make_price(price or {}), Path(folder)
    check_installed()
    runs = [run for run in read_runs(path) if model in run.model and run.results.tasks]
    if not runs:
        filters = f" of a model that contains {model!r}" if model else ""
        raise RunError(
            f"{path} has no run with scores{filters}; `mill ls runs --output_dir {shlex.quote(str(path))}` lists runs"
        )
    by_name = plotted_runs(runs, task, prices)
    if not by_name:
        raise RunError(f"no task or benchmark of {path} has a name that contains {task!r}")
    target = Path(out) if out else path / PLOTS
    kinds: Counter[str] = Counter()
    for name, plotted in by_name.items():
        for kind, files in draw(name, plotted, chosen, dollars=prices is not None).items():
            for form, content in files.items():
                file = target / f"{kind}-{_file_name(name)}.{form}"
                write_atomically(file, content, root=None if out else path)
                echo(f"written: {file}")
                kinds[kind] += 1
    if not kinds["cost"]:
        echo("no plot of cost: the samples have no numbers of tokens")
    if not kinds["calibration"]:
        echo("no plot of calibration: no task is multiple choice by log-probability")
    echo(f"{counted(kinds.total(), 'file')} of {counted(len(runs), 'run')} in {target}")
    return 0


def _file_name(name: str) -> str:
    """A file name for a task; two tasks never have one."""
    safe = slug(name)[:LONGEST_NAME]
    return safe if safe == name else f"{safe}-{hashlib.blake2b(name.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def _read_forms(text: str) -> list[str]:
    forms = list(dict.fromkeys(form.strip() for form in text.split(",")))
    wrong = [form for form in forms if form not in FORMS]
    if wrong and wrong[0] == "latex":
        raise SpecError(f"--format latex: plots are {' and '.join(FORMS)}; for a table use mill collect: {REMOVED['latex']}")
    if wrong:
        raise SpecError(f"--format {text}: {wrong[0]!r} is none of {', '.join(FORMS)}")
    return forms
