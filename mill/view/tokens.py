"""Tokens of responses with their log-probabilities, of one run or of two side by side."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mill.api.errors import MillError
from mill.api.response import Response, Token
from mill.checks.answers import Answer
from mill.checks.pairing import Divergence, find_divergence
from mill.metrics.divergence import bounded_gap, common_start, exact_gaps
from mill.store.record import distribution_file
from mill.store.sample_schema import read_response
from mill.support.files import encode_float
from mill.view.database import TOKENS
from mill.view.index import ResultsIndex
from mill.view.queries import Page, SampleFilter, files_of, find_run, list_samples, read_line, sample_row
from mill.view.run_info import RunInfo, file_signature

_FILE = "tokenizer.json"
LARGEST = 1 << 27  # bytes


class TokenTexts:
    """Looks up ids in texts that are known already, then in the tokenizer. An unknown id is `#id`."""

    def __init__(self, run: RunInfo, known: dict[int, str]) -> None:
        file = run.model_path / _FILE if run.model_path is not None else None
        signature = file_signature(file) if file is not None else None
        self._known, self._tokenizer = known, _load(file, signature) if signature and signature[0] <= LARGEST else None

    def __call__(self, name: int | str) -> str:
        if isinstance(name, str):
            return name
        if name not in self._known:
            text = self._tokenizer.decode([name], skip_special_tokens=False) if self._tokenizer is not None else ""
            self._known[name] = text or f"#{name}"
        return self._known[name]


@lru_cache(maxsize=8)
def _load(file: Path, signature: Any) -> Any:
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(file))
    except Exception:  # tokenizers raises plain Exceptions; without texts, ids are shown
        return None


FORCED = "forced"  # the task of the texts that a check lets both engines score
_one_reader = threading.Lock()
"""numpy reads the head of a file with Python's parser, which fails in CPython 3.11 where another thread uses it too."""
MOST_TEXTS = 500  # whose tokens are compared for the list of the worst
MOST_LISTED = 100
_ALTERNATIVES = 10
_CONTEXT = 40  # characters before a listed token


def responses_of(line: Mapping[str, Any]) -> list[Response]:
    """The responses of the first repeat; none where they are not valid, as in a file of someone else."""
    repeats = line.get("responses")
    first = repeats[0] if isinstance(repeats, list) and repeats else []
    try:
        return [read_response(one, "the sample") for one in first] if isinstance(first, list) else []
    except MillError:
        return []


def scored_response(line: Mapping[str, Any]) -> Response | None:
    """The response whose tokens are shown: the generated text, else the choice with the highest log-probability."""
    known = [one for one in responses_of(line) if one.tokens]
    if not known:
        return None
    scored = [one for one in known if one.score is not None]
    return max(scored, key=lambda one: one.score or -math.inf) if scored and len(scored) == len(known) else known[-1]


def divergence_of(first: Mapping[str, Any], second: Mapping[str, Any]) -> Divergence | None:
    """Where the texts of two samples diverge; None where one has none, or both are the same."""
    a, b = _answer(first), _answer(second)
    return None if a is None or b is None or a.text == b.text else find_divergence(a, b)


def _answer(line: Mapping[str, Any]) -> Answer | None:
    responses = responses_of(line)
    if not responses or responses[-1].text is None:
        return None
    response = responses[-1]
    tokens = response.tokens
    if response.reasoning is not None and tokens is not None:
        tokens = None if response.reasoning_tokens is None else tokens[response.reasoning_tokens :]
    return Answer("", str(line.get("id")), "", "", None, response.text or "", tokens=tokens)


def token_table(line: Mapping[str, Any], run: RunInfo) -> list[dict[str, Any]]:
    """The tokens of one run's response."""
    response = scored_response(line)
    tokens = with_alternatives(run, response)[0] if response is not None else ()
    names = TokenTexts(run, _texts(tokens))
    return [_entry(token, names) for token in tokens]


