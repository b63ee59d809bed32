"""A sample as one row, a line of samples/<task>.jsonl: everything that writes or reads samples does so by `SampleRow`.

model, model_id, settings   the run: the model's name, its folder (other weights or another dtype are another one), and the
                            settings as in `mill collect`
task, id, category          the sample; category is null where there is none
status                      right, wrong, graded, unscored, failed, or pending where the run has not reached it
flags                       what people should know beside the score, such as token_limit; the names are those of `FLAGS`
prompt                      as it was sent: after the chat template, or the messages as JSON where a server applies it
target, response            the gold answer as text; the text (or label) of the model, in a dialog of the last round
reasoning                   what the model wrote before its answer; null where it did not reason
extracted                   the answer that was read from the response; of multiple choice spelled as `target` is
choices, chosen, choice_logprobs, correct   of multiple choice by log-probability
error, finish_reason, prompt_tokens, output_tokens, seconds, reasoning_tokens (among the output tokens, where counted)
means                       the sample's value of each metric, the mean over repeats; null where it has none
<metric>                    the same as flat columns, for pandas and DuckDB
data_hash                   a digest of `doc`, by which samples of two runs are paired
responses, values, ...      every response and value of every repeat; `mill score` reads these
unrendered                  the prompt before the chat template, where that is another text
prompts                     where a sample has responses to different prompts, such as orders of choices: one for each
tools, added_tools          the tools that the model got, and those that came in a later round of a dialog
media                       images, audio and videos of the prompt: type, name (a path, where there is one) and digest
messages                    of a dialog: the messages of the last round for each repeat
details                     for each repeat why it has its values, such as the error of a program; missing for most tasks

`response` and the columns after it are those of the first repeat. Numbers that are not finite are null in flat columns.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from mill.api.errors import RunError
from mill.api.response import Response
from mill.store.folder import RunFolder
from mill.store.sample_schema import MediaEntry, MessageEntry, ResponseEntry, ToolEntry, ValueEntry
from mill.support.files import hash_docs, json_text, read_lines, write_atomically
from mill.support.secrets import scrub
from mill.support.terminal import utf8
from mill.support.validate import convert, parse_json

if TYPE_CHECKING:
    Nested = Any
else:
    Nested = msgspec.Raw  # a part that is decoded when it is used: most readers of many rows need none of them
Number = float | tuple[float, float]
"""A metric's value of a sample: a number, or a log-likelihood with its number of units."""


STATUSES = PENDING, FAILED, RIGHT, WRONG, GRADED, UNSCORED = "pending", "failed", "right", "wrong", "graded", "unscored"
"""What came of a sample, in one word. A sample that the run has not reached is neither failed nor wrong."""
NOT_ANSWERED = "not answered"
ROUNDS = "max_rounds_reached"


@dataclass(frozen=True)
class Flag:
    """What people should know about a sample beside its score. `says` follows the number of samples that have it; `seen`
    finds it in a response."""

    says: str
    seen: Callable[[Response], bool] = lambda response: False


FLAGS = {
    "truncated_prompt": Flag(
        "have a prompt that was truncated on the left to fit the context", lambda response: bool(response.truncated_tokens)
    ),
    "token_limit": Flag(
        "have an answer that ended at the token limit; --max_tokens sets it",
        lambda response: response.finish_reason == "length",
    ),
    "truncated_reasoning": Flag(
        "have an answer that ended inside its reasoning: raise --max_tokens", lambda response: response.truncated_reasoning
    ),
    ROUNDS: Flag("have a dialog that ended at the limit of rounds before it was over: raise --max_rounds"),
    "empty": Flag(
        "have an empty answer, as of an instruct model without its chat template (--apply_chat_template)",
        lambda response: response.empty,
    ),
    "filtered": Flag(
        "have an answer that the server's content filter withheld",
        lambda response: response.finish_reason == "content_filter",
    ),
}
"""Every table, report and filter counts and shows these: a new one is an entry here."""


def flag_words(flag: str) -> str:
    return flag.replace("_", " ")


def status_of(error: str | None, value: Any) -> str:
    """`value` is that of the task's first metric, None where the sample has none."""
    if error:
        return PENDING if error == NOT_ANSWERED else FAILED
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return UNSCORED
    return RIGHT if value == 1.0 else WRONG if value == 0.0 else GRADED


