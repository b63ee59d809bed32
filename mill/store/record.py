"""The append-only record of a run's responses, and the cache that runs of one model share.

Every process appends lines to its own file, so writers cannot disturb each other, and a process killed in the middle of a
line loses that line alone. A line is a response under its request's key; reading is the union of all files.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from mill.api.batching import ANSWER_FIELD
from mill.api.engine import ANY, Reuse
from mill.api.errors import MillError, RunError
from mill.api.request import Request
from mill.api.response import Response, Token
from mill.store.folder import mark_superseded
from mill.store.sample_schema import RecordLine, read_response
from mill.support.files import make_folder, open_regular, read_lines, time_of, unique_name, write_atomically
from mill.support.secrets import any_known, scrub
from mill.support.terminal import utf8, warn
from mill.support.validate import convert, parse_json

FOLDER = "record"
DISTRIBUTIONS = "distributions"
CHECK_S = 1.0  # how often a writer checks that its file still exists
_OPEN_FILES = 32
_encode = json.JSONEncoder(ensure_ascii=False).encode


class Record:
    """The responses of one run. Also finds deterministic responses that other runs of the same model recorded."""

    def __init__(
        self,
        folder: Path,
        other_runs: list[Path] | None = None,
        *,
        shareable: bool = True,
        root: Path | None = None,
        reuse: Reuse = ANY,
    ) -> None:
        """`shareable` says whether other runs of the same model may reuse responses of this record, and `reuse` which
        recorded ones stand for those that would be given now.

        `root` is the folder that the user named; nothing is written through links below it.
        """
        self.folder, self.shareable, self.root = folder / FOLDER, shareable, root or folder
        self.reuse, self.reused = reuse, Counter[tuple[str, str]]()
        """How many responses were reused, by the id of their engine and the file that has them."""
        self._own = Index(self.folder)
        self._shared = [index for run in other_runs or [] if (index := _readable(run / FOLDER))]
        self._handle: IO[bytes] | None = None
        self._name, self._end, self._checked_at = "", 0, 0.0

    def get(self, request: Request) -> Response | None:
        """What `peek` finds; a response of another run is copied, so that this record is complete by itself."""
        response = self._from_this_run(request.key)
        if response is None:
            response = self._from_other_run(request)
            if response is not None:
                response = self.put(request, response)
        return response

    def peek(self, request: Request) -> Response | None:
        """A response that this run recorded, or a deterministic one of another run. Errors are never reused."""
        return self._from_this_run(request.key) or self._from_other_run(request)

    def response(self, key: str) -> Response | None:
        """What this run recorded under a key; None where that is an error."""
        line = self._own.find(key)
        if line is None or line.failed:
            return None
        return self._usable(self._own.response(line))

    def _from_this_run(self, key: str) -> Response | None:
        line = self._own.find(key)
        if line is None or (line.name != self._name and not self._allows(line)):
            return None
        response = self.response(key)
        if response is not None and line.name != self._name:
            self.reused[line.engine, line.name] += 1
        return response

    def _allows(self, line: RecordOffset) -> bool:
        return self.reuse.allows(line.engine, time_of(line.name))

    def _from_other_run(self, request: Request) -> Response | None:
        for index in self._shared if request.deterministic else ():
            line = index.find(request.key)
            if line is not None and line.deterministic and not line.failed and self._allows(line):
                try:
                    response = self._usable(index.response(line))
                except RunError as error:  # this run computes it again
                    warn(f"a response of another run is not reused: {error}")
                    continue
                if response is not None and not response.empty and response.distribution is None:
                    self.reused[line.engine, line.name] += 1
                    return response
        return None

    def _usable(self, response: Response) -> Response | None:
        """None where the response is an error, or where its distribution's file was removed to save space."""
        if response.failed:
            return None
        if response.distribution is None or distribution_file(self.folder.parent, response.distribution).exists():
            return response
        return None

    def refresh(self) -> None:
        """Read what other processes have recorded since."""
        self._own.refresh()

    def put(self, request: Request, response: Response) -> Response:
        """Append a response. A distribution goes to its own file first, and the response has the name of that file."""
        if response.distribution is not None and not isinstance(response.distribution, str):
            response = replace(response, distribution=self._put_distribution(request.key, response.distribution))
        return self._append(request.key, request.kind, request.deterministic and self.shareable, without_secrets(response))

    def adopt(self, line: Mapping[str, Any]) -> None:
        """Append a response that another process sends, unless it is recorded already."""
        key, response = line["key"], Response.from_dict(line["response"])
        known = self._own.find(key)
        if known is None or known.failed:
            self._append(key, line["kind"], line["deterministic"] and self.shareable, without_secrets(response))

    def _append(self, key: str, kind: str, deterministic: bool, response: Response) -> Response:
        line = (
            f'{{"key": "{key}", "kind": "{kind}", "deterministic": {_encode(deterministic)}, '
            f'"failed": {_encode(response.failed)}, "response": {_encode(response.to_dict())}}}\n'
        )
        try:
            encoded = line.encode()
        except UnicodeEncodeError:  # lone surrogates; two that follow each other are read back as the character they make
            encoded = utf8(line)
            response = Response.from_dict(json.loads(encoded)["response"])
        offset = self._write(encoded)
        added = RecordOffset(response.failed, self._name, offset, deterministic, response.engine or "")
        self._own.add(key, added)
        self._own.skip(self._name, self._end)
        return response

    def _write(self, line: bytes) -> int:
        """Append a line and return its offset. The kernel has it then: it survives the end of this process."""
        try:
            handle, offset = self._open(), self._end
            written = handle.write(line)
            self._end += written
            if written < len(line):
                handle.write(line[written:])  # raises why there was no room for all of it
                raise OSError(None, "only a part of a response could be written")
            if (now := time.monotonic()) - self._checked_at > CHECK_S:
                self._checked_at = now
                self._refuse_removed()
        except OSError as error:
            self._handle = None  # later lines go to a new file: a torn line must stay the last
            raise RunError(f"cannot write to {self.folder}: {error.strerror or error}") from error
        return offset

    def _put_distribution(self, key: str, values: Any) -> str:
        """The file's name, relative to the folder of this model's runs, so that runs that share responses find it."""
        import numpy as np

        run, name, array = self.folder.parent, f"{DISTRIBUTIONS}/{key}.npy", np.asarray(values, dtype=np.float32)
        write_atomically(run / name, lambda handle: np.save(handle, array, allow_pickle=False), root=self.root, sync=False)
        return f"{run.name}/{name}"

    def supersede(self) -> None:
        """Set all responses aside, this run's and those that it would reuse: what they came of was found to be wrong."""
        mark_superseded(self.folder.parent, root=self.root)
        names = self._own.names
        self.close()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / name).rename(self.folder / f"{name}.superseded")
        self._own, self._shared = Index(self.folder), []

    def lookup(self, key: str) -> Response | None:
        """The response recorded under a key, errors included."""
        line = self._own.find(key)
        return None if line is None else self._own.response(line)

    def close(self) -> None:
        for index in (self._own, *self._shared):
            index.close()
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.fsync(handle.fileno())
                handle.close()
            except OSError as error:
                raise RunError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    def refuse_removed(self) -> None:
        """Raise where a file with responses of this run was removed."""
        for name in self._own.names:
            if not (self.folder / name).exists():
                raise self._removed(name)

    def _refuse_removed(self) -> None:
        """The same while a file is being written, also when another file has its name now."""
        assert self._handle is not None
        opened = os.fstat(self._handle.fileno())
        try:
            current = (self.folder / self._name).stat()
        except FileNotFoundError:
            current = None
        if current is None or not os.path.samestat(opened, current):
            raise self._removed(self._name)

    def _removed(self, name: str) -> RunError:
        return RunError(
            f"{self.folder / name} was removed or moved during the run: its responses are not recorded there; "
            "put the folder back, or run the same command again"
        )

    def _open(self) -> IO[bytes]:
        if self._handle is None:
            make_folder(self.folder, root=self.root)
            self._name, self._end, self._checked_at = f"{unique_name()}.jsonl", 0, time.monotonic()
            descriptor = os.open(self.folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
            self._handle = os.fdopen(descriptor, "wb", buffering=0)
        return self._handle


def _readable(folder: Path) -> Index | None:
    """The index of another run; None where it cannot be read, which must not stop this run."""
    try:
        return Index(folder)
    except RunError as error:
        warn(f"no responses are reused from another run: {error}")
        return None


def distribution_file(run: Path, name: str) -> Path:
    """The file that a response of a run names; refused where the name leads out of the folder of this model's runs."""
    root = run.parent
    try:
        file = root / name
        inside = file.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, TypeError, RuntimeError):  # too long, a loop of links, or not a name
        inside = False
    if not inside:
        raise RunError(f"a response in {run} names the file {name!r}, which is outside of {root}")
    return file


