"""Runs, scores and samples as Parquet files, which pandas and DuckDB open. Samples are written in batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from mill.export.run import ExportedRun, clean, is_number
from mill.export.target import Exporter
from mill.report.collect import COLUMNS, NUMBERS, decision_text, sampled_text
from mill.store.sample_row import SampleRow
from mill.support.files import json_text, write_atomically

BATCH = 5_000  # rows in memory
_COUNTS = ("n_shots", "n", "failed", "total")
_JSON = ("values", "responses", "doc")


def write_parquet(runs: Sequence[ExportedRun], folder: Path, *, samples: bool = True) -> list[Path]:
    """runs.parquet, scores.parquet and samples.parquet; `run` joins them."""
    files = [_write_rows(folder / "runs.parquet", _RUNS, [run_row(run) for run in runs], folder)]
    scores = [
        {name: _cast(kind, score[name]) for name, kind in _SCORES.items()} for run in runs for score in run.score_rows()
    ]
    files.append(_write_rows(folder / "scores.parquet", _SCORES, scores, folder))
    if samples:
        files.append(write_samples(runs, folder / "samples.parquet", folder))
    return files


def write_samples(runs: Sequence[ExportedRun], file: Path, root: Path) -> Path:
    """Every sample of the runs, with a column for each metric that one of them has."""
    names = dict.fromkeys(name for run in runs for count in run.counts.values() for name in count.metrics)
    columns = {name: f"metric_{name}" if name in _SAMPLES else name for name in names}
    rows = (sample_row(run, task, row, columns) for run in runs for task in run.tasks for row in run.rows(task))
    return _write_rows(file, {**_SAMPLES, **dict.fromkeys(columns.values(), "double")}, rows, root)


def run_row(run: ExportedRun) -> dict[str, Any]:
    counts = run.counts.values()
    return {
        "run": run.uid,
        "model": run.model,
        "backend": run.backend,
        "model_args": json_text(run.arguments),
        "model_id": clean(run.folder.path.absolute().parent.name),
        "settings_name": clean(run.folder.path.absolute().name),
        "settings": json_text(run.settings),
        "tasks": [clean(task) for task in run.tasks],
        "status": run.status,
        "started": run.started,
        "ended": run.ended,
        "seconds": run.seconds,
        "samples": sum(count.done for count in counts),
        "failed": sum(count.failed for count in counts),
        "unanswered": sum(count.unanswered for count in counts),
        "prompt_tokens": sum(session.prompt_tokens for session in run.sessions),
        "output_tokens": sum(session.output_tokens for session in run.sessions),
        "judge": run.judge or None,
        "sampled": clean(sampled_text(run.results.tasks.values())) or None,
        "decision": clean(decision_text(run.results.decisions.values())) or None,
        "versions": json_text(run.versions),
    }


def sample_row(run: ExportedRun, task: str, row: SampleRow, metrics: Mapping[str, str]) -> dict[str, Any]:
    """A sample with the columns of its file that are flat, those that are not as JSON."""
    names = {"run": run.uid, "model": run.model, "settings": clean(run.folder.path.absolute().name), "task": clean(task)}
    flat = {name: _cast(kind, getattr(row, name)) for name, kind in _SAMPLES.items() if name not in names}
    values = {column: row.mean(name) if name in row.values else None for name, column in metrics.items()}
    return {**flat, **names, "id": str(row.id), **{name: json_text(getattr(row, name)) for name in _JSON}, **values}


def _cast(kind: str, value: Any) -> Any:
    """The value as a column's type; None where it cannot be one. A text column has anything else as JSON."""
    if value is None:
        return None
    if kind == "string":
        return value if isinstance(value, str) else json_text(value)
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if kind.startswith("list"):
        inner = kind[len("list ") :]
        return [_cast(inner, one) for one in value] if isinstance(value, (list, tuple)) else None
    if not is_number(value):
        return None
    return float(value) if kind == "double" else int(value) if abs(float(value)) < 1 << 62 else None


def _write_rows(file: Path, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], root: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    schema, remaining = pyarrow.schema([(name, _type(kind)) for name, kind in columns.items()]), iter(rows)

    def fill(handle: IO[bytes]) -> None:
        with pyarrow.parquet.ParquetWriter(handle, schema, compression="zstd") as writer:
            while batch := list(islice(remaining, BATCH)):
                writer.write_batch(pyarrow.RecordBatch.from_pylist(batch, schema=schema))

    write_atomically(file, fill, root=root)
    return file


def _type(kind: str) -> Any:
    import pyarrow

    if kind.startswith("list "):
        return pyarrow.list_(_type(kind[len("list ") :]))
    if kind == "timestamp":
        return pyarrow.timestamp("ms", tz="UTC")
    return {"string": pyarrow.string(), "double": pyarrow.float64(), "int64": pyarrow.int64(), "bool": pyarrow.bool_()}[kind]


_RUNS = {
    **dict.fromkeys(("run", "model", "backend", "model_args", "model_id", "settings_name", "settings"), "string"),
    "tasks": "list string",
    "status": "string",
    **dict.fromkeys(("started", "ended"), "timestamp"),
    "seconds": "double",
    **dict.fromkeys(("samples", "failed", "unanswered", "prompt_tokens", "output_tokens"), "int64"),
    **dict.fromkeys(("judge", "sampled", "decision", "versions"), "string"),
}
_SCORES = {
    "run": "string",
    **{
        name: "int64" if name in _COUNTS else "double" if name in NUMBERS else "string"
        for name in COLUMNS
        if name not in ("run", "model_args")
    },
}
_SAMPLES = {
    **dict.fromkeys(("run", "model", "settings", "task", "id", "category", "status"), "string"),
    **dict.fromkeys(("prompt", "target"), "string"),
    **dict.fromkeys(("response", "reasoning", "extracted"), "string"),
    "choices": "list string",
    "chosen": "string",
    "choice_logprobs": "list double",
    "correct": "bool",
    **dict.fromkeys(("error", "finish_reason"), "string"),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "reasoning_tokens"), "int64"),
    "seconds": "double",
    "flags": "list string",
    **dict.fromkeys(_JSON, "string"),
}


EXPORTER = Exporter(
    name="parquet",
    about="`runs.parquet`, `scores.parquet` and `samples.parquet`, for pandas and DuckDB",
    write=write_parquet,
)