class SampleRow(msgspec.Struct, kw_only=True, gc=False):
    """One line, as it is written and as it is read."""

    id: str | int
    model: str = ""
    model_id: str = ""
    settings: str = ""
    task: str = ""
    category: str | None = None
    status: str = ""
    flags: list[str] = []
    prompt: str
    target: Nested = None
    response: str | None = None
    reasoning: str | None = None
    extracted: Nested = None
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    seconds: float | None = None
    reasoning_tokens: float | None = None
    data_hash: str = ""
    means: dict[str, Any] = {}
    continuations: list[str] = []
    responses: Nested = []
    values: dict[str, list[Any]] = {}
    keys: list[list[str]]
    doc: Nested = None

    # Left out of the line where a sample has none.
    choices: list[str] | None = None
    chosen: str | None = None
    choice_logprobs: list[float | None] | None = None
    correct: bool | None = None
    unrendered: str | None = None
    extracted_repeats: Nested = []
    judgements: Nested = []
    prompts: list[str] = []
    messages: Nested = []
    tools: Nested = []
    added_tools: Nested = []
    media: Nested = []
    details: Nested = []
    escaped: bool = False
    """Whether lone surrogates are written as `\\udXXX` in this line, and each backslash doubled."""

    # Flags of rows that were written before there was a column of them.
    truncated: bool = False
    truncated_reasoning: bool = False
    max_rounds_reached: bool = False

    def mean(self, metric: str) -> float | None:
        """The sample's value of a metric as a number, also where that is not finite."""
        found = self.means.get(metric)
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            return float(found)
        value = mean_over_repeats(self.values.get(metric, ()))
        return value if isinstance(value, float) else None

    def number(self, metric: str) -> Number | None:
        """The mean of a metric over the repeats; a log-likelihood with its number of units as a pair. None where there is
        none, or one that only the task can read."""
        return None if self.error else mean_over_repeats(self.values.get(metric, ()))

    @property
    def request_key(self) -> str:
        """The key of the first request, empty where there is none."""
        return self.keys[0][0] if self.keys and self.keys[0] else ""

    def tokens(self) -> tuple[int | None, int | None]:
        """Prompt and output tokens of all responses of all repeats; None where none are counted."""
        responses = [one for repeat in plain(self.responses) for one in repeat]
        return total([one.get("prompt_tokens") for one in responses]), total([one.get("output_tokens") for one in responses])


_FIELDS = SampleRow.__struct_fields__
_NESTED: dict[str, Any] = {
    "target": Any,
    "extracted": Any,
    "responses": list[list[ResponseEntry]],
    "doc": dict[str, Any],
    "values": dict[str, list[ValueEntry]],
    "extracted_repeats": list[Any],
    "judgements": list[list[str | None]],
    "messages": list[list[MessageEntry]],
    "tools": list[ToolEntry],
    "added_tools": list[ToolEntry],
    "media": list[MediaEntry],
    "details": list[dict[str, Any]],
}
_REQUIRED = {"id", "prompt", "target", "continuations", "keys", "responses", "doc"}
_WholeRow = msgspec.defstruct(
    "SampleRow",
    [
        (one.name, kind) if one.name in _REQUIRED else (one.name, kind, None)
        for one in msgspec.structs.fields(SampleRow)
        for kind in [_NESTED.get(one.name, one.type)]
    ],
    kw_only=True,
)
"""The same columns with the types of all nested parts, which a row is checked against where all of it is used."""


_decode = msgspec.json.Decoder(SampleRow).decode


def plain(part: Any) -> Any:
    """A nested part as Python has it."""
    return msgspec.json.decode(part) if isinstance(part, msgspec.Raw) else part


def total(counts: Sequence[Any]) -> Any:
    """The sum of what is known; None where nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def mean_over_repeats(repeats: Sequence[Any]) -> Number | None:
    """The mean of the values of a row; None where one of them is no number, such as a value that only its task can read."""
    if len(repeats) == 1 and type(repeats[0]) is float:  # most samples
        return repeats[0]
    found = [value for value in repeats if value is not None]
    if found and all(isinstance(value, (list, tuple)) and len(value) == 2 for value in found):
        sides = [[number(part) for part in side] for side in zip(*found, strict=True)]
        first, second = (math.nan if None in side else sum(filter(None, side)) / len(side) for side in sides)
        return None if math.isnan(first) or math.isnan(second) else (first, second)
    numbers = [number(value) for value in found]
    if not numbers or None in numbers:
        return None
    return sum(number for number in numbers if number is not None) / len(numbers)


def number(value: Any) -> float | None:
    """A number; one that is not finite is a text in JSON."""
    if value in ("Infinity", "-Infinity"):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def run_columns(model: str, folder: RunFolder) -> dict[str, str]:
    """The columns that distinguish the rows of several runs."""
    return {"model": model, "model_id": folder.path.parent.name, "settings": folder.path.name}


def columns_of(row: SampleRow) -> dict[str, Any]:
    """A row with a flat column for each of its metrics, as its line has it. The columns of multiple choice are there where
    a sample has choices."""
    columns = {name: getattr(row, name) for name in _FLAT}
    if row.choices:
        columns |= {name: getattr(row, name) for name in _OF_CHOICES}
    for name, value in row.means.items():
        columns[f"metric_{name}" if name in _FIELDS else name] = value
    columns |= {name: getattr(row, name) for name in _BEHIND}
    columns |= {name: value for name in _WHERE_PRESENT if (value := getattr(row, name))}
    return columns


_BEHIND = ("means", "continuations", "responses", "values", "keys", "doc")
_OF_CHOICES = ("choices", "chosen", "choice_logprobs", "correct")
_FLAT = [name for name in _FIELDS[: _FIELDS.index("choices")] if name not in _BEHIND]
_WHERE_PRESENT = _FIELDS[_FIELDS.index("unrendered") :]


def write_lines(folder: RunFolder, task: str, lines: Iterable[str], *, sync: bool = True) -> None:
    """The file of a task's samples from its lines, of which one at a time is in memory."""

    def fill(handle: IO[bytes]) -> None:
        for line in lines:
            handle.write(utf8(scrub(line)))
            handle.write(b"\n")

    write_atomically(folder.samples_file(task), fill, root=folder.root, sync=sync)


