"""The SQLite file of the index, in mill's cache: it can be deleted at any time, and is made again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mill.api.errors import RunError
from mill.support.files import cache_folder

VERSION = 6
_SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, task TEXT NOT NULL, path TEXT NOT NULL,
    size INTEGER, mtime INTEGER, inode INTEGER, checksum INTEGER, end INTEGER, damaged INTEGER, requests INTEGER,
    metrics TEXT, statuses TEXT, first INTEGER, last INTEGER, searched INTEGER DEFAULT 0, UNIQUE (run, task)
);
CREATE TABLE names (id INTEGER PRIMARY KEY, text TEXT UNIQUE);
CREATE TABLE samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, offset INTEGER, length INTEGER, key INTEGER, name TEXT,
    category INTEGER, status INTEGER, flags INTEGER, prompt_tokens REAL, output_tokens REAL, seconds REAL, margin REAL,
    worst REAL, worst_at INTEGER, prompt_key INTEGER, answer_key INTEGER, extracted_key INTEGER, numbers TEXT, ratios TEXT
);
CREATE INDEX samples_by_key ON samples (file, key);
CREATE INDEX samples_by_name ON samples (file, name);
CREATE TABLE comparisons (
    id INTEGER PRIMARY KEY AUTOINCREMENT, a TEXT, b TEXT, metric TEXT, files TEXT, unpaired INTEGER,
    first INTEGER, last INTEGER,
    UNIQUE (a, b, metric)
);
CREATE TABLE pairs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, comparison INTEGER, file INTEGER, a INTEGER, b INTEGER, category INTEGER,
    cell INTEGER, changed INTEGER, flipped INTEGER, other_prompt INTEGER, margin REAL, value_a REAL, value_b REAL,
    difference REAL, ratio_a TEXT, ratio_b TEXT
);
CREATE INDEX pairs_by_first ON pairs (comparison, a);
CREATE VIRTUAL TABLE texts USING fts5(prompt, response, content='', detail='column', tokenize='unicode61');
PRAGMA user_version = {VERSION};
"""


class Database:
    """Connections to one file, one for each thread. A damaged file, or one of another version, is replaced."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        name = hashlib.blake2b(str(root.resolve()).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        self.folder = _writable(folder or cache_folder() / "view") / name
        self.folder.mkdir(exist_ok=True)
        self.path = self.folder / "index.sqlite"
        self._local, self.writing = threading.local(), threading.Lock()
        self._open: list[sqlite3.Connection] = []
        try:
            self._create()
        except sqlite3.DatabaseError:
            self.rebuild()

    def connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = self._connect()
        return found

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that waits for those of other threads and other viewers of the same folder."""
        connection = self.connection()
        with self.writing:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def close(self) -> None:
        for connection in self._open:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        self._open.clear()

    def rebuild(self) -> None:
        """Start again with an empty index, as after damage to the file."""
        self._remove()
        self._create()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        self._open.append(connection)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "cache_size = -32768", "mmap_size = 1073741824"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def _create(self) -> None:
        version = self.connection().execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            self._remove()
        if version != VERSION:
            try:
                self.connection().executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            except sqlite3.OperationalError as error:
                if "already exists" not in str(error):  # another viewer has just made it
                    raise RunError(f"the index {self.path} cannot be made: {error}") from error

    def _remove(self) -> None:
        self.close()
        self._local = threading.local()
        try:
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"the index {self.path} cannot be replaced: {error.strerror}") from error


def _writable(folder: Path) -> Path:
    """The folder, or a temporary one where it cannot be written to, such as in a read-only container."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="mill-view-"))
