"""A file of one's own, named as a task: prompts to be answered, or texts whose perplexity is measured.

A .txt file is a text. In a .jsonl file the rows' columns tell: `prompt` is asked as a prompt suite, `text` is a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from mill.api.batching import describe
from mill.api.errors import DataError
from mill.api.task import Sample, Task
from mill.tasks.data import Row, read_rows
from mill.tasks.perplexity import PerplexityTask
from mill.tasks.suite import SuiteTask

SUFFIXES = (".txt", ".jsonl")
PROMPTS, TEXTS = "prompts", "texts"
_OF_PROMPTS = {"prompt", "answer", "extract"}


def file_task(name: str) -> Task:
    """The task that a file is. Rows that could be either, or that are not all of one sort, are refused."""
    path = Path(name)
    if path.suffix == ".txt":
        return TextFile(name)
    rows = read_rows(path)
    sorts = [_sort(row) for row in rows]
    wanted = sorts[0] if rows else TEXTS
    for number, (row, sort) in enumerate(zip(rows, sorts, strict=True), 1):
        if sort != wanted or not sort:
            also = f", and row 1 has {', '.join(rows[0])}" if number > 1 else ""
            raise DataError(
                f"{name}, row {number} has {', '.join(row) or 'nothing'}{also}: a prompt in every row, with or without an "
                "answer, is asked as a prompt suite; a text and neither of these in every row is scored as a document"
            )
    return PromptFile(name, lambda: rows) if wanted == PROMPTS else TextFile(name)


def _sort(row: Row) -> str:
    """What a row is by its columns; empty where they do not tell."""
    if "prompt" in row:
        return "" if "text" in row else PROMPTS
    return TEXTS if "text" in row and not _OF_PROMPTS & row.keys() else ""


class PromptFile(SuiteTask):
    """Prompts in a .jsonl file, in the format of prompt suites."""

    def warnings(self) -> list[str]:
        gold = sum("answer" in sample.doc for sample in self.samples())
        return [f"read as a prompt suite: {len(self.samples())} prompts, {gold} with an answer"]


class TextFile(PerplexityTask):
    """A .txt file is one document; a .jsonl file is one document a row."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = Path(path)

    @cached_property
    def _documents(self) -> list[str]:
        if self.path.suffix == ".txt":
            try:
                documents = [self.path.read_text(encoding="utf-8")]
            except (OSError, ValueError) as error:
                raise DataError(f"cannot read the text file {self.path}: {describe(error)}") from error
        else:
            documents = [_text(row, self.path) for row in read_rows(self.path)]
        documents = [document for document in documents if document.strip()]
        if not documents:
            raise DataError(f"{self.path} holds no text")
        return documents

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(place), {"text": text}) for place, text in enumerate(self._documents)]

    def warnings(self) -> list[str]:
        return [f"read as texts: the perplexity of {len(self._documents)} documents"] if self.path.suffix != ".txt" else []

    def scored_text(self, sample: Sample) -> str:
        return str(sample.doc["text"])


def _text(row: dict[str, object], path: Path) -> str:
    text = row.get("text")
    if not isinstance(text, str):
        raise DataError(f"{path}: a row has no string under 'text'; it has {', '.join(row) or 'nothing'}")
    return text