_SURROGATE = re.compile("[\ud800-\udfff]")
_encode = msgspec.json.Encoder().encode
_FROM_TASKS = ("doc", "extracted", "extracted_repeats", "messages", "tools", "added_tools", "details", "means")
"""Columns with values of a task's own making; all others are made of numbers and texts here."""
_PLAIN_TYPES = {str, bool, int, type(None)}
_KEY_TYPES = {str}


def line_of(columns: Mapping[str, Any]) -> str:
    """A row as JSON. Lone surrogates are written out and the line is marked: DuckDB reads no line with their escapes."""
    with contextlib.suppress(UnicodeEncodeError, OverflowError, RecursionError, TypeError):
        line = _encode(columns)  # which refuses what contains itself
        if _is_plain(*(columns[name] for name in _FROM_TASKS if name in columns)):
            line = msgspec.json.format(line, indent=0)  # both in a fifth of the time of json.dumps
            return line.decode()
    text = json_text(columns)
    if not _SURROGATE.search(text):
        return text
    return json_text({**_mapped(columns, _escape), "escaped": True})


def _is_plain(*values: Any) -> bool:
    """Whether values have only the types of JSON, and finite numbers."""
    waiting: list[Iterable[Any]] = [values]
    while waiting:
        for value in waiting.pop():
            kind = type(value)
            if kind is dict and set(map(type, value)) <= _KEY_TYPES:
                waiting.append(value.values())
            elif kind is list or kind is tuple:
                waiting.append(value)
            elif kind not in _PLAIN_TYPES and not (kind is float and math.isfinite(value)):
                return False
    return True


