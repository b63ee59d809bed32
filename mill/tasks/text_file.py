"""The perplexity of a text of one's own: a .txt file, or the `text` of every row of a .jsonl file, named as a task."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from mill.api.batching import describe
from mill.api.errors import DataError
from mill.api.task import Sample
from mill.tasks.data import read_rows
from mill.tasks.perplexity import PerplexityTask

SUFFIXES = (".txt", ".jsonl")


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

    def scored_text(self, sample: Sample) -> str:
        return str(sample.doc["text"])


def _text(row: dict[str, object], path: Path) -> str:
    text = row.get("text")
    if not isinstance(text, str):
        raise DataError(f"{path}: a row has no string under 'text'; it has {', '.join(row) or 'nothing'}")
    return text