def with_alternatives(run: RunInfo, response: Response) -> tuple[tuple[Token, ...], Any]:
    """The tokens of a response, and the whole distributions where it was scored with them: the tokens then have the most
    likely ones of these as alternatives."""
    tokens = response.tokens or ()
    if not isinstance(response.distribution, str):
        return tokens, None
    import numpy as np

    try:
        with _one_reader:
            rows = np.load(distribution_file(run.path, response.distribution), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, MillError):
        return tokens, None
    if rows.ndim != 2 or len(rows) != len(tokens):
        return tokens, None
    found = []
    for token, row in zip(tokens, rows, strict=True):
        best = [int(index) for index in (-row).argsort()[:_ALTERNATIVES]]
        found.append(Token(token.id, token.text, token.logprob, tuple((index, float(row[index])) for index in best)))
    return tuple(found), rows


def paired_tokens(
    first: Mapping[str, Any], second: Mapping[str, Any], runs: tuple[RunInfo, RunInfo]
) -> list[dict[str, Any]]:
    """The tokens of the first run, as far as both runs have computed them after the same tokens: with both log-probabilities
    and the KL between the two. That is `exact` where whole distributions are recorded, else a lower bound."""
    sides = [scored_response(line) for line in (first, second)]
    if sides[0] is None or sides[1] is None:
        return []
    (a, rows_a), (b, rows_b) = with_alternatives(runs[0], sides[0]), with_alternatives(runs[1], sides[1])
    names = TokenTexts(runs[0], _texts((*a, *b)))
    same = common_start([token.name for token in a], [token.name for token in b])
    entries = [_pair_entry(a[at], b[at], names, diverged=at >= same) for at in range(min(same + 1, len(a), len(b)))]
    if rows_a is not None and rows_b is not None and same == len(a) == len(b):
        size = min(rows_a.shape[1], rows_b.shape[1])  # the embedding may be padded with tokens that no text has
        gaps = exact_gaps(rows_a[:, :size], rows_b[:, :size], [token.id or 0 for token in a])
        for entry, gap in zip(entries, gaps, strict=True):
            entry |= {"kl": encode_float(gap.kl), "exact": gap.exact}
    return entries


def _pair_entry(a: Token, b: Token, names: TokenTexts, *, diverged: bool) -> dict[str, Any]:
    """Where the tokens differ, the second engine's log-probability of the first's token is among its alternatives, or
    unknown."""
    other = dict(b.top).get(a.name) if diverged else b.logprob
    entry = {**_entry(a, names), "other": None if other is None else encode_float(other), "diverged": diverged}
    entry["other_top"] = [[names(name), encode_float(value)] for name, value in b.top]
    if diverged:
        entry["other_text"] = b.text
    if other is not None and a.top and b.top:
        entry["kl"] = encode_float(bounded_gap(dict(a.top), dict(b.top), a.name, a.logprob, other).kl)
    return entry


def _entry(token: Token, names: TokenTexts) -> dict[str, Any]:
    top = [[names(name), encode_float(value)] for name, value in token.top]
    return {"id": token.id, "text": token.text, "logprob": encode_float(token.logprob), "top": top}


def _texts(tokens: Sequence[Token]) -> dict[int, str]:
    return {token.id: token.text for token in tokens if token.id is not None}


def forced_pair(index: ResultsIndex, a: RunInfo, b: RunInfo) -> tuple[RunInfo, RunInfo] | None:
    """The runs in which a check let both models score the same texts; None where there are none."""
    candidates = [run for run in index.runs.values() if run.of_check and FORCED in run.tasks]
    of_a = [run for run in candidates if run.path.parent.name == a.path.parent.name]
    of_b = [run for run in candidates if run.path.parent.name == b.path.parent.name]
    hashes = {run.manifest["tasks"][FORCED].get("data_hash"): run for run in of_b}
    pairs = [(run, hashes[data]) for run in of_a if (data := run.manifest["tasks"][FORCED].get("data_hash")) in hashes]
    return pairs[-1] if pairs else None


