"""Tasks of lm-eval over the documents that a run recorded, for scoring it again without the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from mill.tasks.sources import Documents


@contextlib.contextmanager
def recorded_documents(by_task: Mapping[str, Documents]) -> Iterator[None]:
    """Inside this context lm-eval makes its tasks over these documents, by task name, instead of loading a dataset."""
    from lm_eval.api.task import ConfigurableTask, Task

    def download(task: Any, *_: Any, **__: Any) -> None:
        config = task.config
        documents = by_task[config.task]
        task.dataset = _AnySplit(documents)
        config.process_docs = None  # the recorded ones are processed already

    changed = {"download": download, "fewshot_docs": lambda task: None}
    before = [(cls, name, getattr(cls, name)) for cls in (Task, ConfigurableTask) for name in changed]
    for cls, name, _ in before:
        setattr(cls, name, changed[name])
    try:
        yield
    finally:
        for cls, name, original in before:
            setattr(cls, name, original)


class _Rows(list[Any]):
    """Documents with the names of their columns, as a dataset has them."""

    @property
    def features(self) -> dict[str, None]:
        return dict.fromkeys(self[0]) if self else {}


class _AnySplit(dict[str, Any]):
    """A dataset whose every split is the recorded documents: which one was evaluated does not matter any more."""

    def __init__(self, documents: Documents) -> None:
        super().__init__()
        self.rows = _Rows(dict(document) for document in documents)

    def __missing__(self, split: str) -> Any:
        return self.rows
