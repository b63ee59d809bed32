"""`mill show RUN TASK ID`: a sample of a run, with its rounds, tool calls and reasoning; `--timing`: where its time went."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mill.api.errors import SpecError, UnknownName
from mill.cli.options import FilePath
from mill.report.show import print_timing, transcript
from mill.report.tables import print_table
from mill.store.folder import MANIFEST, RunFolder
from mill.store.sample_row import PENDING, SampleRow, columns_of, unique_rows
from mill.store.samples import sample_of
from mill.store.schema import SessionEntry
from mill.store.session import read_entries
from mill.support.files import json_text
from mill.support.terminal import echo_data, one_line

_SHOWN = 60  # characters of a text in the list
TEXT, JSON = "text", "json"


@click.command("show")
@click.argument("run", type=FilePath())
@click.argument("task", required=False)
@click.argument("sample_id", metavar="[ID]", required=False)
@click.option("--repeat", type=click.IntRange(min=0), default=0, show_default=True, help="Which of several answers.")
@click.option("--timing", is_flag=True, help="Where the time of the run went, phase by phase.")
@click.option("--format", "form", type=click.Choice([TEXT, JSON]), default=TEXT, show_default=True)
def command(run: str, task: str | None, sample_id: str | None, repeat: int, timing: bool, form: str) -> int:
    """Show the sample ID of TASK in the folder RUN: prompt, reasoning, tool calls with their results, answer and scores.

    Without ID it lists the samples of the task, with up to three of its metrics. TASK may be left out where the run has one
    task.

    \b
    Examples:
      mill show results/SmolLM2-135M-Instruct-1a2b3c4d/default gsm8k
      mill show results/SmolLM2-135M-Instruct-1a2b3c4d/default gsm8k 17
      mill show results/SmolLM2-135M-Instruct-1a2b3c4d/default --timing
    """
    folder = RunFolder(Path(run))
    names = list(folder.manifest()["tasks"])
    if timing:
        if task is not None or repeat:
            raise SpecError("--timing is about the whole run: leave out TASK, ID and --repeat")
        return _show_timing(folder, form)
    if task is None and len(names) != 1:
        raise SpecError(f"the run has {len(names)} tasks, name one of them: {', '.join(names[:20])}")
    if task is not None and task not in names and len(names) == 1 and sample_id is None:
        task, sample_id = None, task  # the id alone
    name = names[0] if task is None else task
    if name not in names:
        raise UnknownName("task of this run", name, names, hint=f"it has {', '.join(names[:20])}")
    file = folder.samples_file(name)
    rows = {str(row.id): row for _, row in unique_rows(file).values()}
    if sample_id is None:
        if form == JSON:
            echo_data(json_text([columns_of(row) for row in rows.values()], indent=2) + "\n")
        else:
            _list(rows)
        return 0
    if sample_id not in rows:
        raise UnknownName(
            f"sample of {name}", sample_id, rows, hint=f"`{shlex.join(['mill', 'show', str(run), name])}` lists them"
        )
    row = rows[sample_id]
    if repeat >= max(1, len(row.keys)):
        raise SpecError(f"--repeat {repeat}: sample {sample_id} has {len(row.keys)} answers, from 0 on")
    shown = json_text(columns_of(row), indent=2) + "\n" if form == JSON else transcript(row, sample_of(row), repeat)
    echo_data(shown)
    return 0


def _show_timing(folder: RunFolder, form: str) -> int:
    sessions = sorted(read_entries(folder, MANIFEST, "sessions", SessionEntry).values(), key=lambda one: one.order)
    if form == JSON:
        echo_data(json_text([asdict(session) for session in sessions], indent=2) + "\n")
    else:
        print_timing(sessions)
    return 0


def _list(rows: Mapping[str, SampleRow]) -> None:
    metrics = list(dict.fromkeys(name for row in rows.values() for name in row.values))[:3]
    cells = []
    for name, row in rows.items():
        values = [_cell(row.values.get(metric)) for metric in metrics]
        rounds = str(len(row.responses[0])) if row.messages and row.responses else ""
        text = row.error or row.response or row.extracted or ("not answered" if row.status == PENDING else "")
        cells.append([name, *values, rounds, one_line(str(text))[:_SHOWN]])
    columns = ["id", *metrics, "rounds", "response"]
    if not any(row[-2] for row in cells):
        columns, cells = [*columns[:-2], columns[-1]], [[*row[:-2], row[-1]] for row in cells]
    print_table("", columns, cells, numbers=(*metrics, "rounds"))


def _cell(values: Any) -> str:
    """The values of all repeats."""
    return " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values or ())
