"""All scores below an output folder as one long table: a row for each model, task and metric."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.storage import json_text
from mill.api.warnings import warn
from mill.metrics.estimate import Estimate
from mill.report.tables import number
from mill.runs.folder import find_runs

COLUMNS = (
    "model", "settings", "benchmark", "task", "task_type", "n_shots", "metric", "value", "stderr", "low", "high",
    "n", "total", "errors", "run",
)  # fmt: skip
NARROW = ("model", "task", "n_shots", "metric", "value", "stderr", "n", "errors")
NUMBERS = ("n_shots", "value", "stderr", "low", "high", "n", "total", "errors")


def collect(output_dir: Path) -> list[dict[str, Any]]:
    """One row for each figure; a benchmark's own row has no task, a task's row names the benchmark it belongs to."""
    if not output_dir.is_dir():
        raise RunError(f"the output folder {output_dir} does not exist")
    rows: list[dict[str, Any]] = []
    for folder in find_runs(output_dir):
        try:
            known, results = folder.manifest(), folder.results()
        except RunError as error:  # one damaged run does not hide the others
            warn(f"left out: {error}")
            continue
        base = {"model": known["model"]["name"], "settings": folder.path.name, "run": str(folder.path)}
        means = list(results.benchmarks.values())
        for task in results.tasks.values():
            owner = min((mean for mean in means if task.task in mean.tasks), key=lambda mean: len(mean.tasks), default=None)
            more = {
                "benchmark": owner.benchmark if owner else task.task,
                "task": task.task,
                "task_type": task.task_type,
            }
            counts = {"n_shots": task.n_shots, "total": task.total, "errors": task.errors}
            rows += [{**base, **more, **counts, "metric": name, **_figures(value)} for name, value in task.metrics.items()]
        for mean in means:
            more = {"benchmark": mean.benchmark, "task": "", "task_type": "", "n_shots": ""}
            counts = {"total": mean.total, "errors": mean.errors}
            rows += [{**base, **more, **counts, "metric": name, **_figures(value)} for name, value in mean.metrics.items()]
    return [{column: row[column] for column in COLUMNS} for row in rows]


def shown_columns(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The columns of a table for people; settings among them where they tell rows apart."""
    several = len({row["settings"] for row in rows}) > 1
    return ("model", "settings", *NARROW[1:]) if several else NARROW


def as_csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_json(rows: list[dict[str, Any]]) -> str:
    return json_text(rows, indent=2) + "\n"


def as_markdown(rows: list[dict[str, Any]]) -> str:
    columns = shown_columns(rows)
    ruler = ("---:" if column in NUMBERS else "---" for column in columns)
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join(ruler) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(row, columns)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cells(row: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    """A row as text; a benchmark's mean stands under its own name, a limited run shows how much of the data it saw."""
    shown = {**row, "task": row["task"] or f"{row['benchmark']} (mean)"}
    shown["n"] = str(row["n"]) if row["n"] == row["total"] else f"{row['n']}/{row['total']}"
    return [number(value) if isinstance(value := shown[column], float) else _text(value) for column in columns]


def _figures(estimate: Estimate) -> dict[str, float | int | None]:
    """`n` is how many samples the value rests on."""
    return {"value": estimate.value, "stderr": estimate.stderr, "low": estimate.low, "high": estimate.high, "n": estimate.n}


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