def without_secrets(response: Response) -> Response:
    """The response without known secrets; nearly always the same object."""
    if not any_known():
        return response
    changed: dict[str, Any] = {
        name: clean
        for name in ("text", "label", "error", "finish_reason")
        if (given := getattr(response, name)) and (clean := scrub(given)) != given
    }
    ranking = response.ranking and tuple((scrub(label), score) for label, score in response.ranking)
    tokens = _scrub_tokens(response.tokens, whole="text" not in changed)
    if not changed and ranking == response.ranking and tokens is response.tokens:
        return response
    return replace(response, **changed, ranking=ranking, tokens=tokens)


def _scrub_tokens(tokens: tuple[Token, ...] | None, *, whole: bool) -> tuple[Token, ...] | None:
    """None where a secret spans several tokens, each of which has a piece of it."""
    if not tokens:
        return tokens
    cleaned = tuple(map(_scrub_token, tokens))
    joined = "".join(token.text for token in cleaned)
    if not whole or scrub(joined) != joined:
        return None
    return tokens if all(new is old for new, old in zip(cleaned, tokens, strict=True)) else cleaned


def _scrub_token(token: Token) -> Token:
    text, names = scrub(token.text), [name if isinstance(name, int) else scrub(name) for name, _ in token.top]
    if text == token.text and all(new == old for new, (old, _) in zip(names, token.top, strict=True)):
        return token
    return replace(token, text=text, top=tuple((name, value) for name, (_, value) in zip(names, token.top, strict=True)))


