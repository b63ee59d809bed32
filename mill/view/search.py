"""Full-text search over prompts and responses: an FTS5 index that is built in the background, file by file.

The index stores words, not texts. Of a long text it has the start and the end: the question is at the end of a prompt, and
the start of a few-shot prompt is the same in all samples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from mill.api.errors import MillError
from mill.store.sample_row import read_any_row
from mill.view.index import ResultsIndex
from mill.view.queries import raw_line

MOST_CHARACTERS = 20_000  # of each text, half from its start and half from its end
_BATCH = 500
_PAUSE_S = 0.2


def build_search(index: ResultsIndex, stopped: threading.Event, busy: Callable[[], bool] = lambda: False) -> None:
    """Add all samples that are not in the search index yet, in short transactions so that nothing waits for it, and not
    while the server is `busy` with requests."""
    while not stopped.is_set():
        if busy():
            stopped.wait(_PAUSE_S)
            continue
        rows = _next_rows(index)
        if not rows:
            return
        texts = list(_texts(index, rows))
        with index.database.change() as change:
            known = change.execute("SELECT 1 FROM files WHERE id = ?", (rows[0]["file"],)).fetchone()
            if known is not None:  # else the file was replaced meanwhile
                change.executemany("INSERT INTO texts (rowid, prompt, response) VALUES (?, ?, ?)", texts)
                change.execute("UPDATE files SET searched = ? WHERE id = ?", (rows[-1]["id"], rows[0]["file"]))


def _next_rows(index: ResultsIndex) -> list[Any]:
    connection = index.database.connection()
    file = connection.execute("SELECT * FROM files WHERE first IS NOT NULL AND searched < last LIMIT 1").fetchone()
    if file is None:
        return []
    query = "SELECT id, file, offset, length FROM samples WHERE id BETWEEN ? AND ? AND +file = ? ORDER BY id LIMIT ?"
    start = max(file["first"], file["searched"] + 1)
    return connection.execute(query, (start, file["last"], file["id"], _BATCH)).fetchall()


def _texts(index: ResultsIndex, rows: list[Any]) -> Iterator[tuple[int, str, str]]:
    """A line that cannot be read has no words."""
    for row in rows:
        try:
            one = read_any_row(raw_line(index, row)[1])
        except (MillError, ValueError):
            continue
        written = "\n".join(filter(None, (one.reasoning, one.response, one.chosen)))
        yield row["id"], _bounded(one.prompt), _bounded(written)


def _bounded(text: str) -> str:
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} {text[-half:]}"
