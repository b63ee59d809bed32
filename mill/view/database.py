"""The SQLite file of the index, in mill's cache: it can be deleted at any time, and is made again. Of a sample it has scalar
columns; texts are hashed, never stored."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mill.api.errors import RunError
from mill.store.sample_row import FLAGS, SampleRow
from mill.support.files import cache_folder, hash_docs, json_text

VERSION = 7
_SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, task TEXT NOT NULL, path TEXT NOT NULL,
    size INTEGER, mtime INTEGER, inode INTEGER, damaged INTEGER, requests INTEGER,
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
            self._remove()
            self._create()

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


FLAG_BITS = {name: 1 << number for number, name in enumerate((*FLAGS, "logprobs"))}
TOKENS = FLAG_BITS["logprobs"]
MOST_METRICS = 200  # of one task; further metrics are in the samples alone
_ABSENT = (b"", b"null")
_decode_responses = msgspec.json.Decoder(list[list[dict[str, Any]]]).decode


def indexed(row: SampleRow, metrics: Sequence[str]) -> tuple[Any, ...]:
    """The columns behind the status. `metrics` are those of the task, in the order of the columns.

    The margin is by how much the best choice beats the second, in nats. What was sent and answered are checksums: by them
    two samples that are paired already are compared. That of the extracted answer is 0 where none is extracted.
    """
    worst, worst_at, has_tokens = _worst_token(_raw(row.responses))
    best = sorted((score for score in row.choice_logprobs or () if score is not None), reverse=True)
    extracted = _raw(row.extracted)
    answer = row.response if row.response is not None else row.chosen
    return (
        sum(FLAG_BITS[name] for name in row.flags if name in FLAG_BITS) | (TOKENS if has_tokens else 0),
        row.prompt_tokens,
        row.output_tokens,
        row.seconds,
        best[0] - best[1] if len(best) > 1 and math.isfinite(best[0] - best[1]) else None,
        worst,
        worst_at,
        _checksum(row.prompt),
        _checksum(answer) if answer is not None else 0,
        zlib.crc32(extracted) if extracted not in _ABSENT else 0,
        *_values(row, metrics),
    )


def value_column(at: int, column: str = "numbers") -> str:
    """The value of one of the file's metrics, or of `ratios`."""
    return f"json_extract({column}, '$[{at}]')"


def _values(row: SampleRow, metrics: Sequence[str]) -> tuple[str | None, str | None]:
    """The numbers of all metrics, and the log-likelihoods with their units behind those that are a ratio, as JSON."""
    means = [None if row.error else row.means.get(name) for name in metrics]
    numbers = [float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None for value in means]
    found = [row.number(name) for name in metrics]
    ratios = json_text([one if isinstance(one, tuple) else None for one in found])
    known = any(isinstance(one, tuple) for one in found)
    return msgspec.json.encode(numbers).decode() if metrics else None, ratios if known else None


def pair_key(row: SampleRow) -> int:
    """By which samples of two runs are paired, as in mill.checks.pairing: the digest of their data, else their request or
    id; 64 bits as SQLite stores integers."""
    digest = row.data_hash or hash_docs([{"request": row.request_key or str(row.id)}])
    return int.from_bytes(bytes.fromhex(digest[:16]), "big", signed=True)


def _raw(part: Any) -> bytes:
    return bytes(part) if isinstance(part, msgspec.Raw) else b""


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _worst_token(responses: bytes) -> tuple[float | None, int | None, bool]:
    """The lowest log-probability of a token in the first repeat and its position; whether there are tokens at all."""
    if b'"tokens"' not in responses:
        return None, None, False
    try:
        repeats = _decode_responses(responses)
    except (msgspec.MsgspecError, UnicodeError):
        return None, None, False
    tokens = next((tokens for response in (repeats[0] if repeats else ()) if (tokens := response.get("tokens"))), None)
    if not isinstance(tokens, list):
        return None, None, False
    scores = [(token[2], at) for at, token in enumerate(tokens) if len(token) > 2 and isinstance(token[2], (int, float))]
    worst, at = min(scores, default=(None, None))
    return worst, at, True
