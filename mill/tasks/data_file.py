"""A data file named as a task (`mill eval MODEL qa.csv`): .csv, .jsonl and .parquet tables, and .txt documents.

The columns decide what a table runs as:

text                              documents: perplexity
question|prompt, choices, answer  multiple choice by log-probability; by generated letter where the model has none
question|prompt, answer           generated answers: exact match after extraction, and --judge for free text
question|prompt                   prompts without a gold answer: the responses are recorded

`question` is sent as "Question: ...\\nAnswer:", `prompt` exactly as it is. Optional columns: `id`, `category` (scores by
category), `system` (replaces --system_prompt in its row), `image`, `video`, `audio` (paths, relative to the file), `extract`
and `max_tokens` as in prompt suites. Other columns are ignored and reported; those that look like a known one are refused.
`mill/tasks/columns.py` reads the cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Any

from mill.api.errors import DataError
from mill.api.message import MEDIA_KINDS
from mill.api.task import Sample, Task
from mill.support.files import MOST_BYTES
from mill.support.terminal import describe
from mill.tasks.columns import (
    CHOICE_COLUMN,
    LETTERS,
    OPTIONAL,
    QUESTION,
    check_names,
    decoded,
    is_missing,
    misspelled_inputs,
)
from mill.tasks.data import MOST_COLUMNS, Row, read_rows
from mill.tasks.file_questions import BY_LETTER, ChoiceFile, LetterFile, QuestionFile
from mill.tasks.perplexity import PerplexityTask

SUFFIXES = (".txt", ".jsonl", ".csv", ".parquet")
_TEXTS = {"text", *QUESTION, *OPTIONAL, *(f"choice_{letter.lower()}" for letter in LETTERS)} - {*MEDIA_KINDS}
_NOT_OF_DOCUMENTS = ("answer", "choices", "extract", *MEDIA_KINDS)
_NEEDED = "a table needs the column question or prompt, or text for documents"


MOST_ROWS = 5_000_000  # of a Parquet file; the size of the others bounds their rows


def is_data_file(name: str) -> bool:
    return name.removesuffix(BY_LETTER).endswith(SUFFIXES)


def file_task(name: str) -> Task:
    """The task that a file is, decided by its columns."""
    path = Path(name.removesuffix(BY_LETTER))
    _check_size(path)
    if path.suffix == ".txt":
        return DocumentFile(name, [_read_text(path)], "")
    rows = _read_table(path)
    if not rows:
        raise DataError(f"{name} has no rows")
    columns = list(dict.fromkeys(str(column) for row in rows for column in row))  # each row of a .jsonl file may have others
    if len(columns) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(columns):,} columns: at most {MOST_COLUMNS:,} are read")
    if "text" in columns and not {*QUESTION, *_NOT_OF_DOCUMENTS} & {*columns}:
        check_names(name, columns)
        return DocumentFile(name, _documents(name, rows), _summary(columns, ["text"]))
    column = _question_column(name, columns)
    check_names(name, columns)
    _refuse_missing(name, rows, column)
    summary = _summary(columns, [column, *(c for c in columns if c in OPTIONAL or CHOICE_COLUMN.fullmatch(c))])
    if "choices" in columns or any(map(CHOICE_COLUMN.fullmatch, columns)):
        kind = LetterFile if name.endswith(BY_LETTER) else ChoiceFile
        return kind(name, rows, column, summary)
    if name.endswith(BY_LETTER):
        raise DataError(f"{path} has no choices to list")
    return QuestionFile(name, rows, column, summary)


def _summary(columns: Sequence[str], used: Sequence[str]) -> str:
    ignored = [name for name in columns if name not in used]
    return f"columns used: {', '.join(used)}" + (f"; ignored: {_listed(ignored)}" if ignored else "")


def _read_table(path: Path) -> list[Row]:
    rows = read_rows(path, _TEXTS)
    if path.suffix != ".parquet":
        return rows
    return [
        {name: decoded(cell, f"{path}, row {number}: {name}") if name in _TEXTS else cell for name, cell in row.items()}
        for number, row in enumerate(rows, 1)
    ]


def _question_column(name: str, columns: Sequence[str]) -> str:
    found = [column for column in QUESTION if column in columns]
    if len(found) == 2:
        raise DataError(f"{name} has both question and prompt: keep one (prompt is sent as it is)")
    if found and "text" in columns:
        raise DataError(f"{name} has both {found[0]} and text: keep one (text alone is scored as documents)")
    if found:
        return found[0]
    if "text" in columns:
        other = next(column for column in _NOT_OF_DOCUMENTS if column in columns)
        raise DataError(f"{name} has text and {other}: rename text to prompt (text alone is scored as documents)")
    close = misspelled_inputs(columns)
    hint = "; did you mean " + ", ".join(f"{right} for {given!r}" for given, right in close.items()) + "?" if close else ""
    raise DataError(f"{name} has the columns {_listed(columns) or '(none)'}: {_NEEDED}{hint}")


def _refuse_missing(name: str, rows: Sequence[Row], column: str) -> None:
    for number, row in enumerate(rows, 1):
        if column not in row:
            raise DataError(f"{name}, row {number} has no {column}; it has {_listed(tuple(map(str, row))) or 'no columns'}")
        value = row[column]
        if not isinstance(value, str) or not value.strip():
            shown = "empty" if is_missing(value) or value == "" else f"a {type(value).__name__}, not text"
            raise DataError(f"{name}, row {number}: {column} is {shown if str(value).strip() else 'empty'}")


def _documents(name: str, rows: Sequence[Row]) -> list[str]:
    documents = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("text"), str):
            got = f"a {type(row['text']).__name__}" if "text" in row else "missing"
            raise DataError(f"{name}, row {number}: text is {got}, not text")
        documents.append(row["text"])
    return documents


def _check_size(path: Path) -> None:
    """Refuse what cannot be read into memory: tables are held whole. A missing file is left to the reader."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return
    if not S_ISREG(found.st_mode):
        raise DataError(f"{path} is not a regular file")
    size = found.st_size
    if path.suffix == ".parquet":
        size = max(size, _unpacked_size(path))
    if size > MOST_BYTES:
        raise DataError(f"{path} has {size >> 20:,} MiB, and at most {MOST_BYTES >> 20:,} MiB are read: split it")


def _unpacked_size(path: Path) -> int:
    """The bytes of a Parquet file without compression. Rows are counted too: repeated values take no bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {describe(error)}") from error
    if metadata.num_rows > MOST_ROWS:
        raise DataError(f"{path} has {metadata.num_rows:,} rows, and at most {MOST_ROWS:,} are read: split it")
    return sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the text file {path}: {describe(error)}") from error


def _listed(names: Sequence[str]) -> str:
    """At most a dozen names."""
    return ", ".join(name if name.strip() else "(unnamed)" for name in names[:12]) + (
        f" and {len(names) - 12} more" if len(names) > 12 else ""
    )


class DocumentFile(PerplexityTask):
    """A .txt file is one document; a table is one document a row. Blank ones are skipped."""

    def __init__(self, path: str, documents: Sequence[str], summary: str) -> None:
        super().__init__(path)
        self._documents = [document for document in documents if document.strip()]
        if not self._documents:
            raise DataError(f"{path} has no text")
        self._summary = summary

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(index), {"text": text}) for index, text in enumerate(self._documents)]

    def warnings(self) -> list[str]:
        if not self._summary:
            return []
        return [f"read as documents: the perplexity of {len(self._documents)} texts; {self._summary}"]

    def scored_text(self, sample: Sample) -> str:
        doc: Mapping[str, Any] = sample.doc
        return str(doc["text"])