def read_row(line: bytes) -> SampleRow:
    """A line whose nested parts are not decoded, nor are its escapes. Raises ValueError for a line that is no sample."""
    try:
        row = _decode(line)
        return row if row.status else _upgraded(row, line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def read_any_row(line: bytes) -> SampleRow:
    """A line as it may be in a file of someone else: columns of other types than mill's count as absent. Raises ValueError
    for a line without an id."""
    with contextlib.suppress(ValueError):
        return read_row(line)
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    given = data if isinstance(data, dict) else {}
    known = {one.name: given[one.name] for one in msgspec.structs.fields(SampleRow) if one.name in given}
    kinds = {one.name: one.type for one in msgspec.structs.fields(SampleRow)}
    fitting = {name: value for name, value in known.items() if _fits(value, kinds[name])}
    return read_row(_encode({"prompt": "", "keys": [], **fitting}))


def _fits(value: Any, kind: Any) -> bool:
    if kind is msgspec.Raw:
        return True
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _upgraded(row: SampleRow, line: bytes) -> SampleRow:
    """A row of a version that wrote neither status, flags and means nor the digest of the data."""
    row.flags = row.flags or _flags_of(row)
    if row.values and not row.means:
        flat = msgspec.json.decode(line)
        row.means = {name: flat.get(f"metric_{name}", flat.get(name)) for name in row.values}
    row.status = status_of(row.error, next(iter(row.means.values()), None))
    row.error = None if row.status == PENDING else row.error
    doc = plain(row.doc)
    row.data_hash = hash_docs([doc]) if doc else ""
    return row


def _flags_of(row: SampleRow) -> list[str]:
    seen = {
        "truncated_prompt": row.truncated,
        "token_limit": row.finish_reason == "length",
        "truncated_reasoning": row.truncated_reasoning,
        ROUNDS: row.max_rounds_reached,
        "empty": row.response == "" and not row.error,
        "filtered": row.finish_reason == "content_filter",
    }
    return [name for name in FLAGS if seen[name]]


def read_light(file: Path, task: str) -> list[SampleRow]:
    """The rows of a file without their texts and nested parts, for tests over many samples: `prompt` is a digest. Empty
    where there is no file. A line that is no sample is refused; of two lines of one sample the first counts."""
    found: dict[str, SampleRow] = {}
    for row in iterate_rows(file):
        row.task, row.id = task, str(row.id)
        row.prompt = str(hash(row.prompt))
        row.target = row.extracted = row.doc = row.response = row.reasoning = None
        row.responses, row.messages, row.details, row.tools, row.added_tools, row.media = [], [], [], [], [], []
        found.setdefault(row.id, row)
    return list(found.values())


def iterate_rows(file: Path) -> Iterator[SampleRow]:
    """The rows of a file as `read_row` reads them; none where there is no file. A line that is no sample is refused."""
    with contextlib.suppress(FileNotFoundError):
        for number, (_, line) in enumerate(read_lines(file), 1):
            if line.strip():
                try:
                    yield read_row(line)
                except ValueError as error:
                    raise RunError(f"{file}, line {number}, is not a sample: {error}") from error


def read_rows(file: Path) -> Iterator[tuple[str, SampleRow]]:
    """The rows of a file, whole and checked, one at a time, each with the words that name it in a message."""
    try:
        for number, (_, line) in enumerate(read_lines(file), 1):
            if line.strip():
                where = f"{file}, line {number},"
                yield where, whole_row(parse_json(line, where, RunError, strict=True), where)
    except FileNotFoundError:
        raise RunError(f"cannot read {file}: there is no such file; `mill eval` writes it") from None


def unique_rows(file: Path) -> dict[str | int, tuple[str, SampleRow]]:
    """All rows of a file by the ids of their samples, each with the words that name it. Two rows of one are refused."""
    rows: dict[str | int, tuple[str, SampleRow]] = {}
    for where, row in read_rows(file):
        if row.id in rows:
            raise RunError(f"{where} is a second line of sample {row.id}: remove one of them")
        rows[row.id] = where, row
    return rows


def whole_row(data: Any, where: object) -> SampleRow:
    """A row from its columns, once they fit their types."""
    convert(data, _WholeRow, where, RunError)
    columns = unescaped(data)
    row = SampleRow(**{name: columns[name] for name in _FIELDS if columns.get(name) is not None or name in _REQUIRED})
    _refuse_uneven(row, where)
    return row if row.status else _upgraded(row, _encode(columns))


def _refuse_uneven(row: SampleRow, where: object) -> None:
    """Refuse repeats, responses and results of tools that do not belong together."""
    keys, responses = row.keys, row.responses
    if not keys or not all(keys):
        raise RunError(f"{where} is not valid: keys: a list of keys for each repeat is needed")
    if len(responses) != len(keys) or any(len(repeat) > len(names) for repeat, names in zip(responses, keys, strict=True)):
        raise RunError(f"{where} is not valid: responses: a response for each of the keys is needed")
    if row.judgements and len(row.judgements) != len(keys):
        raise RunError(f"{where} is not valid: judgements: a list for each repeat is needed")
    for number, repeat in enumerate(responses):
        for index, response in enumerate(repeat):
            results = response.get("tool_results")
            if results and len(results) != len(response.get("tool_calls") or ()):
                path = f"responses[{number}][{index}].tool_results"
                raise RunError(f"{where} is not valid: {path}: a result for each of the calls is needed")


def with_status(columns: Mapping[str, Any], row: SampleRow) -> dict[str, Any]:
    """The columns of a line with those that an earlier version did not write."""
    added = {"status": row.status, "flags": row.flags, "error": row.error}
    return dict(columns) if columns.get("status") else {**columns, **added}


def unescaped(line: Any) -> Any:
    """A line whose lone surrogates were written out, with them; any other line as it is."""
    return _mapped(line, _unescape) if line.get("escaped") else line


def _mapped(data: Any, change: Callable[[str], str]) -> Any:
    """The same data with every text in it changed."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, Mapping):
        return {_mapped(key, change): _mapped(value, change) for key, value in data.items()}
    return [_mapped(value, change) for value in data] if isinstance(data, (list, tuple)) else data


def _escape(text: str) -> str:
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\\", "\\\\"))


def _unescape(text: str) -> str:
    return re.sub(r"\\(?:\\|u(d[89a-f][0-9a-f]{2}))", lambda found: chr(int(found[1], 16)) if found[1] else "\\", text)
