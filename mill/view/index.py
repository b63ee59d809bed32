"""The index over a result folder: which runs, checks and logs there are, and a row for each of their samples.

Texts stay in the samples files: a row has scalar columns and the position of its line. `sync` reads what changed since the
last call; the index of an unchanged folder is taken from the cache.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import MillError, RunError
from mill.store.sample_row import STATUSES, read_any_row
from mill.support.files import open_regular, read_lines
from mill.support.terminal import warn
from mill.view.database import MOST_METRICS, Database, indexed, pair_key
from mill.view.run_info import RunInfo, file_signature, read_run, run_signature, uid_of
from mill.view.scan import ToolLog, scan

_BATCH = 5_000
_MOST_REMEMBERED = 500
_INSERT = (
    "INSERT INTO samples (file, offset, length, key, name, category, status, flags, prompt_tokens, output_tokens, seconds, "
    f"margin, worst, worst_at, prompt_key, answer_key, extracted_key, numbers, ratios) VALUES ({', '.join('?' * 19)})"
)


@dataclass
class IndexState:
    """What the pages show of the index itself. `version` grows with every change of what they show."""

    version: int = 0
    syncing: bool = False
    bytes_done: int = 0
    bytes_total: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass
class _SamplesFile:
    """A samples file as it is now."""

    run: str
    task: str
    path: Path
    signature: tuple[int, int, int]


class ResultsIndex:
    """`runs` and `checks` are replaced by `sync`, never changed, so that other threads may read them at any time."""

    def __init__(self, root: Path, *, cache: Path | None = None) -> None:
        if not root.exists():
            raise RunError(f"{root} does not exist; `mill eval` and the checks write results")
        if root.is_file() and not any((*(found := scan(root)).checks, *found.logs)):
            raise RunError(f"{root} is neither a folder of results nor a log of lm-eval or inspect_ai")
        self.root = root
        self.database = Database(root, cache)
        self.runs: dict[str, RunInfo] = {}
        self.checks: dict[str, Path] = {}
        self.state = IndexState()
        self._remembered: dict[Any, Any] = {}
        self._check_signatures: dict[str, Any] = {}
        self._left_out: list[str] = []
        self._syncing = threading.Lock()

    def sync(self) -> bool:
        """Read what changed; True if anything did. A folder that disappeared leaves an empty index."""
        with self._syncing:
            self.state.syncing = True
            try:
                return self._sync()
            finally:
                self.state.syncing = False

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """An answer that takes long, computed once for a key that changes with the data."""
        remembered = self._remembered
        if key not in remembered:
            if len(remembered) >= _MOST_REMEMBERED:
                remembered = self._remembered = {}
            remembered[key] = compute()
        return remembered[key]

    def close(self) -> None:
        self.database.close()

    def _sync(self) -> bool:
        found, self._left_out = scan(self.root), list[str]()
        runs = [self._run(path) for path in found.runs]
        runs += [run for log in found.logs if (run := self._converted(log)) is not None]
        checks = {uid_of(self._name(file)): file for file in found.checks}
        signatures = {uid: file_signature(file) for uid, file in checks.items()}
        changed = {run.uid: run.signature for run in runs} != {uid: run.signature for uid, run in self.runs.items()}
        changed |= signatures != self._check_signatures
        self.runs = {run.uid: run for run in runs}
        self.checks, self._check_signatures = checks, signatures
        self.state.warnings = [*found.skipped, *self._left_out, *(warning for run in runs for warning in run.warnings)]
        if changed:
            self.state.version += 1  # the list of runs can be shown while their samples are read
        if self._sync_files():
            self.state.version += 1
            changed = True
        return changed

    def _name(self, path: Path) -> str:
        """The path below the folder that is viewed, which names it in URLs."""
        return str(path.relative_to(self.root)) if path != self.root else path.name

    def _run(self, path: Path) -> RunInfo:
        known = self.runs.get(uid_of(self._name(path)))
        if known is not None and known.path == path and known.signature == run_signature(path) and not known.error:
            return known
        return read_run(path, self._name(path))

    def _converted(self, log: ToolLog) -> RunInfo | None:
        """A log of another tool as a run in the cache; None where it cannot be read, which is reported."""
        name = self._name(log.path)
        stamp = json.dumps([[str(file), file_signature(file)] for file in log.files])
        target = self.database.folder / "logs" / hashlib.blake2b(stamp.encode(), digest_size=10).hexdigest()
        done = target / "converted"
        if not done.exists():
            try:
                log.convert(target)
                done.write_text("")
            except (MillError, OSError) as error:
                if log.path == self.root:
                    raise
                text = f"left out: {error}"
                warn(text)
                self._left_out += [text] if text not in self._left_out else []  # a missing package is that of many logs
                return None
        known = self.runs.get(uid_of(name))
        if known is not None and known.path == target:
            return known
        return read_run(target, name, log.tool)

    def _sync_files(self) -> bool:
        """Index the samples files that are new or changed, and forget those that are gone."""
        current = {(file.run, file.task): file for file in self._files()}
        connection = self.database.connection()
        known = {(row["run"], row["task"]): row for row in connection.execute("SELECT * FROM files")}
        gone = [row["id"] for name, row in known.items() if name not in current]
        stale = [
            file
            for name, file in current.items()
            if name not in known
            or (known[name]["size"], known[name]["mtime"], known[name]["inode"]) != file.signature
            or known[name]["path"] != str(file.path)
        ]
        if gone:
            with self.database.change() as change:
                for number in gone:
                    _forget(change, number)
        self.state.bytes_done, self.state.bytes_total = 0, sum(file.signature[0] for file in stale)
        read = 0
        for file in stale:
            try:
                self._index(file, known.get((file.run, file.task)))
                read += 1
            except FileNotFoundError:  # removed meanwhile: the next sync forgets it
                continue
            except (MillError, OSError) as error:  # one bad file does not hide the others
                self.state.warnings.append(str(error))
        return bool(gone or read)

    def _files(self) -> Iterator[_SamplesFile]:
        for run in self.runs.values():
            for task in run.tasks:
                path = run.folder.samples_file(task)
                signature = file_signature(path)
                if signature is None:
                    continue
                if path.is_symlink() or path.parent.is_symlink():
                    self.state.warnings.append(f"{path} is a link, which is not followed")
                    continue
                yield _SamplesFile(run.uid, task, path, signature)

    def _index(self, file: _SamplesFile, known: Any) -> None:
        """One transaction for each file: readers see the old rows or the new ones."""
        done = self.state.bytes_done
        with self.database.change() as change:
            if known is not None:
                _forget(change, known["id"])
            reader = _FileReader(change, file)
            for count, offset in enumerate(reader.read(), 1):
                if count % _BATCH == 0:
                    self.state.bytes_done = done + offset
            reader.finish()
        self.state.bytes_done = done + file.signature[0]


def _forget(change: Any, number: int) -> None:
    row = change.execute("SELECT first, last FROM files WHERE id = ?", (number,)).fetchone()
    if row is not None and row["first"] is not None:
        change.execute("DELETE FROM samples WHERE id BETWEEN ? AND ? AND file = ?", (row["first"], row["last"], number))
    change.execute("DELETE FROM files WHERE id = ?", (number,))


class _FileReader:
    """Reads the lines of one file into rows. A line that is no sample is counted, and a last line without its newline is
    left for the next time."""

    def __init__(self, change: Any, file: _SamplesFile) -> None:
        self.change, self.file = change, file
        insert, names = "INSERT INTO files (run, task, path) VALUES (?, ?, ?)", (file.run, file.task, str(file.path))
        self.id = int(change.execute(insert, names).lastrowid)
        self.damaged = self.requests = 0
        self.metrics: list[str] = []
        self.statuses = dict.fromkeys(STATUSES, 0)
        self.first: int | None = None
        self.last: int | None = None
        self._names: dict[str, int] = {}
        self._seen: set[int] = set()
        self._ids: set[str] = set()
        self._rows: list[tuple[Any, ...]] = []

    def read(self) -> Iterator[int]:
        """Yields the end of each line."""
        for offset, line in read_lines(self.file.path):
            if not line.endswith(b"\n"):
                break
            if line.strip():
                self._add(offset, line)
            yield offset + len(line)

    def _add(self, offset: int, line: bytes) -> None:
        """Of lines with the same id the first counts; the others are damaged lines."""
        try:
            row = read_any_row(line)
        except ValueError:
            self.damaged += 1
            return
        name = str(row.id).encode("utf-8", "backslashreplace").decode()
        if name in self._ids:
            self.damaged += 1
            return
        self._ids.add(name)
        self.metrics += [name for name in row.values if name not in self.metrics][: MOST_METRICS - len(self.metrics)]
        columns = indexed(row, self.metrics)
        key = pair_key(row)
        while key in self._seen:  # samples with the same data: the second is paired with the second of another run
            key += 1
        self._seen.add(key)
        self.requests += sum(map(len, row.keys))
        self.statuses[row.status] += 1
        category, status = self._name(row.category or ""), STATUSES.index(row.status)
        self._rows.append((self.id, offset, len(line), key, name, category, status, *columns))
        if len(self._rows) >= _BATCH:
            self._flush()

    def _name(self, text: str) -> int:
        found = self._names.get(text)
        if found is None:
            clean = text.encode("utf-8", "backslashreplace").decode()
            self.change.execute("INSERT OR IGNORE INTO names (text) VALUES (?)", (clean,))
            found = self._names[text] = self.change.execute("SELECT id FROM names WHERE text = ?", (clean,)).fetchone()[0]
        return found

    def _flush(self) -> None:
        if self._rows:
            self.change.executemany(_INSERT, self._rows)
            self.last = self.change.execute("SELECT max(id) FROM samples").fetchone()[0]
            self.first = self.first if self.first is not None else self.last - len(self._rows) + 1
            self._rows.clear()

    def finish(self) -> None:
        self._flush()
        size, mtime, inode = self.file.signature
        self.change.execute(
            "UPDATE files SET size = ?, mtime = ?, inode = ?, damaged = ?, requests = ?, metrics = ?, statuses = ?, "
            "first = ?, last = ? WHERE id = ?",
            (
                size, mtime, inode, self.damaged, self.requests, json.dumps(self.metrics), json.dumps(self.statuses),
                self.first, self.last, self.id,
            ),
        )  # fmt: skip


def sync_forever(index: ResultsIndex, stopped: threading.Event, on_change: Any, *, every_s: float = 1.0) -> None:
    """Keep an index up to date until `stopped`. A large folder is checked less often."""
    while not stopped.is_set():
        began = time.monotonic()
        try:
            if index.sync():
                on_change()
        except (MillError, OSError, sqlite3.Error) as error:
            index.state.warnings = [str(error)]
        stopped.wait(max(every_s, 10 * (time.monotonic() - began)))


# --- Full-text search

MOST_CHARACTERS = 20_000  # of each text: half from its end, where a question is, since few-shot prompts start alike
_SEARCHED = 500


def build_search(index: ResultsIndex, stopped: threading.Event) -> None:
    """Add the words of all samples that are not in the full-text index yet, in short transactions so that nothing waits for
    it."""
    while not stopped.is_set():
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
    return connection.execute(query, (start, file["last"], file["id"], _SEARCHED)).fetchall()


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


def raw_line(index: ResultsIndex, row: Any) -> tuple[str, bytes]:
    path = index.database.connection().execute("SELECT path FROM files WHERE id = ?", (row["file"],)).fetchone()["path"]
    try:
        with open_regular(Path(path)) as handle:
            handle.seek(row["offset"])
            return path, handle.read(row["length"])
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