def sample_tokens(index: ResultsIndex, run: str, other: str, task: str, name: str) -> dict[str, Any]:
    """The tokens of a sample, and those that both runs computed where there are two."""
    line = read_line(index, sample_row(index, run, task, name))
    if not other:
        return {"tokens": token_table(line, find_run(index, run)), "forced": False}
    runs = find_run(index, run), find_run(index, other)
    if (forced := forced_pair(index, *runs)) is not None:
        with contextlib.suppress(MillError):  # the check did not let the models score this one
            lines = [read_line(index, sample_row(index, run.uid, FORCED, f"{task}/{name}")) for run in forced]
            if tokens := paired_tokens(lines[0], lines[1], forced):
                return {"tokens": tokens, "forced": True}
    second = read_line(index, sample_row(index, other, task, name))
    return {"tokens": paired_tokens(line, second, runs), "forced": False}


def worst_tokens(index: ResultsIndex, run: str, task: str = "") -> dict[str, Any]:
    """The tokens to which a run gave the lowest log-probability, the worst of each sample."""
    page = Page("worst_token", limit=MOST_LISTED)
    listed = list_samples(index, SampleFilter(run, task, flags=("logprobs",), page=page))
    rows = []
    for sample in listed["rows"]:
        tokens = token_table(read_line(index, sample_row(index, run, sample["task"], sample["id"])), find_run(index, run))
        at = sample["worst_at"]
        if at is not None and at < len(tokens):
            rows.append({**_located(sample["task"], sample["id"], tokens, at), **tokens[at]})
    return {"rows": rows, "texts": listed["total"], "of": listed["total"]}


def worst_pairs(index: ResultsIndex, a: str, b: str) -> dict[str, Any]:
    """The positions with the largest KL between two runs, over the texts that both scored, else over their own texts as far
    as they are the same."""
    forced = forced_pair(index, find_run(index, a), find_run(index, b))
    runs = forced or (find_run(index, a), find_run(index, b))
    rows: list[dict[str, Any]] = []
    looked_at = total = 0
    sides = [{row["task"]: row for row in files_of(index, run.uid).values()} for run in runs]
    connection = index.database.connection()
    query = (
        "SELECT x.id AS a, y.id AS b FROM samples x CROSS JOIN samples y INDEXED BY samples_by_key "
        "ON y.file = ? AND y.key = x.key WHERE x.id BETWEEN ? AND ? AND +x.file = ? "
        f"AND x.flags & {TOKENS} AND y.flags & {TOKENS}"
    )
    for task in [name for name in sides[0] if name in sides[1]]:
        file, other = sides[0][task], sides[1][task]
        found = connection.execute(query, (other["id"], file["first"], file["last"], file["id"])).fetchall()
        total += len(found)
        for row in found[: MOST_TEXTS - looked_at]:
            looked_at += 1
            lines = [
                read_line(index, connection.execute("SELECT * FROM samples WHERE id = ?", (row[side],)).fetchone())
                for side in "ab"
            ]
            tokens = paired_tokens(lines[0], lines[1], runs)
            name = str(lines[0]["id"])
            shown = (task, name)
            if forced:  # a forced text is named TASK/SAMPLE: both may have slashes, so that the task decides
                owners = [one for one in find_run(index, a).tasks if name.startswith(f"{one}/")]
                owner = max(owners, key=len, default=name.partition("/")[0])
                shown = owner, name[len(owner) + 1 :]
            rows += [
                {**_located(shown[0], shown[1], tokens, at), **token}
                for at, token in enumerate(tokens)
                if isinstance(token.get("kl"), float)
            ]
    rows.sort(key=lambda row: -row["kl"])
    return {"rows": rows[:MOST_LISTED], "texts": looked_at, "of": total, "forced": forced is not None}


def _located(task: str, name: str, tokens: Sequence[Mapping[str, Any]], at: int) -> dict[str, Any]:
    before = "".join(token["text"] for token in tokens[max(0, at - _CONTEXT) : at])
    return {"task": task, "sample": name, "position": at + 1, "before": before[-_CONTEXT:]}
