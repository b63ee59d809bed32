"""`mill eval --dry_run`: the requests and tokens of a run."""

from __future__ import annotations

from mill.api.printing import echo
from mill.report.tables import print_table
from mill.runs.evaluate import Run

_COLUMNS = ("task", "runs as", "shots", "samples", "requests", "distinct", "recorded", "input tokens")


def print_plan(run: Run) -> None:
    """For each task: all requests, the distinct ones, those already recorded, and the tokens of the rest."""
    rows = []
    totals, unknown = [0, 0, 0, 0], 0
    for plan in run.plans:
        requests = [clone for request in plan.requests() for clone in request.clones()]
        distinct = list({request.key: request for request in requests}.values())
        todo = [request for request in distinct if run.record.peek(request) is None]
        tokens = run.model.count_tokens(todo) if todo else 0  # which may have to load the tokenizer
        samples = f"{len(plan.states)}/{plan.total}"
        counts = [len(requests), len(distinct), len(distinct) - len(todo), tokens or 0]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        unknown += tokens is None
        cells = [*map(str, counts[:3]), "unknown" if tokens is None else f"{tokens:,}"]
        rounds = " (first round)" if plan.task.multi_round else ""
        rows.append([plan.requested, plan.task.name + rounds, str(plan.n_shots), samples, *cells])
    if len(rows) > 1:
        least = "" if not unknown else "unknown" if unknown == len(rows) else "at least "
        rows.append(["total", "", "", "", *map(str, totals[:3]), least if least == "unknown" else f"{least}{totals[3]:,}"])
    print_table(f"{run.model.model_name}: would write to {run.folder.path}", _COLUMNS, rows, numbers=_COLUMNS[2:])
    for plan in run.plans:
        for line in plan.warnings()[: -len(plan.without_effect()) or None]:  # those were logged
            echo(f"{plan.requested}: {line}")
    paths = run.model.planned_paths()
    if paths:
        echo("batching: " + ", ".join(f"{stage} {path}" for stage, path in paths.items()))
