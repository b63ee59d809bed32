"""The two formats of inspect_ai's logs (version 2): `.eval`, a zip file with a member for each sample, and `.json`. Both
give the header, and the samples one at a time, the epochs of a sample together.

Members of a zip file may be hostile: sizes are checked before a byte is decompressed, and nothing is written. inspect_ai
compresses its logs with Zstandard, which Python's zipfile reads from 3.14 on; pyarrow has a decoder."""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from mill.api.errors import RunError
from mill.support.files import MOST_LINE, open_regular
from mill.support.validate import convert, parse_json

Scalar = str | int | float | bool | None


class InspectUsage(Struct):
    """Input tokens do not include those of the cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_cache_write: int | None = None
    input_tokens_cache_read: int | None = None
    reasoning_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + (self.input_tokens_cache_write or 0) + (self.input_tokens_cache_read or 0)


class InspectError(Struct):
    message: str


class InspectMetric(Struct):
    value: float | None = None


class InspectScores(Struct):
    """The metrics of a score; `name` differs from `scorer` where the scorer gives several scores."""

    name: str
    scorer: str = ""
    reducer: str | None = None
    scored_samples: int | None = None
    metrics: dict[str, InspectMetric] = {}


class InspectResults(Struct):
    total_samples: int = 0
    completed_samples: int = 0
    scores: list[InspectScores] = []


class InspectStats(Struct):
    started_at: str = ""
    completed_at: str = ""
    model_usage: dict[str, InspectUsage] = {}


class InspectDataset(Struct):
    name: str | None = None
    samples: int | None = None
    sample_ids: list[str | int] | None = None


class InspectConfig(Struct):
    limit: int | list[int] | None = None
    epochs: int | None = None
    epochs_reducer: list[str] | None = None


class InspectSpec(Struct):
    task: str
    model: str
    dataset: InspectDataset
    config: InspectConfig
    created: str = ""
    eval_id: str = ""
    task_version: int | str = 0
    task_args: dict[str, Any] = {}
    model_generate_config: dict[str, Any] = {}
    model_base_url: str | None = None
    model_args: dict[str, Any] = {}
    packages: dict[str, str] = {}


class InspectStep(Struct):
    solver: str


class InspectPlan(Struct):
    steps: list[InspectStep] = []
    config: dict[str, Any] = {}


class InspectHeader(Struct):
    """What a log has beside its samples. A log of a process that ended early has no results."""

    eval: InspectSpec
    version: int = 2
    status: str = "started"
    plan: InspectPlan = msgspec.field(default_factory=InspectPlan)
    results: InspectResults | None = None
    stats: InspectStats = msgspec.field(default_factory=InspectStats)
    error: InspectError | None = None


class InspectContent(Struct):
    """A part of a message."""

    type: str
    text: str | None = None
    reasoning: str | None = None
    summary: str | None = None
    redacted: bool = False
    image: str | None = None
    audio: str | None = None
    video: str | None = None
    filename: str | None = None
    name: str | None = None
    arguments: Any = None
    result: Any = None


class InspectCall(Struct):
    id: str
    function: str
    arguments: Any = None


class InspectCallError(Struct):
    type: str
    message: str = ""


class InspectMessage(Struct):
    role: str
    content: str | list[InspectContent] = ""
    id: str | None = None
    source: str | None = None
    tool_calls: list[InspectCall] | None = None
    tool_call_id: str | list[str] | None = None
    function: str | None = None
    error: InspectCallError | None = None


class InspectChoice(Struct):
    message: InspectMessage
    stop_reason: str = "unknown"


class InspectOutput(Struct):
    choices: list[InspectChoice] = []
    usage: InspectUsage | None = None
    time: float | None = None
    error: str | None = None


class InspectTool(Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class InspectModelEvent(Struct):
    """A call of a model."""

    output: InspectOutput
    tools: list[InspectTool] = []
    retries: int | None = None


class InspectScore(Struct):
    value: Scalar | list[Scalar] | dict[str, Scalar]
    answer: str | None = None
    explanation: str | None = None
    reason: str | None = None
    metadata: dict[str, Any] | None = None


class InspectLimit(Struct):
    type: str
    limit: float | None = None


class InspectSample(Struct):
    """A sample in one epoch. Long texts are in `attachments`: `attachment://HASH` refers to them."""

    id: str | int
    input: str | list[InspectMessage]
    target: str | list[str] = ""
    epoch: int = 1
    choices: list[str] | None = None
    messages: list[InspectMessage] = []
    output: InspectOutput = msgspec.field(default_factory=InspectOutput)
    scores: dict[str, InspectScore] | None = None
    metadata: dict[str, Any] | None = None
    events: list[Any] | None = None
    total_time: float | None = None
    uuid: str | None = None
    error: InspectError | None = None
    limit: InspectLimit | None = None


_HEADER = struct.Struct("<4s22xHH")  # of a member: signature, then the lengths of its name and of its extra field
_NO_ZIP = zipfile.BadZipFile, NotImplementedError, ArithmeticError, ValueError, EOFError, OSError, struct.error
_ZSTANDARD = 93
_MOST_RATIO = 1000  # of all members' size to the file's, where they exceed 1 GiB
_MOST_TOTAL = 1 << 30


@contextmanager
def zip_members(file: Path) -> Iterator[dict[str, Callable[[], bytes]]]:
    """What reads each member of a zip file, by name. Where a name is used twice the last counts, as in inspect_ai."""
    with open_regular(file) as handle:
        try:
            with zipfile.ZipFile(handle) as archive:
                members = {info.filename: info for info in archive.infolist()}
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ArithmeticError,
            ValueError,
            EOFError,
            OSError,
            struct.error,
        ) as error:
            raise RunError(f"{file} is not a valid zip file: {error}") from error
        size = os.fstat(handle.fileno()).st_size
        if sum(info.compress_size for info in members.values()) > size:
            raise RunError(f"{file} is not valid: its members overlap")
        total = sum(info.file_size for info in members.values())
        if total > max(_MOST_TOTAL, _MOST_RATIO * size):
            raise RunError(f"{file} is not valid: {size:,} bytes would become {total:,}")
        yield {name: partial(_read_member, handle, info, f"{file}, member {name},") for name, info in members.items()}


def _read_member(handle: IO[bytes], info: zipfile.ZipInfo, where: str) -> bytes:
    """Refused where it is larger than MOST_LINE, damaged, or not as large as the file says."""
    if max(info.file_size, info.compress_size) > MOST_LINE:
        raise RunError(f"{where} is larger than {MOST_LINE >> 20} MiB")
    if info.flag_bits & 1:
        raise RunError(f"{where} is encrypted")
    try:
        handle.seek(info.header_offset)
        signature, name, extra = _HEADER.unpack(handle.read(_HEADER.size))
        if signature != b"PK\x03\x04":
            raise ValueError("it does not begin with a header")
        handle.seek(name + extra, os.SEEK_CUR)
        data = _decompressed(handle.read(info.compress_size), info)
    except (ArithmeticError, ValueError, OSError, struct.error, zlib.error) as error:
        raise RunError(f"{where} cannot be decompressed: {error}") from error
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise RunError(f"{where} is damaged: its size or checksum is wrong")
    return data


def _decompressed(raw: bytes, info: zipfile.ZipInfo) -> bytes:
    """At most one byte more than the file says."""
    if info.compress_type == zipfile.ZIP_STORED:
        return raw
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, info.file_size + 1)
    if info.compress_type == _ZSTANDARD:
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), "zstd") as stream:
            return bytes(stream.read(info.file_size + 1))
    raise ValueError(f"compression {info.compress_type} is not supported")


_SAMPLE = re.compile(r"samples/(.*)_epoch_(\d{1,9})\.json", re.DOTALL)


@dataclass
class InspectLog:
    """An open log. `epochs` has for each sample, by its id, the number of each epoch, where it is, and what reads it."""

    header: InspectHeader
    epochs: dict[str, list[tuple[int, str, Callable[[], Any]]]] = field(default_factory=dict)

    def read(self, name: str) -> Iterator[tuple[Any, str]]:
        """Each epoch of a sample as JSON, and where it is in the file; a RunError where it cannot be read."""
        for _, where, read in sorted(self.epochs[name], key=lambda epoch: epoch[0]):
            yield read(), where


@contextmanager
def open_inspect_log(file: Path) -> Iterator[InspectLog]:
    if file.suffix != ".eval":
        yield _json_log(file)
        return
    with zip_members(file) as members:
        yield _eval_log(file, members)


def _eval_log(file: Path, members: Mapping[str, Callable[[], bytes]]) -> InspectLog:
    """A `.eval` file. One that was not finished has its start in `_journal`."""

    def read(member: str) -> Any:
        return parse_json(members[member](), f"{file}, {member},", RunError)

    name = "header.json" if "header.json" in members else "_journal/start.json"
    if name not in members:
        raise RunError(f"{file} is not a log of inspect_ai: it has no header.json")
    log = InspectLog(_header(read(name), f"{file}, {name},"))
    for member in members:
        if found := _SAMPLE.fullmatch(member):
            epoch = int(found[2]), f"{file}, {member},", partial(read, member)
            log.epochs.setdefault(found[1], []).append(epoch)
    return log


def _json_log(file: Path) -> InspectLog:
    """A `.json` file is read as a whole: large logs are `.eval` files. Of a sample that it has twice the last counts."""
    with open_regular(file) as handle:
        raw = handle.read(MOST_LINE + 1)
    if len(raw) > MOST_LINE:
        raise RunError(f"{file} is larger than {MOST_LINE >> 20} MiB: `inspect log convert --to eval` makes a smaller log")
    data = parse_json(raw, file, RunError)
    samples = data.pop("samples", None) if isinstance(data, dict) else None
    log, seen = InspectLog(_header(data, file)), dict[tuple[str, int], Any]()
    for index, sample in enumerate(samples if isinstance(samples, list) else ()):
        found = sample if isinstance(sample, dict) else {}
        epoch = found.get("epoch")
        seen[str(found.get("id", f"samples[{index}]")), epoch if isinstance(epoch, int) else 1] = sample
    for name, number in seen:
        log.epochs.setdefault(name, []).append(
            (number, f"{file}, sample {name} of epoch {number},", partial(dict.get, seen, (name, number)))
        )
    return log


def in_order(names: Sequence[str], ids: Sequence[str | int]) -> list[str]:
    """Names in the order of the dataset; those that it does not have are last."""
    positions = {str(one): position for position, one in enumerate(ids)}
    return sorted(names, key=lambda name: positions.get(name, len(positions)))


def _header(data: Any, where: object) -> InspectHeader:
    header: InspectHeader = convert(data, InspectHeader, where, RunError)
    if header.version < 2:
        raise RunError(f"{where} has version {header.version} of inspect_ai's logs; `inspect log convert` makes a newer one")
    return header
