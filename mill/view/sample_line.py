"""One row of samples/<task>.jsonl as the scalar columns of the index. Texts are hashed, never stored."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from mill.store.sample_row import FLAGS, SampleRow
from mill.support.files import hash_docs

FLAG_BITS = {name: 1 << number for number, name in enumerate((*FLAGS, "logprobs"))}
TOKENS = FLAG_BITS["logprobs"]
METRIC_COLUMNS = 6  # of one task; further metrics are in the samples alone
_ABSENT = (b"", b"null")
_decode_responses = msgspec.json.Decoder(list[list[dict[str, Any]]]).decode


def indexed(row: SampleRow, metrics: Sequence[str]) -> tuple[Any, ...]:
    """The columns behind the status. `metrics` are those of the task, in the order of the columns.

    What was sent and answered are checksums: two samples that are paired already are compared by them. That of the
    extracted answer is 0 where none is extracted.
    """
    worst, worst_at, has_tokens = _worst_token(_raw(row.responses))
    values = [row.means.get(name) for name in metrics[:METRIC_COLUMNS]]
    numbers = [float(value) if isinstance(value, (int, float)) and not row.error else None for value in values]
    extracted = _raw(row.extracted)
    answer = row.response if row.response is not None else row.chosen
    return (
        sum(FLAG_BITS[name] for name in row.flags if name in FLAG_BITS) | (TOKENS if has_tokens else 0),
        row.prompt_tokens,
        row.output_tokens,
        row.seconds,
        _margin(row.choice_logprobs),
        worst,
        worst_at,
        _checksum(row.prompt),
        _checksum(answer) if answer is not None else 0,
        zlib.crc32(extracted) if extracted not in _ABSENT else 0,
        *numbers,
        *[None] * (METRIC_COLUMNS - len(numbers)),
    )


def pair_key(row: SampleRow) -> int:
    """By which samples of two runs are paired, as in mill.checks.pairing: the digest of their data, else their request or
    id; 64 bits as SQLite stores integers."""
    digest = row.data_hash or hash_docs([{"request": row.request_key or str(row.id)}])
    return int.from_bytes(bytes.fromhex(digest[:16]), "big", signed=True)


def _raw(part: Any) -> bytes:
    return bytes(part) if isinstance(part, msgspec.Raw) else b""


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


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