class RecordOffset(NamedTuple):
    """A line of a record. Of two lines with one key and of one engine, the lesser wins."""

    failed: bool
    name: str
    offset: int
    deterministic: bool
    engine: str


class Index:
    """Reads the files of a folder once, and on `refresh` what was appended since. Where a key has several lines, those of
    the engine that answered last count: of them a response wins over an error, and the first file by name over the others.
    So every reader gets the same response."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, str] = {}  # of the files that have responses; each name is one object
        self._ends: dict[str, int] = {}
        self._offsets: dict[str, RecordOffset] = {}
        self._several: dict[str, list[RecordOffset]] = {}
        """All lines of the keys that have more than one."""
        self._handles: dict[str, IO[bytes]] = {}
        self.refresh()

    def __len__(self) -> int:
        return len(self._offsets)

    def refresh(self) -> None:
        """Read what other processes have appended since the last call."""
        for file in sorted(self.folder.glob("*.jsonl")):
            empty = 0
            for offset, line in self._new_lines(file):
                head = self._head(file, line)
                if head is None:
                    empty += 1
                    continue
                key, deterministic, failed, engine = head
                self.add(key, RecordOffset(failed, file.name, offset, deterministic, sys.intern(engine)))
            if empty:
                warn(f"{file}: {empty} lines have no response of their kind; they are ignored and their requests sent again")

    def add(self, key: str, added: RecordOffset) -> None:
        """Add a line; also one that this process has written itself, so that `refresh` does not read it again."""
        added = added._replace(name=self.names.setdefault(added.name, added.name))
        known = self._offsets.setdefault(key, added)
        if known is not added:
            lines = self._several.setdefault(key, [known])
            lines.append(added)
            latest = max(lines, key=itemgetter(1, 2)).engine
            self._offsets[key] = min(line for line in lines if line.engine == latest)

    def skip(self, name: str, end: int) -> None:
        """Mark a file as read up to `end`."""
        self._ends[name] = end

    def find(self, key: str) -> RecordOffset | None:
        """The line with the response to a key."""
        return self._offsets.get(key)

    def response(self, line: RecordOffset) -> Response:
        """The recorded response of a line."""
        try:
            handle = self._handle(line.name)
            handle.seek(line.offset)
            return read_response(_parse(handle.readline())["response"], "the response")
        except (OSError, KeyError, TypeError, MillError) as error:
            raise damaged(self.folder / line.name, f"at byte {line.offset}", error) from error

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def _handle(self, name: str) -> IO[bytes]:
        handle = self._handles.get(name)
        if handle is None:
            if len(self._handles) >= _OPEN_FILES:
                self.close()
            handle = self._handles[name] = open_regular(self.folder / name)
        return handle

    def _new_lines(self, file: Path) -> Iterator[tuple[int, bytes]]:
        """Whole lines with their offsets. A last line without a newline is torn or being written: it is left for later."""
        try:
            for offset, line in read_lines(file, self._ends.get(file.name, 0)):
                if not line.endswith(b"\n"):
                    break
                yield offset, line
                self._ends[file.name] = offset + len(line)
        except FileNotFoundError as error:
            raise RunError(f"cannot read {file}: {error.strerror}") from error

    def _head(self, file: Path, line: bytes) -> tuple[str, bool, bool, str] | None:
        """(key, deterministic, failed, engine); None of a line without a response of its kind."""
        parsed: _Head | RecordLine
        try:
            parsed = _decode_head(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            try:
                parsed = convert(parse_json(line, "the line", RunError), RecordLine, "the line", RunError)
            except RunError as error:
                raise damaged(file, f"at byte {self._ends.get(file.name, 0)}", error) from error
        failed, field = parsed.response.error is not None, ANSWER_FIELD.get(parsed.kind)
        if not failed and (field is None or getattr(parsed.response, field) is None):
            return None
        return parsed.key, parsed.deterministic, failed, parsed.response.engine or ""


class _Answers(msgspec.Struct):
    text: Any = None
    score: Any = None
    label: Any = None
    error: Any = None
    engine: str | None = None


class _Head(msgspec.Struct):
    """What the index needs of a line. One that has less, as those of the first version, is read in full."""

    key: str
    kind: str
    deterministic: bool
    response: _Answers


_decode_head = msgspec.json.Decoder(_Head).decode


def _parse(line: bytes) -> Any:
    """A line as JSON. What msgspec refuses, such as lone surrogates, Python may read."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return parse_json(line, "the line", RunError)


def damaged(file: Path, where: str, error: Exception) -> RunError:
    return RunError(f"{file} is damaged {where} ({error}): move the file away to compute its responses again")
