"""One line of samples/<task>.jsonl as the scalar columns of the index. Texts are hashed, never stored."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from mill.api.errors import RunError
from mill.api.validate import parse_json
from mill.runs.sample_head import ABSENT, SampleLineHead
from mill.runs.sample_status import status_of

TRUNCATED, CUT_SHORT, EMPTY, CUT_REASONING, LAST_ROUND, TOKENS = (1 << bit for bit in range(6))
FLAGS = {
    "truncated_prompt": TRUNCATED,
    "token_limit": CUT_SHORT,
    "empty": EMPTY,
    "truncated_reasoning": CUT_REASONING,
    "max_rounds_reached": LAST_ROUND,
    "logprobs": TOKENS,
}
METRIC_COLUMNS = 6  # of one task; further metrics are in the samples alone


class IndexedSample(NamedTuple):
    """A row of the index without the columns of its file and position."""

    key: int
    name: str
    category: str
    status: int
    flags: int
    prompt_tokens: float | None
    output_tokens: float | None
    seconds: float | None
    margin: float | None
    worst: float | None
    worst_at: int | None
    prompt_key: int
    """Checksums of what was sent and answered: two samples that are paired already are compared by them."""
    answer_key: int
    extracted_key: int
    """0 where no answer is extracted."""
    values: tuple[float | None, ...]


_decode_responses = msgspec.json.Decoder(list[list[dict[str, Any]]]).decode


def indexed(head: SampleLineHead, line: bytes, metrics: Sequence[str]) -> IndexedSample:
    """`metrics` are those of the task, in the order of the columns; the first is the one that decides right or wrong."""
    values = () if head.error else tuple(_value(head, name, line) for name in metrics[:METRIC_COLUMNS])
    worst, worst_at, has_tokens = _worst_token(bytes(head.responses))
    doc = bytes(head.doc)
    return IndexedSample(
        key=_hash(doc if doc not in (*ABSENT, b"{}") else str(head.id).encode("utf-8", "backslashreplace")),
        name=str(head.id),
        category=head.category or "",
        status=status_of(head.error, values[0] if values else None),
        flags=_flags(head) | (TOKENS if has_tokens else 0),
        prompt_tokens=head.prompt_tokens,
        output_tokens=head.output_tokens,
        seconds=head.seconds,
        margin=_margin(head.choice_logprobs),
        worst=worst,
        worst_at=worst_at,
        prompt_key=zlib.crc32(head.prompt),
        answer_key=zlib.crc32(_answer(head)),
        extracted_key=zlib.crc32(head.extracted) if bytes(head.extracted) not in ABSENT else 0,
        values=values,
    )


def _answer(head: SampleLineHead) -> bytes:
    """What the model answered: its text or label, else its choice."""
    response = bytes(head.response)
    return response if response not in ABSENT else bytes(head.chosen)


def _flags(head: SampleLineHead) -> int:
    empty = bytes(head.response) == b'""' and not head.error
    return (
        TRUNCATED * head.truncated
        | CUT_SHORT * (head.finish_reason == "length")
        | EMPTY * empty
        | CUT_REASONING * head.truncated_reasoning
        | LAST_ROUND * head.max_rounds_reached
    )


def _value(head: SampleLineHead, metric: str, line: bytes) -> float | None:
    """The mean over repeats. Of a metric of pairs, such as perplexity, the column that the run has written."""
    found = [value for value in head.values.get(metric, ()) if value is not None]
    if not found:
        return None
    if all(isinstance(value, (int, float)) for value in found):
        return float(sum(found) / len(found))
    if isinstance(found[0], list):
        try:
            row = parse_json(line, "the line", RunError)
        except RunError:
            return None
        value = row.get(metric, row.get(f"metric_{metric}"))
        return float(value) if isinstance(value, (int, float)) else None
    return None


def _margin(scores: Sequence[float | None] | None) -> float | None:
    """By how much the best choice beats the second, in nats: how near to a tie the answer was."""
    known = sorted((score for score in scores or () if score is not None), reverse=True)
    return known[0] - known[1] if len(known) > 1 and math.isfinite(known[0] - known[1]) else None


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


def _hash(text: bytes) -> int:
    """64 bits, as SQLite stores integers: samples of two runs are paired by it."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


class SampleLineTexts(msgspec.Struct, gc=False):
    """The texts of a line that lists and the search show."""

    prompt: str = ""
    target: str | None = None
    response: str | None = None
    reasoning: str | None = None
    chosen: str | None = None
    error: str | None = None

    @property
    def written(self) -> str:
        """Everything that the model wrote."""
        return "\n".join(filter(None, (self.reasoning, self.response, self.chosen)))


_decode_texts = msgspec.json.Decoder(SampleLineTexts).decode


def read_texts(line: bytes) -> SampleLineTexts:
    """Raises ValueError for a line that is no sample."""
    try:
        return _decode_texts(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
